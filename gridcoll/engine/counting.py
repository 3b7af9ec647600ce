"""Counts the messages and bytes that are handed to MPI."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.engine.executor import Request, Transport
from gridcoll.engine.memory import Pieces, Typed


class Sent:
    """Messages and bytes that one rank sent, by receiver: two arrays (``n_ranks``,).

    The engine in C updates these arrays directly.
    """

    def __init__(self, n_ranks: int) -> None:
        self.messages, self.n_bytes = np.zeros((2, n_ranks), np.int64)

    def add(self, peer: int, n_bytes: int) -> None:
        """Count a message to ``peer``."""
        self.messages[peer] += 1
        self.n_bytes[peer] += n_bytes

    def rows(self, rank: int) -> list[tuple[int, int, int, int]]:
        """Return ``(rank, receiver, messages, bytes)`` by receiver; ``rank`` is the sender.

        Messages of a rank to itself are left out: they only copy between datatypes.
        """
        rows = enumerate(zip(self.messages.tolist(), self.n_bytes.tolist(), strict=True))
        return [(rank, peer, n, n_bytes) for peer, (n, n_bytes) in rows if n and peer != rank]


class CountingTransport:
    """Forwards everything to ``carrier`` and counts sends in ``sent``.

    Several transports of one thread may share a count.
    """

    def __init__(self, carrier: Transport, sent: Sent) -> None:
        self.carrier, self.sent = carrier, sent

    def isend(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> Request:
        self.sent.add(peer, view.nbytes)
        return self.carrier.isend(view, peer, tag)

    def irecv(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> Request:
        return self.carrier.irecv(view, peer, tag)

    def test_some(self, requests: list[Request]) -> Sequence[int]:
        return self.carrier.test_some(requests)
