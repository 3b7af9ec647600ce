! Collectives by the three interfaces of Fortran: compile with -DMPIF_H, -DUSE_MPI or -DUSE_F08.
program fortran
#ifdef USE_F08
  use mpi_f08
#endif
#ifdef USE_MPI
  use mpi
#endif
  implicit none
#ifdef MPIF_H
  include 'mpif.h'
#endif
#ifdef USE_F08
  type(MPI_Comm) :: half
  type(MPI_Op) :: ours
#else
  integer :: half, ours
#endif
  integer :: rank, n, ierror, root, k, bad, total
  integer :: data(1000), sums(1000)
  double precision :: all(8), mine
  integer, allocatable :: blocks(:), out(:)
  external :: add

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, n, ierror)
  bad = 0
  do root = 0, n - 1
     data = -1
     if (rank == root) data = (/ (k + root, k = 1, 1000) /)
     call MPI_Bcast(data, 1000, MPI_INTEGER, root, MPI_COMM_WORLD, ierror)
     if (any(data /= (/ (k + root, k = 1, 1000) /))) bad = bad + 1
  end do
  data = rank + 1
  call MPI_Allreduce(data, sums, 1000, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
  if (any(sums /= n * (n + 1) / 2)) bad = bad + 1
  call MPI_Allreduce(MPI_IN_PLACE, data, 1000, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierror)
  if (any(data /= n)) bad = bad + 1
  mine = rank
  call MPI_Allgather(mine, 1, MPI_DOUBLE_PRECISION, all, 1, MPI_DOUBLE_PRECISION, &
       MPI_COMM_WORLD, ierror)
  do k = 1, n
     if (all(k) /= k - 1) bad = bad + 1
  end do
  allocate(blocks(n), out(n))
  blocks = (/ (100 * rank + k, k = 1, n) /)
  call MPI_Alltoall(blocks, 1, MPI_INTEGER, out, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
  if (any(out /= (/ (100 * (k - 1) + rank + 1, k = 1, n) /))) bad = bad + 1
  call MPI_Barrier(MPI_COMM_WORLD, ierror)
  call MPI_Comm_split(MPI_COMM_WORLD, 0, n - rank, half, ierror)
  data = rank
  call MPI_Bcast(data, 10, MPI_INTEGER, 0, half, ierror)
  if (any(data(1:10) /= n - 1)) bad = bad + 1
  call MPI_Comm_free(half, ierror)
#ifndef USE_F08
  call MPI_Op_create(add, .true., ours, ierror)
  data = rank + 1
  sums = 0
  call MPI_Reduce(data, sums, 7, MPI_INTEGER, ours, 0, MPI_COMM_WORLD, ierror)
  if (rank == 0 .and. any(sums(1:7) /= n * (n + 1) / 2)) bad = bad + 1
  call MPI_Op_free(ours, ierror)
#endif
  call MPI_Allreduce(bad, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
  if (rank == 0 .and. total == 0) print '(A)', 'right'
  if (rank == 0 .and. total /= 0) print '(A)', 'wrong'
  call MPI_Finalize(ierror)
end program fortran

subroutine add(left, right, length, datatype)
  implicit none
  integer :: length, datatype
  integer :: left(length), right(length)
  right = left + right
end subroutine add
