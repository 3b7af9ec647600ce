/* An empty library with the name libmpi.so.12, for a process in which MPICH has another name, as
 * Debian's libmpich.so.12. mpi4py needs a library of that name, and finds the functions in MPICH. */

const int gridcoll_is_only_a_name = 1;
