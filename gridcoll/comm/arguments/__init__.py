"""Read the arguments that mpi4py accepts: which bytes, of which types, and where they are."""
