"""Plans as text, and plans on file: a changed plan is a difference to be reviewed.

After a change that is meant, ``GOLDEN=write pytest tests/plan/test_text.py`` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import FileError, UsageError
from gridcoll.plan import Chunk, Copy, Plan, Recv, Reduce, Send
from gridcoll.plan.allgather.trees import plan_allgather, plan_leaders
from gridcoll.plan.allgather.ways import LaneTrees
from gridcoll.plan.bcast.strategies import (
    plan_bcast_rendezvous,
    plan_scatter_collection,
    rank_order_tree,
)
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.gather.mirror import plan_gather
from gridcoll.plan.pacing import Pace
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.scatter.trees import plan_scatter
from gridcoll.plan.trees import GridTree, RankTree
from gridcoll.topology import Grid
from tests.plan_text import format_plan, parse_plan

FOLDER = Path(__file__).parent / "golden"

THREE = Grid.from_labels("aabbbc")
SCRAMBLED = Grid.from_labels("abcabc")


GOLDEN: dict[str, Callable[[], Plan]] = {
    "bcast-flat-4": lambda: plan_bcast([rank_order_tree("flat", 4, 0)], 10, 10, "flat"),
    "bcast-binomial-8": lambda: plan_bcast([rank_order_tree("binomial", 8, 0)], 10, 10, "binomial"),
    "bcast-binary-7": lambda: plan_bcast(
        [rank_order_tree("binary", 7, 0)], 10, 5, "binary, 2 segments"
    ),
    "bcast-2-chain-6": lambda: plan_bcast([rank_order_tree("2-chain", 6, 0)], 10, 10, "2-chain"),
    "bcast-chain-4-root-2": lambda: plan_bcast(
        [rank_order_tree("chain", 4, 2)], 10, 4, "3 segments"
    ),
    "bcast-grid-relays-first": lambda: plan_bcast(
        [GridTree(0, ((0, 1), (0, 2)), ("chain", "flat", "flat"), (0, 0, 0)).expand(THREE)],
        8, 8, "root cluster serves both",
    ),
    "bcast-grid-chain-of-chains": lambda: plan_bcast(
        [GridTree(1, ((1, 2), (2, 0)), ("chain",) * 3, (1, 1, 1)).expand(SCRAMBLED)],
        8, 4, "scrambled ranks",
    ),
    "bcast-two-trees": lambda: plan_bcast(
        [RankTree(0, ((1,), (2,), ())), RankTree(0, ((2,), (), (1,)))], 8, 2, "taking turns"
    ),
    "bcast-binomial-4-rendezvous": lambda: plan_bcast_rendezvous(
        rank_order_tree("binomial", 4, 0), 10, "binomial, asking first"
    ),
    "bcast-scatter-collection-4-root-2": lambda: plan_scatter_collection((2, 3, 0, 1), 8, "shares"),
    "scatter-binomial-4-root-2": lambda: plan_scatter(
        rank_order_tree("binomial", 4, 2), 5, label="binomial"
    ),
    "scatter-chain-4-pipelined": lambda: plan_scatter(
        rank_order_tree("chain", 4, 0), 5, pipelined=True, label="block after block"
    ),
    "scatter-flat-4-paced": lambda: plan_scatter(
        rank_order_tree("flat", 4, 1), 5, pace=Pace(2e-6), label="one by one"
    ),
    "gather-binomial-4-root-2": lambda: plan_gather(
        plan_scatter(rank_order_tree("binomial", 4, 2), 5), "binomial, backwards"
    ),
    "allgather-lanes-uneven": lambda: plan_allgather(
        LaneTrees(THREE), [4, 0, 2, 2, 3, 1], 2, "lanes"
    ),
    "allgather-leaders": lambda: plan_leaders(SCRAMBLED, [2] * 6, "flat", "scrambled"),
    "reduce-scatter-lanes": lambda: plan_reduce_scatter(LaneTrees(THREE), [2] * 6, 2, "lanes"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_plans_are_as_on_file(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    text = format_plan(GOLDEN[name]())
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


def test_every_file_has_its_plan() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(GOLDEN)


@st.composite
def chunks(draw: st.DrawFn, size: int | None = None, into: bool = False) -> Chunk:
    start = draw(st.integers(0, 50))
    length = draw(st.integers(0, 50)) if size is None else size
    # Into one buffer and out of the others: they never overlap.
    return Chunk("scratch" if into else draw(st.sampled_from(["input", "output"])), start,
                 start + length)  # fmt: skip


@st.composite
def ops(draw: st.DrawFn) -> Send | Recv | Reduce | Copy:
    kind = draw(st.sampled_from([Send, Recv, Reduce, Copy]))
    small = st.integers(0, 99)
    if kind is Send:
        after = draw(st.none() | chunks(into=True))
        return Send(draw(small), draw(chunks()), draw(small), after, draw(small))
    if kind is Recv:
        return Recv(draw(small), draw(chunks(into=True)), draw(small), draw(small))
    source = draw(chunks())
    into = draw(chunks(source.size, into=True))
    return Copy(source, into) if kind is Copy else Reduce(source, into, draw(st.booleans()))


@given(
    st.lists(st.lists(ops(), max_size=5).map(tuple), max_size=4).map(tuple),
    st.integers(-1, 3),
    st.sampled_from(["", "x", "chain: 4 KiB → 3 trees, ρ"]),
    st.booleans(),
)
def test_parse_is_the_reverse_of_format(
    programs: tuple[tuple[Send, ...], ...], root: int, label: str, scratch: bool
) -> None:
    units = tuple(range(len(programs))) if scratch else ()
    plan = Plan("allreduce", label, 70, root, programs, units)
    assert parse_plan(format_plan(plan)) == plan


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "plan p: it is empty"),
        ("plan bcast root x units 3", "plan p, line 1: expected 'plan NAME root R units N"),
        ("plan bcast root 0 units 3\nrank 1", "line 2: expected rank 0, got rank 1"),
        ("plan bcast root 0 units 3\nsend output[0:1] to 1 tag 0", "line 2: expected 'rank 0'"),
        ("plan b root 0 units 3\nrank 0\n  send output[0:1] to 1", "line 3: expected send, recv"),
        ("plan b root 0 units 3\nrank 0\n\n  send nowhere[0:1] to 1 tag 0", "line 4: .*buffers"),
        ("plan b root 0 units 3\nrank 0\n  recv input[0:1] from 1 tag 0", "line 3: .*only read"),
        (
            "plan b root 0 units 3\nrank 0\n  send input[0:1] to 1 tag 0 due -4 us",
            "line 3: .*is due before its program begins",
        ),
        ("plan b root 0 units 3\nrank 0 scratch 4\nrank 1", "for all ranks or for none"),
    ],
)
def test_mistakes_name_the_line(text: str, says: str) -> None:
    with pytest.raises(FileError, match=says):
        parse_plan(text, "p")


def test_a_label_that_would_not_come_back_is_refused() -> None:
    for label in ("two\nlines", "two\u2028lines", " space"):
        with pytest.raises(UsageError, match="label"):
            format_plan(Plan("bcast", label, 1, 0, ((),)))
