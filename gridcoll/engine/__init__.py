"""Running one rank's ops: in C or Python, over MPI or in one process."""
