"""Reading the arguments that mpi4py takes: which bytes, of which types, where."""
