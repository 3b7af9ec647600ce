"""Channels: our own messages go over private communicators, which users never see.

Making a communicator takes several round trips between sites. So a communicator that is made from
another one sends its messages over that one's private communicator, with ranks translated and in a
part of its tags that is its own. Nothing is sent to agree on the part: all ranks of the parent take
part in what makes a child, so that they can count the parts given away. Siblings of one `Split` get
the same part, for no two ranks are in both of them. A part is not given away twice; when all are,
the parent gets a new private communicator for its children to come.

`Create_group` is called by the members alone, who cannot count. Some parts of every private
communicator are kept for them: they agree on one that is free on all of them when a call first
needs it, by one reduction.
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
"""Programs of one communicator that may run at the same time: the first is for blocking calls."""

N_AT_ONCE = 15
"""Most non-blocking calls under way at the same time; further ones wait for their turn."""

Begin = Callable[[Transport], tuple[Run, Callable[[], None]]]
"""Returns the run, and a function to call at its end."""


class Bands:
    """Bands of a communicator's own tags, each for one call at a time.

    Non-blocking calls take the first `N_AT_ONCE` in turn, as all ranks start them in the same
    order. Persistent calls may start in any order, so that each has its own band as long as it
    lives.
    """

    def __init__(self, comm: MPI.Intracomm, bands: Sequence[MPITransport]) -> None:
        self._comm = comm
        self._sent = Sent(comm.Get_size())
        transports = [CountingTransport(each, self._sent) for each in bands]
        self._at_once = transports[:N_AT_ONCE]
        self._turn = itertools.cycle(self._at_once)
        self._own = transports[N_AT_ONCE:]
        self._free = (1 << len(self._own)) - 1

    @property
    def in_use(self) -> bool:
        """Whether persistent requests hold bands, so that the communicator must stay."""
        return self._free != (1 << len(self._own)) - 1

    def start(self, begin: Begin) -> MPI.Request:
        """Run what ``begin`` gives for the transport that it is told, once."""
        transport = next(self._turn)
        return progress().start(Job(transport, lambda: begin(transport)))

    def claim(self, call: str) -> int | None:
        """A band for a persistent call. Collective.

        None where ranks differ in the text ``call``, or no band is free on all of them.
        """
        rows: list[tuple[str, int]] = self._comm.allgather((call, self._free))
        free = reduce(and_, (bands for _, bands in rows))
        if not free or any(text != call for text, _ in rows):
            return None
        lowest = free & -free
        self._free &= ~lowest
        return lowest.bit_length() - 1

    def release(self, band: int) -> None:
        """Let another call have ``band``."""
        self._free |= 1 << band

    def prepare(self, band: int, begin: Begin, free: Callable[[], None]) -> MPI.Prequest:
        """Run what ``begin`` gives at each start; call ``free`` when the request is freed."""
        transport = self._own[band]

        def release() -> None:
            self.release(band)
            free()

        return progress().prepare(Job(transport, lambda: begin(transport)), release)

    def rows(self, rank: int) -> list[tuple[int, int, int, int]]:
        """What was sent; see `Sent.rows`."""
        return self._sent.rows(rank)

    def drain(self) -> None:
        """Wait until nothing is under way."""
        progress().drain([*self._at_once, *self._own])


FEWEST_TAGS = 1 << 12
"""Fewest tags of a program: with fewer, messages of many segments could be confused."""

MOST_TAGS = 1 << 14
"""Most tags of each program of a part, as there are many parts."""

N_SMALLEST = 1 << 15
"""Tags are divided among at most so many programs."""

KEPT = OWN = 8
"""One in so many tags is kept for `Create_group`; and one in so many of a part for its own
communicator."""

N_CHILDREN = 64
"""A child gets one in so many of the tags that its parent has left: large parts for the first
children, whose own children need tags, and enough for hundreds."""


MOST_SLOTS = 4096
"""A group agrees on one of so many: a bit of each is in what its ranks tell one another."""

N_OFFERS = 8
"""One in so many of the parts kept for groups is offered at a time."""

N_TRIES = 32
"""Failed offers before a group makes a private communicator: other threads may take the parts."""


def can_run_beside() -> bool:
    """Whether this rank can run programs beside the application.

    Needs ``MPI.THREAD_MULTIPLE``; an application may choose a lower level.
    """
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE and n_tags() >= N_BANDS * FEWEST_TAGS


def group_of(comm: MPI.Comm) -> MPI.Group:
    """The group of ``comm``, to be freed.

    MPICH 5.0 gives a topology's communicator of fewer ranks the group of the one it was made from,
    whose first ranks are its own.
    """
    group, n_ranks = comm.Get_group(), comm.Get_size()
    if group.Get_size() == n_ranks:
        return group
    try:
        return group.Incl(range(n_ranks))
    finally:
        group.Free()


def new_private(comm: MPI.Intracomm) -> MPI.Intracomm:
    """A communicator of our own with ``comm``'s ranks. Collective.

    Not a duplicate: that would call the user's attribute copy functions once more.
    """
    group = group_of(comm)
    try:
        return MPI.Intracomm(MPI.Intracomm.Create(comm, group))
    finally:
        group.Free()


class PrivateComm:
    """A communicator of our own, freed with the last channel that uses it; see `new_private`.

    In each of its parts, ``n_bands`` programs may run at the same time.
    """

    def __init__(self, comm: MPI.Intracomm, n_bands: int) -> None:
        self.comm = comm
        total = n_tags()
        self.n_bands = n_bands
        self.part = n_bands * min(max(total // N_SMALLEST, FEWEST_TAGS), MOST_TAGS)
        self.part = min(self.part, total)
        # A slot has no children, so that fewer tags make hundreds of slots.
        self._tags_per_slot = min(n_bands * FEWEST_TAGS, self.part)
        self._n_slots = min(total // KEPT // self._tags_per_slot, MOST_SLOTS)
        self.tags = range(self._n_slots * self._tags_per_slot, total)
        self._lock = threading.Lock()
        self._n_users = 0
        self._free = (1 << self._n_slots) - 1
        self._offered = 0
        self._turn = 0

    def hold(self) -> None:
        """Count one more user."""
        with self._lock:
            self._n_users += 1

    def release(self) -> None:
        """Count one user less; the last one frees it, on each rank at its own time."""
        with self._lock:
            self._n_users -= 1
            last = not self._n_users
        if last:
            self.comm.Free()

    def agree_on_slot(self, comm: MPI.Intracomm) -> int | None:
        """A slot that is free on all ranks of ``comm``, taken. Collective; None if there is none.

        A slot is offered by one thread at a time. So each offer has a few slots only, and the next
        offer others; rank 0 decides which.
        """
        turn, n_bytes = 0, self._n_slots // 8 + 1
        n_bits = N_OFFERS * (self._n_slots // N_OFFERS + 1)
        every = ((1 << n_bits) - 1) // ((1 << N_OFFERS) - 1)  # one in so many
        for _ in range(N_TRIES):
            with self._lock:
                free = self._free
                offer = free & every << turn % N_OFFERS & ~self._offered
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
        """Tags of a slot."""
        return range(slot * self._tags_per_slot, (slot + 1) * self._tags_per_slot)

    def return_slot(self, slot: int) -> None:
        """Give a slot back: this rank has no messages under way in it."""
        with self._lock:
            self._free |= 1 << slot


class Place(NamedTuple):
    """What a child gets: a private communicator, its ranks there are those of ``ranks``, and tags.

    ``ranks`` are the parent's, None where they are the same; ``tags`` is None for a child that has
    to agree on a slot.
    """

    private: PrivateComm
    ranks: Sequence[int] | None
    tags: range | None


class Channel:
    """A communicator's own messages; ``comm`` is that communicator as plain mpi4py has it."""

    def __init__(self, comm: MPI.Intracomm, place: Place) -> None:
        self.comm = comm
        self._private, self._ranks, self._tags = place
        self._room: Place | None = None
        self._is_divided = False
        self._slot: int | None = None
        self._private.hold()

    @classmethod
    def create(cls, comm: MPI.Intracomm, own: MPI.Intracomm, threads: bool) -> Channel:
        """A channel on its own private communicator, made by `new_private`."""
        private = PrivateComm(own, N_BANDS if threads else 1)
        return cls(comm, Place(private, None, private.tags))

    @property
    def private(self) -> MPI.Intracomm:
        """The private communicator of this channel."""
        return self._private.comm

    @property
    def is_open(self) -> bool:
        """Whether it has tags, on all ranks."""
        return self._tags is not None

    def open(self) -> None:
        """Agree on tags, if not done yet. Collective, in a call that may block."""
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
        """The place of the next child. To be called by all ranks of this communicator.

        Collective where the last part has been given away and one ``may_wait``; without that, the
        child agrees on a slot.
        """
        self._divide()
        room = self._room
        if room is not None and room.tags is not None and len(room.tags) < room.private.part:
            self._leave_room()
            room = None
        if room is None and may_wait and self.is_open:
            private = PrivateComm(new_private(self.comm), self._private.n_bands)
            private.hold()
            room = Place(private, None, private.tags)
        if room is None or room.tags is None:
            return self.place_in_group()
        n_tags = max(len(room.tags) // N_CHILDREN, room.private.part)
        self._room = Place(room.private, room.ranks, room.tags[n_tags:])
        return Place(room.private, room.ranks, room.tags[:n_tags])

    def place_in_group(self) -> Place:
        """The place of a child that not all ranks take part in."""
        return Place(self._private, self._ranks, None)

    def _divide(self) -> None:
        """Divide the tags, once, into our own and those for children."""
        if not self._is_divided and self._tags is not None:
            n_own = max(len(self._tags) // OWN, self._private.part)
            self._room = Place(self._private, self._ranks, self._tags[n_own:])
            self._tags = self._tags[:n_own]
            self._is_divided = True

    def _leave_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and room.private is not self._private:
            room.private.release()

    @cached_property
    def transport(self) -> CountingTransport:
        """Transport for the messages of one call at a time, counted."""
        return CountingTransport(self.messages, Sent(self.comm.Get_size()))

    @property
    def messages(self) -> MPITransport:
        """The same, not counted: for measurements between calls."""
        return MPITransport(self._private.comm, self._band(0), self._ranks)

    @cached_property
    def bands(self) -> Bands:
        """Where non-blocking calls run."""
        private, ranks = self._private, self._ranks
        transports = [
            MPITransport(private.comm, self._band(number), ranks)
            for number in range(1, private.n_bands)
        ]
        return Bands(self.comm, transports)

    def sent(self, rank: int) -> list[tuple[int, int, int, int]]:
        """What calls sent so far, as `Sent.rows` has it. Makes nothing that no call has needed."""
        made = self.__dict__
        rows = self.transport.sent.rows(rank) if "transport" in made else []
        return rows + self.bands.rows(rank) if "bands" in made else rows

    def _band(self, number: int) -> range:
        self._divide()
        tags = self._tags or range(0)
        n_tags = len(tags) // self._private.n_bands
        return tags[number * n_tags : (number + 1) * n_tags]

    def free(self) -> None:
        """Give everything back, after waiting for what is under way.

        Remaining persistent requests keep the channel alive, as they do the user's communicator.
        """
        if "bands" in self.__dict__:
            self.bands.drain()
            if self.bands.in_use:
                return
        self._leave_room()
        if self._slot is not None:
            self._private.return_slot(self._slot)
        self._private.release()


def place_of(place: Place, ranks: Sequence[int]) -> Place:
    """``place``, of a child whose rank ``i`` is its parent's ``ranks[i]``."""
    base = place.ranks
    there = ranks if base is None else [base[rank] for rank in ranks]
    return Place(place.private, there, place.tags)
