"""A plan with a clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeline:
    """When every op of a plan starts and ends, in seconds after the call.

    A send lasts as long as it keeps its rank's network interface; a receive from when its message
    begins to come in until it is there.
    """

    start_s: tuple[tuple[float, ...], ...]
    end_s: tuple[tuple[float, ...], ...]
    """``start_s[rank][op]``, in the order of the rank's program."""

    @property
    def makespan_s(self) -> float:
        """When the last op ends; 0 if there is none."""
        return max((end for ends in self.end_s for end in ends), default=0.0)

    def done_s(self, rank: int) -> float:
        """When ``rank`` has done its last op; 0 if it has none."""
        return max(self.end_s[rank], default=0.0)
