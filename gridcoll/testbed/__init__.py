"""A real multi-host grid on one machine, for real MPI libraries.

Read `layout` (where everything is), `network` (how it is built), `relay` (the WAN), `keeper` (the
process that is a testbed), `testbed` (its handle), `probe` and `preflight` (checks of it),
`launchers` and `run` (MPI jobs on it).
"""
