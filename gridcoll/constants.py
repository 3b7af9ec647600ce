"""Every constant that decides by a number found by measuring, in one place.

Each says what it stands for and what was measured. Unless it says otherwise, it was checked on the
grids in ``hostfiles/``, which are emulated: 2 to 12 hosts in 1 to 6 clusters, 0.1 to 80 ms between
clusters, 20 Mbit/s to 1 Gbit/s, under MPICH 5.0, Open MPI 5.0 and Intel MPI 2021. Beyond that range
they are guesses, which measured natives and learned corrections of predictions make up for.
Constants that a definition, a paper or MPI gives stand where they are used.
"""

from __future__ import annotations

# -- choosing ------------------------------------------------------------------------------------

MARGIN = 0.05
"""A plan replaces the native collective only if it is predicted to be this much faster, and so does
a variant of the native: two series of runs of the same call differ by as much."""

PRIOR_FACTOR = 1.4
"""A native collective that nobody timed must be estimated so many times faster than a plan to be
taken between clusters. What its algorithm costs leaves out what a library adds, as by busy waiting:
natives of MPICH on three sites took 0.8 to 2.7 times their estimate, 1.4 in the median."""

START_MARGIN = 0.2
"""And by this part of what starting a plan takes. That varies as much with what is in the caches:
the application's own data between calls, but ours in a row of trials."""

ALL_BUT_AS_GOOD = 1.01
"""Of segment sizes predicted to take at most so many times the least, the largest is taken: fewer
segments are less work for every rank, which no gap shows. With 1.03, 4 MiB on three sites took 368
ms instead of 357; with 1, segments below 2 KiB over thin links took 4 % longer."""

ALIKE_TREES = 1.02
"""Numbers of trees predicted to take at most so many times the least are as good, and the
fewest are taken."""

LEAST_SAVED = 0.05
"""Blocks go in pieces where that is predicted to save this part: each piece costs a call."""

MOST_ORDER_SLOWDOWN = 0.25
"""A user's operation that commutes keeps rank order where a plan that does is predicted to take at
most this part more than the fastest. Predicted on nine declared grids: allreduces of up to a dozen
hosts that lie cluster by cluster take up to 22 % more (64 KiB on three sites), mostly under 10 %;
on ranks dealt out in turn 1 to 14 % up to 4 KiB and 21 to 64 % beyond; on 1634 ranks nothing up to
4 KiB and 1.9 times as long at 64 KiB. Reductions to a root take up to 20 % more up to 1 KiB and 8
to 130 % from 64 KiB, with 1634 ranks 67 % at 1 KiB."""

SHORT_IN_ORDER_BYTES = 2 << 10
"""Up to here it keeps rank order whatever that costs, as libraries' short algorithms do. Predicted
at 1 KiB on the same grids: up to 20 %, on one cluster a half (0.2 ms), on 1634 ranks 67 %."""

# -- links and interfaces ------------------------------------------------------------------------

WINDOWS_LIMIT = 1.15
"""A window limits each flow of a link where several carry this many times what one does: less is
within the spread of a measured rate."""

WINDOWS_SURELY_LIMIT = 1.5
"""Where several flows carry so many times what one does, that is no error of a measurement. Rates
from the few messages of a quick start, on a busy machine, were up to 1.33 times too high."""

WINDOW_SPARE = 1.5
"""Flows limited by windows should be able to carry so many times what they have to: they stop for a
round trip whenever a window is spent, so that their gap is an average only."""

THIN_LINK = 0.8
"""A link is thin that carries less than this part of what an interface does: above that, interfaces
and link are busy alike within the spread of measured rates."""

UNLIKE_INTERFACES = 1.25
"""Interfaces are unlike where the fastest carries so many times what the slowest does: measured
rates of like ones differ by less."""

QUEUE_BYTES = 96 << 10
"""What the queue before a thin link surely holds. The emulated ones hold 100 to 400 packets; taken
as 400 KB, some of 256 KiB per pair over 20 Mbit/s were lost: 2.09 s instead of 1.74."""

QUEUE_S = 50e-3
"""What the queue before an uplink holds keeps it busy for so long. Routers have room for about a
round trip by the usual rule (Villamizar and Song 1994); the emulated ones for 50 ms."""

SENT_AGAIN_S = 0.1
"""What overflows that queue is lost, and some of it is sent again by a timer, which is 0.2 s at
least on Linux: half of that is what to expect. On `unlike-hosts`, exchanges of 64 KiB that nobody
paces took 60 to 250 ms more than was predicted without it (MPICH and Open MPI), of 256 KiB 60 to
100, and differed by as much from call to call; one by the clock took 30 to 80 ms more."""

PACE = 0.9
"""Sends one after another leave after this part of the gap: a wire that idles loses more than order
gains."""

LINK_PACE = 0.95
"""The same for a thin link: a tenth too fast, some of 4 MiB were lost."""

INTERFACE_SLACK = 1.06
"""How much longer than its gaps an interface is given that is busy all the time: without, queues
before it made all-to-alls 10 to 20 % longer over 80 ms of round trip."""

BUSY_INTERFACE = 0.7
"""Interfaces busy this part of the time keep flows that windows limit from filling them."""

SEVERAL_TREES_DELAY = 1 / 3
"""What several trees cost a reduction, as a part of the time that the message keeps an interface.
A leaf of some trees has all of its share ready from the start, and what others wait for
queues behind it: 27 to 36 % measured at 1 and 4 MB on three sites, 3 to 75 % by simulation."""

# -- sizes ---------------------------------------------------------------------------------------

EAGER_PIECES_BYTES = (1 << 14, 1 << 15)
"""Pieces of long blocks: messages that none of the MPIs above keeps back until the receiver has
answered, by their default eager limits over TCP (64 KiB, 64 KiB less a header, 256 KiB)."""

MOST_EAGER_PIECES = 8
"""More pieces of a block than this wait in queues of the MPI, which copies them: 512 KiB took 705
ms instead of 511 under Open MPI."""

SHORTEST_PACED_BYTES = 8 << 10
"""Shorter blocks leave at once: by the time that order matters, all of a dozen are under way."""

SHORTEST_RATE_PACED_BYTES = 2 << 10
"""Blocks shorter than this overflow no queue with a dozen hosts. Rate-paced, they take 3 to 5 %
longer than a direct exchange that loses nothing; those of 8 KiB a third of one that does."""

MOST_RATE_PACED_PIECES = 128
"""How many pieces a rate-paced block is cut into: with pieces of 32 KiB instead, MPICH took a
quarter longer for 1 MiB over links of 80 ms."""

MOST_COLLECTED_BYTES = 1 << 20
"""Scratch of a coordinator or leader beyond which ways that collect a whole cluster's blocks are
not offered: it waits for all before it sends, so that nothing overlaps."""

MOST_ALLGATHER_REDUCE_BYTES = 4 << 10
"""Allgather and local reduction is not offered for longer messages: each rank receives all ranks'
data, so its bytes grow with ranks where those of a tree do not."""

SMALLEST_PIECE_BYTES = 256
"""Pieces of an allreduce shorter than this, on average, cost more in messages than they save."""

# -- the engine ----------------------------------------------------------------------------------

RECEIVES_POSTED = 64
"""Receives kept posted per lane: 1 MiB under way with segments of 16 KiB, which is what 100 Mbit/s
over 80 ms of round trip holds, and more with longer segments."""

# -- measuring -----------------------------------------------------------------------------------

SHORT_LATENCY_S = 2e-3
"""Below, a busy moment of either host changes a latency by more than ρ, so it is measured again: on
the two cores of the emulated grids, such moments last up to half a millisecond."""
