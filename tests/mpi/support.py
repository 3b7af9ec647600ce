"""Declared grids over however many ranks there are, and a pair of communicators to compare."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid
from tests.plan.grids import model_of

SIZES = (0, 1, 2, 3, 7, 64, 1009, 8191, 65537, 300007)
"""Message sizes in elements: none, one, odd, just beyond what is sent eagerly, and large."""

TESTSOME_CRASHES = MPI.Get_library_version().startswith("Open MPI")
"""Open MPI 5.0.11 crashes in a Testsome that has a message of a kilobyte that is longer than its
receive, and says nothing of one of sixteen bytes."""


SHARED = " on shared hosts"
"""After a layout's name: ranks of a cluster share hosts; else each has its own."""


def layouts(n_ranks: int) -> dict[str, list[int]]:
    """Cluster of each rank, by what is special about it; those that this many ranks can form."""
    everything = {
        "one cluster": [0] * n_ranks,
        "two": [int(r >= (n_ranks + 1) // 2) for r in range(n_ranks)],
        "three": [r * 3 // n_ranks for r in range(n_ranks)],
        "interleaved": [r % 2 for r in range(n_ranks)],
        "three interleaved": [r % 3 for r in range(n_ranks)],
        "lonely root": [int(r > 0) for r in range(n_ranks)],
        "all alone": list(range(n_ranks)),
    }
    found: dict[str, list[int]] = {}
    for name, labels in everything.items():
        if labels not in found.values():
            found[name] = labels
    return found


def shared_hosts(labels: Sequence[int]) -> list[str]:
    """Hosts by rank: about two ranks of a cluster on each, dealt out over them in turn."""
    places = [labels[:rank].count(label) for rank, label in enumerate(labels)]
    n_hosts = {label: max(labels.count(label) // 2, 1) for label in labels}
    return [f"{c}-{at % n_hosts[c]}" for c, at in zip(labels, places, strict=True)]


def grid_model(
    labels: Sequence[int], native_s: float | None = None, hosts: Sequence[str] = ()
) -> GridModel:
    """A model in which several flows carry more than one, so that lanes make sense, too.

    Equal arguments give the same object, so that tests share choices.
    """
    return _grid_model(tuple(labels), native_s, tuple(hosts))


@lru_cache(maxsize=64)
def _grid_model(
    labels: tuple[int, ...], native_s: float | None, hosts: tuple[str, ...]
) -> GridModel:
    model = model_of(labels, native_s=native_s, together=1e9)
    return replace(model, grid=Grid.from_labels(labels, hosts)) if hosts else model


@contextmanager
def thin_comm(world: MPI.Intracomm, layout: str) -> Iterator[GridComm]:
    """Links between clusters carry a sixth of what an interface does."""
    labels = layouts(world.Get_size())[layout]
    comm = GridComm(world, model=_of_rates(tuple(labels), (125e6, 20e6, 20e6)))
    yield comm
    comm.Free()


@contextmanager
def unlike_comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    """Three clusters; the link between the first two carries a tenth of what the others do."""
    labels = tuple(rank % 3 for rank in range(world.Get_size()))
    comm = GridComm(world, model=_of_rates(labels, (125e6, 100e6, 10e6)))
    yield comm
    comm.Free()


@lru_cache(maxsize=16)
def _of_rates(labels: tuple[int, ...], bytes_per_s: tuple[float, float, float]) -> GridModel:
    """Rates inside clusters, between them, and between the first two."""
    grid = Grid.from_labels(labels)
    places = range(len(grid.clusters))
    near, far, thin = (
        linear_plogp(latency_s, rate)
        for latency_s, rate in zip((50e-6, 1e-3, 1e-3), bytes_per_s, strict=True)
    )
    links = tuple(
        tuple(near if a == b else thin if a + b == 1 else far for b in places) for a in places
    )
    return GridModel(grid, links)


@contextmanager
def grid_comm(
    world: MPI.Intracomm,
    labels: Sequence[int] | None = None,
    native_s: float | None = None,
    hosts: Sequence[str] = (),
) -> Iterator[GridComm]:
    """A `GridComm` over a duplicate of ``world``; two clusters unless told otherwise."""
    if labels is None:
        labels = layouts(world.Get_size()).get("two", [0] * world.Get_size())
    own = world.Dup()
    comm = GridComm(own, model=grid_model(labels, native_s, hosts))
    try:
        yield comm
    finally:
        comm.Free()
        own.Free()


def pattern(n: int, dtype: str = "i4", seed: int = 0) -> np.ndarray:
    """``n`` elements of which no two stretches are alike."""
    random = np.random.default_rng(n * 7919 + seed)
    return random.integers(0, 127, n).astype(dtype)


def works(comm: MPI.Intracomm) -> None:
    """Whatever was done to others, or went wrong on it before, ``comm`` is of use."""
    for root in {0, comm.Get_size() - 1}:
        buffer = np.full(500, root if comm.Get_rank() == root else -1)
        comm.Bcast(buffer, root)
        assert (buffer == root).all()
        assert comm.bcast(comm.Get_rank(), root) == root
    assert comm.allreduce(1) == comm.Get_size()


def bytes_kept(calls: Callable[[int], None], n_calls: int) -> int:
    """What Python holds more after so many calls than after two; what is made once is made."""
    gc.collect()
    tracemalloc.start()
    calls(2)
    before, _ = tracemalloc.get_traced_memory()
    calls(n_calls)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The arguments of each call of a function of ``module``, from now on."""
    calls: list[Any] = []
    plain = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)
    return calls


def together(*steps: Callable[[], None]) -> None:
    """Run each in a thread of its own; raise what the first that failed raised."""
    errors: list[BaseException] = []

    def guard(step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
