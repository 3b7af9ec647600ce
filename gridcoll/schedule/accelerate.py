"""Compiles the inner loops of the search if numba is installed (extra ``fast``).

A kernel is a plain function over flat sequences: lists in plain Python, arrays when compiled. Both
do the same operations in the same order, so results do not depend on which one ran. Functions that
kernels call are marked with `helper`.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gridcoll.errors import UsageError
from gridcoll.schedule.instance import Instance

Buffer = Any
"""A flat list or array of numbers; kernels only index it."""


class Problem(NamedTuple):
    """An `Instance` as kernels read it. Matrices are flat: entry (i, j) is at ``i * n + j``.

    ``cost_in`` and ``busy_in`` have the receiver first, for loops over the senders to one receiver.
    ``tail[v]`` is the time that v needs after its last send, ``lift[v]`` the time that it needs
    after its arrival: T and 0 if internal broadcasts start after the last send, 0 and T if they
    start at the arrival. ``near`` lists, for each cluster, all others by how long they keep it
    busy, ascending.
    """

    n: int
    root: int
    latency: Buffer
    cost: Buffer
    busy: Buffer
    cost_in: Buffer
    busy_in: Buffer
    own: Buffer
    tail: Buffer
    lift: Buffer
    near: Buffer


@functools.cache
def has_numba() -> bool:
    """Whether numba is installed. It is not imported, which would take half a second."""
    return importlib.util.find_spec("numba") is not None


_HELPERS: list[Callable[..., Any]] = []
_Function = TypeVar("_Function", bound=Callable[..., Any])


def helper(function: _Function) -> _Function:
    """Mark a function that kernels call, so that it is compiled with them; return it unchanged."""
    _HELPERS.append(function)
    return function


@functools.cache
def _compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    import numba
    from numba.extending import register_jitable

    while _HELPERS:
        register_jitable(_HELPERS.pop())
    compiled: Callable[..., Any] = numba.njit(cache=True, nogil=True)(kernel)
    return compiled


_warm = threading.Event()


def set_warm() -> None:
    """Record that compiled kernels are loaded in this process."""
    _warm.set()


def is_warm() -> bool:
    """Whether compiled kernels are loaded in this process."""
    return _warm.is_set()


class Runner:
    """Runs kernels, compiled or plain, and makes buffers for them.

    With ``compiled`` None, kernels run compiled if they are loaded already (`warm_up`). Raises
    `UsageError` if ``compiled`` is true and numba is not installed.
    """

    def __init__(self, compiled: bool | None) -> None:
        if compiled and not has_numba():
            raise UsageError("accelerate: numba is not installed; pip install numba")
        self.compiled = is_warm() if compiled is None else compiled

    def __call__(self, kernel: Callable[..., Any], *arguments: object) -> Any:
        return (_compiled(kernel) if self.compiled else kernel)(*arguments)

    @property
    def steps_per_s(self) -> float:
        """A guess at the number of elementary steps per second."""
        return 2e8 if self.compiled else 5e6

    def floats(self, size: int, value: float = 0.0) -> Buffer:
        return np.full(size, value) if self.compiled else [value] * size

    def integers(self, size: int, value: int = 0) -> Buffer:
        return np.full(size, value, dtype=np.int64) if self.compiled else [value] * size

    def indices(self, values: Sequence[int]) -> Buffer:
        return np.array(values, dtype=np.int64) if self.compiled else list(values)

    def _flat(self, values: npt.NDArray[np.float64]) -> Buffer:
        return values.ravel() if self.compiled else [float(x) for x in values.ravel()]

    def problem(self, instance: Instance) -> Problem:
        """Return the instance in the form that kernels read."""
        own = instance.internal_s
        zeros = np.zeros_like(own)
        late = instance.accounting.internal == "after-last-send"
        tail, lift = (own, zeros) if late else (zeros, own)
        cost, busy = instance.cost_s, instance.busy_s
        to_others = busy.copy()
        np.fill_diagonal(to_others, np.inf)
        near = to_others.argsort(axis=1, kind="stable")[:, :-1].ravel()
        return Problem(
            n=instance.n_clusters,
            root=instance.root,
            latency=self._flat(instance.latency_s),
            cost=self._flat(cost),
            busy=self._flat(busy),
            cost_in=self._flat(cost.T),
            busy_in=self._flat(busy.T),
            own=self._flat(own),
            tail=self._flat(tail),
            lift=self._flat(lift),
            near=self.indices([int(v) for v in near]),
        )
