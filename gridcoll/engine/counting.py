"""What really went out: messages and bytes, counted where they are handed over to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gridcoll.engine.executor import Request, Transport
from gridcoll.engine.memory import Pieces, Typed


@dataclass
class Sent:
    """Messages and bytes of one rank, by receiver."""

    messages: Counter[int] = field(default_factory=Counter)
    n_bytes: Counter[int] = field(default_factory=Counter)

    def add(self, peer: int, n_messages: int, n_bytes: int) -> None:
        """Count messages to ``peer``."""
        self.messages[peer] += n_messages
        self.n_bytes[peer] += n_bytes

    def rows(self, rank: int) -> list[tuple[int, int, int, int]]:
        """``(rank, receiver, messages, bytes)`` by receiver, of the ``rank`` that sent."""
        return [(rank, peer, n, self.n_bytes[peer]) for peer, n in sorted(self.messages.items())]


class CountingTransport:
    """Passes everything on to ``transport`` and counts what is sent, in `sent`.

    One count may serve several transports of one thread.
    """

    def __init__(self, transport: Transport, sent: Sent | None = None) -> None:
        self.carrier = transport
        self.sent = Sent() if sent is None else sent

    def isend(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> Request:
        self.sent.add(peer, 1, view.nbytes)
        return self.carrier.isend(view, peer, tag)

    def irecv(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> Request:
        return self.carrier.irecv(view, peer, tag)

    def test_some(self, requests: list[Request]) -> Sequence[int]:
        return self.carrier.test_some(requests)
