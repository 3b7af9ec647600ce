from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.errors import FileError, UsageError
from gridcoll.model import (
    Correction,
    GridModel,
    PLogP,
    TimesBySize,
    digest,
    format_model,
    parse_model,
    read_model,
    write_model,
)
from gridcoll.topology import Cluster, Grid, Process

seconds = st.floats(0, 1e3)
names = st.text(max_size=8)
times = st.builds(lambda long_s: TimesBySize((8, 64), (1e-3, long_s)), seconds)
corrections = st.builds(lambda by: Correction((8, 64), (by, 1.0)), st.floats(0.01, 100))


@st.composite
def links(draw: st.DrawFn) -> PLogP:
    n = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(0, 1 << 40), min_size=n, max_size=n, unique=True))
    table = st.lists(seconds, min_size=n, max_size=n).map(tuple)
    return PLogP(
        draw(seconds),
        tuple(sorted(sizes)),
        draw(table),
        draw(table),
        draw(table),
        draw(st.one_of(st.just(()), table)),
    )


@st.composite
def models(draw: st.DrawFn) -> GridModel:
    labels = draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    grid = Grid.from_labels(labels, [draw(names) for _ in labels])
    named = tuple(
        replace(c, name=draw(names), site=draw(names), region=draw(names)) for c in grid.clusters
    )
    n = len(named)
    table = tuple(
        tuple(
            None if i == j and len(named[i]) == 1 and draw(st.booleans()) else draw(links())
            for j in range(n)
        )
        for i in range(n)
    )
    native = {
        name: TimesBySize((1, 2), (draw(seconds), draw(seconds)))
        for name in draw(st.sets(st.sampled_from(["bcast", "allreduce", "alltoall"])))
    }
    return GridModel(
        Grid(named, draw(names)),
        table,
        draw(st.sampled_from(["measured", "declared"])),
        draw(st.floats(0, 9)),
        native,
        draw(st.sampled_from([None, TimesBySize((0, 5), (1e-6, 2e-6))])),
        draw(st.sampled_from([(), ((draw(st.floats(1e-9, 1e12)),) * n,) * n])),
        corrections=draw(st.dictionaries(names, st.dictionaries(names, corrections, max_size=2))),
        native_variants=draw(st.dictionaries(names, st.dictionaries(names, times, max_size=2))),
        mpi=draw(names),
    )


@settings(max_examples=60)
@given(models())
def test_parse_is_the_reverse_of_format(model: GridModel) -> None:
    again = parse_model(format_model(model))
    assert again == model
    assert digest(again) == digest(model)


def test_files(model: GridModel, tmp_path: Path) -> None:
    write_model(model, tmp_path / "model.json")
    assert read_model(tmp_path / "model.json") == model
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"model file .*/none.json: .*No such file"):
        read_model(tmp_path / "none.json")


def test_a_directory_that_is_not_there(model: GridModel, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot write .*/none/model.json"):
        write_model(model, tmp_path / "none" / "model.json")


@pytest.mark.parametrize("version", [6, 8])
def test_files_of_another_version_are_refused(model: GridModel, version: int) -> None:
    other = document(model)
    other["version"] = version
    with pytest.raises(FileError, match=f"version {version}: this gridcoll reads 7; measure again"):
        parse_model(json.dumps(other).encode())


def test_the_mpi_library_may_be_unknown(model: GridModel, tmp_path: Path) -> None:
    """As in files from before it was noted."""
    model = replace(model, mpi="MPICH")
    write_model(model, tmp_path / "model.json")
    assert read_model(tmp_path / "model.json").mpi == "MPICH"
    older = document(model)
    del older["mpi"]
    assert parse_model(json.dumps(older).encode()) == replace(model, mpi="")


Change = Callable[[dict[str, Any]], object]


def document(model: GridModel) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(format_model(model))
    return decoded


WRONG: dict[str, tuple[Change, str]] = {
    "another format": (
        lambda d: d.update(format="other"),
        "format: expected 'gridcoll-model', got 'other'",
    ),
    "a missing field": (lambda d: d.pop("links"), "missing required field `links`"),
    "an unknown field": (lambda d: d.update(extra=1), "unknown field `extra`"),
    "an unknown origin": (lambda d: d.update(origin="guessed"), r"'guessed'.*\$.origin"),
    "a wrong type": (lambda d: d.update(tolerance="big"), r"Expected `float`.*\$.tolerance"),
    "a negative time": (lambda d: d["links"][0].update(latency_s=-1.0), r">= 0.*latency_s"),
    "contention of some": (lambda d: d.update(contention=[1.0]), "contention: must be 3 numbers"),
    "negative contention": (lambda d: d.update(contention=[-1.0]), r">= 0.*contention"),
    "a negative table": (lambda d: d["links"][0]["gap_s"].__setitem__(0, -1.0), r">= 0.*gap_s"),
    "too few values": (lambda d: d["links"][0]["gap_s"].pop(), "gap_s: 2 values for 3 sizes"),
    "sizes in disorder": (lambda d: d["links"][0]["sizes_bytes"].reverse(), "ascending"),
    "more hosts than ranks": (lambda d: d["clusters"][0]["hosts"].append("x"), "argument"),
    "a rank twice": (
        lambda d: d["clusters"][0].update(ranks=[0, 1]),
        "every rank 0..n-1 must be in exactly one cluster",
    ),
    "clusters in disorder": (lambda d: d["clusters"].reverse(), "ordered by their lowest rank"),
    "a cluster of nobody": (
        lambda d: d["clusters"][1].update(ranks=[], hosts=[]),
        "needs at least one process",
    ),
    "a link from nowhere": (
        lambda d: d["links"][0].update(sender=3),
        "link 3 to 0: there are 3 clusters",
    ),
    "a link to nowhere": (
        lambda d: d["links"][0].update(receiver=-1),
        "link 0 to -1: there are 3 clusters",
    ),
    "a missing link": (lambda d: d["links"].pop(1), r"links\[0\]\[1\]: missing"),
    "a link twice": (
        lambda d: d["links"].append({**d["links"][1], "latency_s": 9.0}),
        "link 0 to 1: given twice",
    ),
    "native sizes without times": (
        lambda d: d["native"]["bcast"]["seconds"].pop(),
        "need as many times as ascending sizes",
    ),
    "variant sizes without times": (
        lambda d: d.update(native_variants={"bcast": {"x": {"sizes_bytes": [8], "seconds": []}}}),
        "need as many times as ascending sizes",
    ),
    "a relay gap in disorder": (
        lambda d: d["relay_gap"]["sizes_bytes"].reverse(),
        "need as many times as ascending sizes",
    ),
    "a negative relay gap": (
        lambda d: d["relay_gap"].update(seconds=[-1, 1]),
        r">= 0.*\$.relay_gap",
    ),
    "flows of too few clusters": (
        lambda d: d["aggregate_bytes_per_s"].pop(),
        "aggregate_bytes_per_s: must be 3 x 3",
    ),
    "a rate of nothing": (
        lambda d: d["aggregate_bytes_per_s"][1].__setitem__(2, 0.0),
        "aggregate_bytes_per_s: must be 3 x 3 and positive",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_refuses(model: GridModel, what: str) -> None:
    change, message = WRONG[what]
    changed = document(model)
    change(changed)
    with pytest.raises(FileError, match=rf"(?s)^model file here: .*{message}"):
        parse_model(json.dumps(changed).encode(), "here")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_refuses_what_is_no_document(data: bytes) -> None:
    with pytest.raises(FileError, match="model file here: "):
        parse_model(data, "here")


def test_the_sample_is_accepted_unchanged(model: GridModel) -> None:
    """Else every refusal above would prove nothing."""
    assert parse_model(json.dumps(document(model)).encode()) == model


def changes(model: GridModel) -> dict[str, GridModel]:
    """``model`` with one thing changed at a time, everything in it once."""
    clusters = model.grid.clusters

    def grid(index: int, cluster: Cluster) -> GridModel:
        changed = (*clusters[:index], cluster, *clusters[index + 1 :])
        return replace(model, grid=Grid(changed, model.grid.name))

    def link(**fields: Any) -> GridModel:
        first = model.links[0][0]
        if first is None:
            raise ValueError("the sample has a link there")
        rows = [list(row) for row in model.links]
        rows[0][0] = replace(first, **fields)
        return replace(model, links=tuple(tuple(row) for row in rows))

    times = (1e-5, 2e-5, 3e-5)
    return {
        "grid name": replace(model, grid=Grid(clusters, "other")),
        "cluster name": grid(0, replace(clusters[0], name="z")),
        "site": grid(1, replace(clusters[1], site="west")),
        "region": grid(2, replace(clusters[2], region="y")),
        "host": grid(1, replace(clusters[1], processes=(Process(1, "b9"),))),
        "latency": link(latency_s=1.1e-5),
        "sizes": link(sizes_bytes=(0, 1001, 100_000)),
        "gap": link(gap_s=times),
        "send": link(send_s=times),
        "recv": link(recv_s=times),
        "alone": link(one_way_s=times),
        "by model": link(one_way_s=()),
        "origin": replace(model, origin="declared"),
        "tolerance": replace(model, tolerance=0.3),
        "mpi": replace(model, mpi="MPICH"),
        "native size": replace(model, native={"bcast": TimesBySize((8, 1001), (1e-3, 5e-3))}),
        "native time": replace(model, native={"bcast": TimesBySize((8, 1000), (1e-3, 6e-3))}),
        "native name": replace(model, native={"alltoall": model.native["bcast"]}),
        "no native": replace(model, native={}),
        "a variant": replace(model, native_variants={"bcast": {"x": TimesBySize((8,), (1e-3,))}}),
        "its name": replace(model, native_variants={"bcast": {"y": TimesBySize((8,), (1e-3,))}}),
        "its time": replace(model, native_variants={"bcast": {"x": TimesBySize((8,), (2e-3,))}}),
        "relay_gap": replace(model, relay_gap=TimesBySize((64, 4096), (2e-6, 4e-6))),
        "no relay gap": replace(model, relay_gap=None),
        "start": replace(model, start_s=1e-3),
        "together": replace(model, aggregate_bytes_per_s=((1e9,) * 3,) * 3),
        "no together": replace(model, aggregate_bytes_per_s=()),
        "uplinks": replace(model, uplink_bytes_per_s=(0.0, 1e6, 0.0)),
        "an uplink": replace(model, uplink_bytes_per_s=(0.0, 2e6, 0.0)),
    }


def test_whatever_changes_changes_the_digest(model: GridModel) -> None:
    digests = {what: digest(changed) for what, changed in changes(model).items()}
    digests["as it was"] = digest(model)
    assert len(set(digests.values())) == len(digests), digests


def test_the_order_of_native_entries_is_nothing(model: GridModel) -> None:
    a, b = TimesBySize((1,), (1.0,)), TimesBySize((1,), (2.0,))
    assert digest(replace(model, native={"x": a, "y": b})) == digest(
        replace(model, native={"y": b, "x": a})
    )


def test_where_links_come_from_is_kept(model: GridModel) -> None:
    """Also for some of the ranks, and in a file."""
    n = model.n_clusters
    assert model.source(0, n - 1) == model.origin
    said = tuple(tuple(f"measured {i}{j}" for j in range(n)) for i in range(n))
    model = replace(model, sources=said)
    assert parse_model(format_model(model)) == model
    ranks = [cluster.coordinator for cluster in model.grid.clusters][::-1]
    part = model.restrict(ranks)
    names = [cluster.name for cluster in part.grid.clusters]
    before = [cluster.name for cluster in model.grid.clusters]
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            assert part.source(i, j) == f"measured {before.index(a)}{before.index(b)}"
    with pytest.raises(UsageError, match="sources"):
        replace(model, sources=said[:-1])
