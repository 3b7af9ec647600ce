"""All constants whose values were found by measuring, in one place.

Each docstring says what the constant is for and what was measured. Unless it says otherwise, the
value was checked on the grids in ``hostfiles/``, which are emulated: 2 to 12 hosts in 1 to 6
clusters, 0.1 to 80 ms between clusters, 20 Mbit/s to 1 Gbit/s, under MPICH 5.0, Open MPI 5.0 and
Intel MPI 2021. Outside that range values are guesses; measured natives and learned corrections of
predictions make up for their errors. Constants given by a definition, a paper or MPI are where they
are used.
"""

from __future__ import annotations

# -- choosing ------------------------------------------------------------------------------------

MARGIN = 0.05
"""A plan, or a variant of the native collective, replaces the native only if its time is predicted
to be less by more than this fraction: two series of runs of the same call differ by as much."""

PRIOR_FACTOR = 1.4
"""Between clusters, a native collective that was not timed is taken only if it is estimated to be
more than so many times as fast as any plan. The estimate is the cost of the library's algorithm,
without what the library adds, for example by busy waiting: natives of MPICH on three sites took 0.8
to 2.7 times their estimate, 1.4 in the median."""

EXTRAPOLATED_FACTOR = 2
"""A call is beyond what a native collective was timed with if its message is more than so many
times as long. Between clusters, that native must then be predicted to be faster than any plan by
`MARGIN`: discovery does not time long messages of a native that lost. An all-to-all of 4 MiB on
thin-wan (MPICH), timed up to 512 KiB, was predicted to take 28 s and took 33 to 39 s; a plan took
27.4 s, and 27.3 s was predicted."""

START_MARGIN = 0.2
"""A plan must also gain more than this fraction of its start time, which varies by as much: between
calls of an application, caches hold the application's data; in a series of trials, they hold ours.
"""

TIE_FACTOR = 1.01
"""Segment sizes predicted to take at most so many times the least time are as good, and the largest
is taken: fewer segments are less work for every rank, which gaps do not include. With 1.03, 4 MiB
on three sites took 368 ms instead of 357; with 1, segments below 2 KiB over thin links took 4 %
longer."""

TREES_TIE_FACTOR = 1.02
"""Numbers of trees predicted to take at most so many times the least time are as good, and the
fewest trees are taken."""

DETOUR_GAIN = 1.1
"""Ways over third clusters are offered if the direct ones take this many times as long, or keep a
link or interface busy for so many times as long. Sums of measured rates are accurate to 10 %."""

LEAST_SAVED = 0.05
"""Blocks are sent in pieces if that is predicted to save this fraction of the time, since each
piece costs a call."""

LEAST_SAVED_BY_SEGMENTS = 0.02
"""Blocks of allgathers and reduce-scatters are cut into more segments if that is predicted to save
this fraction. On thin-wan, 64 KiB in segments of 1 KiB took 3 to 10 % longer than in those of 4 to
8 KiB, and were predicted 1.5 % shorter."""

MOST_ORDER_SLOWDOWN = 0.25
"""A user-defined commutative operation keeps rank order if a plan that does so is predicted to take
at most this fraction longer than the fastest. Predicted on nine declared grids: allreduces on up to
a dozen hosts, numbered cluster by cluster, take up to 22 % longer (64 KiB on three sites), mostly
under 10 %; with ranks dealt to clusters in turn, 1 to 14 % longer up to 4 KiB and 21 to 64 %
beyond; on 1634 ranks, no longer up to 4 KiB and 1.9 times as long at 64 KiB. Reductions to a root
take up to 20 % longer up to 1 KiB and 8 to 130 % from 64 KiB on; with 1634 ranks, 67 % at 1 KiB."""

SHORT_IN_ORDER_BYTES = 2 << 10
"""Up to this length, such an operation keeps rank order whatever it costs, as the algorithms of
libraries for short messages do. Predicted at 1 KiB on the same grids: up to 20 % longer, on one
cluster 50 % (0.2 ms), on 1634 ranks 67 %."""

# -- links and interfaces ------------------------------------------------------------------------

WINDOWS_LIMIT = 1.15
"""TCP windows limit the flows of a link if several flows carry so many times what one does. Smaller
ratios are within the spread of measured rates."""

WINDOWS_SURELY_LIMIT = 1.5
"""If several flows carry so many times what one does, this is no measurement error. Rates from the
few messages of a quick start, on a busy machine, were up to 1.33 times too high."""

WINDOW_HEADROOM = 1.5
"""Flows limited by windows should be able to carry so many times what they have to. They stop for a
round trip whenever a window is used up, so their gap is only an average."""

THIN_LINK = 0.8
"""A link is thin if it carries less than this fraction of what an interface does. Above that,
interfaces and link are equally busy within the spread of measured rates."""

UNLIKE_INTERFACES = 1.25
"""Interfaces differ if the fastest carries so many times what the slowest does. Measured rates of
equal interfaces differ by less."""

QUEUE_BYTES = 96 << 10
"""The queue before a thin link holds at least so many bytes. Emulated queues hold 100 to 400
packets. When 400 KB were assumed, some packets of exchanges of 256 KiB per pair over 20 Mbit/s were
lost: they took 2.09 s instead of 1.74."""

QUEUE_S = 50e-3
"""A full queue before an uplink keeps it busy for so long. By the usual rule, routers have room for
about a round trip (Villamizar and Song 1994); the emulated ones have room for 50 ms."""

RETRANSMISSION_S = 0.1
"""Expected delay if that queue overflows. Some of the lost packets are sent again after a timeout,
which is at least 0.2 s on Linux; half of that is expected. On `unlike-hosts`, exchanges of 64 KiB
without pacing took 60 to 250 ms more than predicted without this delay (MPICH and Open MPI), those
of 256 KiB 60 to 100 ms more, and times differed by as much from call to call; exchanges paced by
the clock took 30 to 80 ms more."""

PACE = 0.9
"""Paced sends follow each other after this fraction of the gap: an idle wire loses more time than
order saves."""

LINK_PACE = 0.95
"""The same for a thin link: when sends were a tenth too fast, packets of 4 MiB were lost."""

INTERFACE_SLACK = 1.06
"""An interface that is busy all the time is given so many times the sum of its gaps. Otherwise,
queues before it made all-to-alls 10 to 20 % longer with round trips of 80 ms."""

BUSY_INTERFACE = 0.7
"""A link whose flows are limited by windows counts as the bottleneck if it is busy for more than
this fraction of the time of the busiest interface: flows and interfaces that are both busy all the
time hinder one another."""

SEVERAL_TREES_DELAY = 1 / 3
"""The delay of a reduction by several trees, as a fraction of the time for which the message keeps
an interface busy. A leaf of some trees has all of its share ready from the start, and data that
others wait for queues behind it: 27 to 36 % measured at 1 and 4 MB on three sites, 3 to 75 % by
simulation."""

# -- sizes ---------------------------------------------------------------------------------------

EAGER_PIECES_BYTES = (1 << 14, 1 << 15)
"""Sizes of the pieces of long blocks. By their default eager limits over TCP (64 KiB, 64 KiB less a
header, 256 KiB), none of the MPIs above holds back such messages until the receiver has
answered."""

MOST_EAGER_PIECES = 8
"""If a block has more pieces, they wait in queues of the MPI, which copies them: 512 KiB took 705
ms instead of 511 under Open MPI."""

SHORTEST_PACED_BYTES = 8 << 10
"""Shorter blocks are not paced: before their order can matter, all of a dozen are under way."""

SHORTEST_RATE_PACED_BYTES = 2 << 10
"""Shorter blocks of a dozen hosts overflow no queue. Rate-paced, they take 3 to 5 % longer than a
direct exchange that loses nothing. Rate-paced blocks of 8 KiB take a third of the time of a direct
exchange that loses packets."""

MOST_RATE_PACED_PIECES = 128
"""A rate-paced block is cut into at most so many pieces. With pieces of 32 KiB instead, MPICH took
a quarter longer for 1 MiB over links of 80 ms."""

MOST_COLLECTED_BYTES = 1 << 20
"""Algorithms that collect all blocks of a cluster are not offered if a coordinator or leader needs
more scratch than this: it waits for all blocks before it sends, so nothing overlaps."""

MOST_ALLGATHER_REDUCE_BYTES = 4 << 10
"""Allgather with local reduction is not offered for longer messages: each rank receives the data of
all ranks, so its bytes grow with the number of ranks, unlike those of a tree."""

SMALLEST_PIECE_BYTES = 256
"""If pieces of an allreduce are shorter on average, their messages cost more than they save."""

# -- the engine ----------------------------------------------------------------------------------

RECEIVES_POSTED = 64
"""Number of receives kept posted per lane. With segments of 16 KiB this is 1 MiB under way, the
bandwidth-delay product of 100 Mbit/s and a round trip of 80 ms; with longer segments it is more."""

ANNOUNCED_BYTES = 64 << 10
"""A message from this size on is announced, and sent when its receiver has answered: this is the
smallest default eager limit over TCP (see `EAGER_PIECES_BYTES`). So over links of a grid file, a
lone message of this size takes a round trip longer. If a run starts with such sends, they begin
before receives are posted. Otherwise a rank that comes late would answer its peers first. Under
Open MPI, their data then fill the connections, and their answers to this rank wait behind these
data. So the two directions of a link are used one after the other: all-to-alls of 512 KiB over 20
Mbit/s took 6.2 s instead of 3.6."""

# -- measuring -----------------------------------------------------------------------------------

SHORT_LATENCY_S = 2e-3
"""Shorter latencies are measured again, since a busy moment of either host changes them by more
than ρ: on the two cores of the emulated grids, such moments last up to half a millisecond."""
