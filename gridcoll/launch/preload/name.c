/* Nothing but the name of libmpi.so.12, for a process that has MPICH under another one, as Debian's
 * libmpich.so.12: mpi4py asks for it by that name, and finds the functions where they are. */

const int gridcoll_is_only_a_name = 1;
