"""Channels: gridcoll sends its own messages over private communicators, which users never see.

Making a communicator takes several round trips between sites. Therefore a child communicator sends
its messages over the private communicator of its parent, with translated ranks and a tag range of
its own. Agreeing on the tag range needs no message: all ranks of the parent take part in making a
child, so they can count the ranges given away. Siblings of one `Split` get the same range, because
they have no rank in common. No range is given away twice; when all are used, the parent gets a new
private communicator for further children.

`Create_group` is called by the members only, who cannot count. Some tag ranges of every private
communicator, called slots, are reserved for such groups. When a call first needs a slot, the
members agree by a reduction on one that is free on all of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import and_
from typing import NamedTuple

from mpi4py import MPI

from gridcoll.engine.counting import CountingTransport, Sent
from gridcoll.engine.executor import Run, Transport
from gridcoll.engine.progress import Job, progress
from gridcoll.engine.transport import MPITransport, n_tags

N_BANDS = 64
"""Most bands of tags of a communicator, and so programs that may run at the same time. The first
band is for blocking calls."""

N_AT_ONCE = 15
"""Most non-blocking calls in progress at the same time; further calls wait for their turn."""

Begin = Callable[[Transport], tuple[Run, Callable[[], None]]]
"""Returns the run, and a function to call when it ends."""


class Bands:
    """Bands of a communicator's own tags, each for one call at a time.

    Non-blocking calls use up to `N_AT_ONCE` bands in turn, because all ranks start them in the same
    order. Persistent calls may start in any order, so each has a band of its own until it is freed.
    """

    def __init__(self, comm: MPI.Intracomm, bands: Sequence[MPITransport]) -> None:
        self._comm = comm
        self._sent = Sent(comm.Get_size())
        transports = [CountingTransport(each, self._sent) for each in bands]
        n_at_once = min(N_AT_ONCE, (len(transports) + 1) // 2)
        self._at_once = transports[:n_at_once]
        self._turn = itertools.cycle(self._at_once)
        self._own = transports[n_at_once:]
        self._free = (1 << len(self._own)) - 1

    @property
    def in_use(self) -> bool:
        """Whether persistent requests hold bands, so that the communicator must not be freed."""
        return self._free != (1 << len(self._own)) - 1

    def start(self, begin: Begin) -> MPI.Request:
        """Run once what ``begin`` returns for the transport that is passed to it."""
        transport = next(self._turn)
        return progress().start(Job(transport, lambda: begin(transport)))

    def claim(self, call: str) -> int | None:
        """Reserve and return a band for a persistent call. Collective.

        None if the text ``call`` differs among ranks, or no band is free on all of them.
        """
        rows: list[tuple[str, int]] = self._comm.allgather((call, self._free))
        free = reduce(and_, (bands for _, bands in rows))
        if not free or any(text != call for text, _ in rows):
            return None
        lowest = free & -free
        self._free &= ~lowest
        return lowest.bit_length() - 1

    def release(self, band: int) -> None:
        """Make ``band`` available to other calls."""
        self._free |= 1 << band

    def prepare(self, band: int, begin: Begin, free: Callable[[], None]) -> MPI.Prequest:
        """Run what ``begin`` returns at each start; call ``free`` when the request is freed."""
        transport = self._own[band]

        def release() -> None:
            self.release(band)
            free()

        return progress().prepare(Job(transport, lambda: begin(transport)), release)

    def rows(self, rank: int) -> list[tuple[int, int, int, int]]:
        """Return what was sent; see `Sent.rows`."""
        return self._sent.rows(rank)

    def drain(self) -> None:
        """Wait until all calls are complete."""
        progress().drain([*self._at_once, *self._own])


FEWEST_TAGS = 1 << 12
"""Fewest tags per program: with fewer, messages of many segments could be confused."""

MOST_TAGS = 1 << 14
"""Most tags per program in the smallest range that a child gets, so that there are many ranges."""

MOST_PROGRAMS = 1 << 15
"""Tags are divided among at most this many programs."""

GROUP_DIVISOR = OWN_DIVISOR = 8
"""One in this many tags of a private communicator is reserved for `Create_group`, and one in this
many tags of a range for the range's own communicator."""

CHILD_DIVISOR = 64
"""A child gets one in this many of the tags that its parent has left. So the first children get
large ranges, which their own children need, and there are enough tags for hundreds of children."""


FEWEST_CHILDREN = 32
"""If an MPI library has so few tags that a private communicator would serve fewer children than
this, each gets fewer bands. Otherwise, under Intel MPI, whose tags have 19 bits, every second child
would need a private communicator, which takes as long to make as the child."""

FEWEST_CHILD_BANDS = 4
"""Fewest bands of a child: for a blocking call, two others at once, and a persistent one."""

OWN_DIVISOR_OF_FEW = 4
"""The same as `OWN_DIVISOR` if there are so few tags that one in eight is less than all bands need.
"""

MOST_SLOTS = 4096
"""Most slots that a group chooses from: its ranks exchange one bit for each slot."""

OFFER_STRIDE = 8
"""One in this many slots is offered at a time."""

N_TRIES = 32
"""Failed offers before a group makes a private communicator: other threads may take the slots."""


def can_run_in_background() -> bool:
    """Whether this rank can run programs in the background, while the application runs.

    Needs ``MPI.THREAD_MULTIPLE``; an application may choose a lower level.
    """
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE and n_tags() >= N_BANDS * FEWEST_TAGS


def group_of(comm: MPI.Comm) -> MPI.Group:
    """Return the group of ``comm``, which the caller must free.

    If a communicator with a topology has fewer ranks than the one it was made from, MPICH 5.0
    returns the group of the latter, whose first ranks are those of ``comm``.
    """
    group, n_ranks = comm.Get_group(), comm.Get_size()
    if group.Get_size() == n_ranks:
        return group
    try:
        return group.Incl(range(n_ranks))
    finally:
        group.Free()


def new_private(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of our own with the ranks of ``comm``. Collective.

    It is not a duplicate: that would call the user's attribute copy functions once more.
    """
    group = group_of(comm)
    try:
        return MPI.Intracomm(MPI.Intracomm.Create(comm, group))
    finally:
        group.Free()


class PrivateComm:
    """A communicator of our own, freed with the last channel that uses it; see `new_private`.

    In each of its tag ranges, up to ``n_bands`` programs may run at the same time.
    """

    def __init__(self, comm: MPI.Intracomm, n_bands: int) -> None:
        self.comm = comm
        total = n_tags()
        self.n_bands = n_bands
        self.min_tags = min(
            n_bands * min(max(total // MOST_PROGRAMS, FEWEST_TAGS), MOST_TAGS),
            max(total // FEWEST_CHILDREN, FEWEST_CHILD_BANDS * FEWEST_TAGS),
            total,
        )
        # A slot needs fewer tags, because it has no children. This makes hundreds of slots.
        self._tags_per_slot = min(n_bands * FEWEST_TAGS, self.min_tags)
        self._n_slots = min(total // GROUP_DIVISOR // self._tags_per_slot, MOST_SLOTS)
        self.tags = range(self._n_slots * self._tags_per_slot, total)
        self._lock = threading.Lock()
        self._n_users = 0
        self._free = (1 << self._n_slots) - 1
        self._offered = 0
        self._turn = 0

    def hold(self) -> None:
        """Add a user."""
        with self._lock:
            self._n_users += 1

    def release(self) -> None:
        """Remove a user. The last one frees the communicator, on each rank at its own time."""
        with self._lock:
            self._n_users -= 1
            last = not self._n_users
        if last:
            self.comm.Free()

    def agree_on_slot(self, comm: MPI.Intracomm) -> int | None:
        """Reserve and return a slot that is free on all ranks of ``comm``. Collective.

        None if there is no such slot. Only one thread at a time offers a given slot. Therefore each
        offer has only a few slots, and the next offer has others; rank 0 decides which.
        """
        turn, n_bytes = 0, self._n_slots // 8 + 1
        n_bits = OFFER_STRIDE * (self._n_slots // OFFER_STRIDE + 1)
        strided = ((1 << n_bits) - 1) // ((1 << OFFER_STRIDE) - 1)  # each OFFER_STRIDE-th bit
        for _ in range(N_TRIES):
            with self._lock:
                free = self._free
                offer = free & strided << turn % OFFER_STRIDE & ~self._offered
                self._offered |= offer
                self._turn += 1
                turn = self._turn if comm.Get_rank() == 0 else -1
            masks = (each.to_bytes(n_bytes, "little") for each in (offer, free))
            mine = bytearray(b"".join(masks) + turn.to_bytes(8, "little", signed=True))
            comm.Allreduce(MPI.IN_PLACE, [mine, MPI.BYTE], MPI.BAND)
            offered = int.from_bytes(mine[:n_bytes], "little")
            common = int.from_bytes(mine[n_bytes:-8], "little")
            turn = int.from_bytes(mine[-8:], "little", signed=True)
            lowest = offered & -offered
            with self._lock:
                self._offered &= ~offer
                self._free &= ~lowest
            if lowest:
                return lowest.bit_length() - 1
            if not common:
                break
        return None

    def slot_tags(self, slot: int) -> range:
        """Return the tags of ``slot``."""
        return range(slot * self._tags_per_slot, (slot + 1) * self._tags_per_slot)

    def return_slot(self, slot: int) -> None:
        """Return ``slot``; this rank must have no pending messages in it."""
        with self._lock:
            self._free |= 1 << slot


class Place(NamedTuple):
    """What a child gets: a private communicator, its ranks in it, and tags.

    ``ranks`` is None if its ranks are the same there. ``tags`` is None for a child that has to
    agree on a slot.
    """

    private: PrivateComm
    ranks: Sequence[int] | None
    tags: range | None


class Channel:
    """gridcoll's messages of one communicator, ``comm``, a plain mpi4py communicator."""

    def __init__(self, comm: MPI.Intracomm, place: Place) -> None:
        self.comm = comm
        self._private, self._ranks, self._tags = place
        self._reserve: Place | None = None  # tags for children
        self._is_divided = False
        self._slot: int | None = None
        self._private.hold()

    @classmethod
    def create(cls, comm: MPI.Intracomm, own: MPI.Intracomm, threads: bool) -> Channel:
        """Return a channel on its own private communicator, made by `new_private`."""
        private = PrivateComm(own, N_BANDS if threads else 1)
        return cls(comm, Place(private, None, private.tags))

    @property
    def private(self) -> MPI.Intracomm:
        """The private communicator of this channel."""
        return self._private.comm

    @property
    def is_open(self) -> bool:
        """Whether the channel has tags, on all ranks."""
        return self._tags is not None

    def open(self) -> None:
        """Agree on tags, if not done yet. Collective and blocking."""
        if self._tags is not None:
            return
        slot = self._private.agree_on_slot(self.comm)
        if slot is not None:
            self._slot, self._tags = slot, self._private.slot_tags(slot)
            return
        private, former = PrivateComm(new_private(self.comm), self._private.n_bands), self._private
        private.hold()
        self._private, self._ranks = private, None
        former.release()
        self._tags = private.tags

    def place_for_child(self, *, may_wait: bool) -> Place:
        """Return the place of the next child. All ranks of this communicator must call it.

        If all tags have been given away and ``may_wait``, make a new private communicator, which is
        collective. Without ``may_wait``, the child will agree on a slot.
        """
        self._divide()
        rest = self._reserve
        if rest is not None and rest.tags is not None and len(rest.tags) < rest.private.min_tags:
            self._leave_reserve()
            rest = None
        if rest is None and may_wait and self.is_open:
            private = PrivateComm(new_private(self.comm), self._private.n_bands)
            private.hold()
            rest = Place(private, None, private.tags)
        if rest is None or rest.tags is None:
            return self.place_in_group()
        n_tags = max(len(rest.tags) // CHILD_DIVISOR, rest.private.min_tags)
        self._reserve = Place(rest.private, rest.ranks, rest.tags[n_tags:])
        return Place(rest.private, rest.ranks, rest.tags[:n_tags])

    def place_in_group(self) -> Place:
        """Return the place of a child that only some of our ranks take part in making."""
        return Place(self._private, self._ranks, None)

    def _divide(self) -> None:
        """Divide the tags, once, into our own and those for children."""
        if not self._is_divided and self._tags is not None:
            n_wanted = min(
                self._private.n_bands * FEWEST_TAGS, len(self._tags) // OWN_DIVISOR_OF_FEW
            )
            n_own = max(len(self._tags) // OWN_DIVISOR, n_wanted, self._private.min_tags)
            self._reserve = Place(self._private, self._ranks, self._tags[n_own:])
            self._tags = self._tags[:n_own]
            self._is_divided = True

    def _leave_reserve(self) -> None:
        reserve, self._reserve = self._reserve, None
        if reserve is not None and reserve.private is not self._private:
            reserve.private.release()

    @cached_property
    def transport(self) -> CountingTransport:
        """The transport for blocking calls, one at a time; it counts messages."""
        return CountingTransport(self.messages, Sent(self.comm.Get_size()))

    @property
    def messages(self) -> MPITransport:
        """The same transport without counting, for measurements between calls."""
        return MPITransport(self._private.comm, self._band(0), self._ranks)

    @cached_property
    def bands(self) -> Bands:
        """The bands in which non-blocking and persistent calls run."""
        private, ranks = self._private, self._ranks
        transports = [
            MPITransport(private.comm, self._band(number), ranks)
            for number in range(1, self._n_bands)
        ]
        return Bands(self.comm, transports)

    def sent(self, rank: int) -> list[tuple[int, int, int, int]]:
        """Return what calls sent so far; see `Sent.rows`."""
        cached = self.__dict__  # of cached properties: do not create those that no call needed
        rows = self.transport.sent.rows(rank) if "transport" in cached else []
        return rows + self.bands.rows(rank) if "bands" in cached else rows

    @property
    def _n_bands(self) -> int:
        self._divide()
        return max(min(self._private.n_bands, len(self._tags or ()) // FEWEST_TAGS), 1)

    def _band(self, number: int) -> range:
        self._divide()
        tags = self._tags or range(0)
        n_tags = len(tags) // self._n_bands
        return tags[number * n_tags : (number + 1) * n_tags]

    def free(self) -> None:
        """Wait for pending calls, and release everything.

        Remaining persistent requests keep the channel alive, as they do the user's communicator.
        """
        if "bands" in self.__dict__:
            self.bands.drain()
            if self.bands.in_use:
                return
        self._leave_reserve()
        if self._slot is not None:
            self._private.return_slot(self._slot)
        self._private.release()


def place_of(place: Place, ranks: Sequence[int]) -> Place:
    """Return ``place`` for a child whose rank ``i`` is its parent's ``ranks[i]``."""
    base = place.ranks
    translated = ranks if base is None else [base[rank] for rank in ranks]
    return Place(place.private, translated, place.tags)
