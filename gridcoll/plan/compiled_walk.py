"""Calls `walk.c` through ctypes. Each declaration has its counterpart there.

It is built if a C compiler is available when gridcoll is installed. Without it, `plan.tree_walk`
does the same in Python, with the very same results: ranks of one job may differ in this.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from functools import cache, lru_cache
from math import isnan
from pathlib import Path

import numpy as np
import numpy.typing as npt

_log = logging.getLogger("gridcoll")

LIBRARY = Path(__file__).with_name("_walk.so")

_INTERFACE = 3

_INT, _SECONDS, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p


class _Network(ctypes.Structure):
    _arrays = (
        *("cluster", "first", "count"),
        *("hops_s", "gap_s", "one_way_s", "unblocked_s", "shared_s", "port_s", "uplink_s"),
    )
    _fields_ = [
        *((name, _INT) for name in ("n_hosts", "n_clusters", "root", "way")),
        *((name, _POINTER) for name in _arrays),
    ]


class _Trees(ctypes.Structure):
    _fields_ = [
        *((name, _INT) for name in ("n_trees", "n_segments")),
        *((name, _POINTER) for name in ("parents", "uses")),
        *((name, _SECONDS) for name in ("period_s", "ahead_s", "most_s")),
    ]


class Network:
    """Hosts, and times of messages of one length, as `walk.c` reads them.

    ``hosts``: by host its cluster, the first host of its kind, and how many are of its kind.
    ``times_s``: hops, gaps, one-way times, unblocked ones and times on shared bandwidth by pair of
    clusters, (C, C) each; times of interfaces and of uplinks by cluster. ``root`` is a host, or -1;
    ``way`` is one of those of `tree_walk`.
    """

    def __init__(
        self,
        root: int,
        way: int,
        hosts: Sequence[Sequence[int]],
        times_s: Sequence[Sequence[object]],
    ) -> None:
        # The structure has only the addresses of these arrays.
        self._arrays = [np.array(each, dtype=np.int64) for each in hosts]
        self._arrays += [np.array(each, dtype=np.float64) for each in times_s]
        n_hosts, n_clusters = len(hosts[0]), len(times_s[0])
        addresses = (each.ctypes.data for each in self._arrays)
        self.structure = _Network(n_hosts, n_clusters, root, way, *addresses)


class WalkLibrary:
    """The function of `walk.c`."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        if library.gridcoll_walk_interface() != _INTERFACE:
            raise OSError(f"{path}: was built from another version")
        self._walk = library.gridcoll_walk
        self._walk.argtypes = [ctypes.POINTER(each) for each in (_Network, _Trees, _INT)]
        self._walk.restype = _SECONDS

    def total_s(
        self,
        network: Network,
        trees: Sequence[Sequence[int]],
        uses: Sequence[tuple[int, int]],
        period_s: float,
        ahead_s: float,
        most_s: float,
    ) -> tuple[float, int]:
        """Return what `TreeWalk.total_s` does, and how many messages were simulated."""
        parents, turns = np.array(trees, dtype=np.int64), _array_of(tuple(uses))
        addresses = parents.ctypes.data, turns.ctypes.data
        structure = _Trees(len(trees), len(turns), *addresses, period_s, ahead_s, most_s)
        n_messages = _INT(0)
        total_s = self._walk(network.structure, structure, n_messages)
        if isnan(total_s):
            raise MemoryError("no memory to simulate trees")
        return total_s, n_messages.value


@lru_cache(maxsize=256)
def _array_of(uses: tuple[tuple[int, int], ...]) -> npt.NDArray[np.int64]:
    return np.array(uses, dtype=np.int64)


@cache
def load_walk() -> WalkLibrary | None:
    """Return the compiled walk; None if it was not built, or not for this machine."""
    if not LIBRARY.exists():
        return None
    try:
        return WalkLibrary(LIBRARY)
    except (OSError, AttributeError) as error:
        _log.warning("gridcoll: plans are simulated in Python: %s; install gridcoll again", error)
        return None
