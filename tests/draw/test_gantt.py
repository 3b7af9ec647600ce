from __future__ import annotations

from gridcoll.draw.figures import write_picture
from gridcoll.draw.gantt import MAX_LANES, Bar, bars_of, draw_gantt, gantt_text
from gridcoll.plan import Chunk, Copy, Plan, Recv, Send
from gridcoll.plan.cost import Timeline
from gridcoll.topology import Grid

PIECE = Chunk("output", 0, 8)
PLAN = Plan(
    "bcast",
    "by hand",
    8,
    0,
    (
        (Send(2, PIECE, 0), Send(1, PIECE, 0)),
        (Recv(0, PIECE, 0), Copy(PIECE, Chunk("scratch", 0, 8))),
        (Recv(0, PIECE, 0),),
    ),
)
GRID = Grid.from_labels(["near", "near", "far"])
TIMELINE = Timeline(
    start_s=((0.0, 1.0), (1.5, 2.5), (3.0,)), end_s=((1.0, 2.0), (2.5, 2.75), (4.0,))
)


def test_bars_tell_far_sends_from_near_ones():
    assert list(bars_of(PLAN, TIMELINE, GRID, 0)) == [
        Bar("send far", 0.0, 1.0),
        Bar("send near", 1.0, 2.0),
    ]
    assert [bar.kind for bar in bars_of(PLAN, TIMELINE, GRID, 1)] == ["receive", "compute"]
    assert list(bars_of(PLAN, TIMELINE, GRID, 2)) == [Bar("receive", 3.0, 4.0)]


def test_the_chart_on_a_terminal():
    lines = gantt_text(PLAN, TIMELINE, GRID, width=16).plain.splitlines()
    assert lines == [
        "near 0 ████▓▓▓▓········",
        "     1 ······░░░░▞·····",
        "far  2 ············░░░░",
        "       0            4 s",
        "█ sends to another cluster   ▓ sends inside its cluster   ░ receives   "
        "▞ reduces or copies",
    ]


def test_ranks_that_do_nothing_are_idle():
    plan = Plan("bcast", "", 0, 0, ((), (), ()))
    timeline = Timeline(((), (), ()), ((), (), ()))
    lines = gantt_text(plan, timeline, GRID, width=8).plain.splitlines()
    assert lines[0] == "near 0 ········"
    assert timeline.makespan_s == 0.0


def test_large_clusters_show_their_first_lanes():
    n = MAX_LANES + 5
    plan = Plan("bcast", "", 8, 0, ((),) * n)
    timeline = Timeline(((),) * n, ((),) * n)
    lines = gantt_text(plan, timeline, Grid.from_labels("a" * n), width=8).plain.splitlines()
    assert len([line for line in lines if "····" in line]) == MAX_LANES
    assert lines[MAX_LANES].strip() == "… 5 more"


def test_the_picture_has_every_bar(tmp_path):
    figure = draw_gantt(PLAN, TIMELINE, GRID)
    (axes,) = figure.axes
    spans = [path.get_extents() for bars in axes.collections for path in bars.get_paths()]
    assert sorted((round(box.x0), round(box.x1)) for box in spans) == [
        (0, 1000), (1000, 2000), (1500, 2500), (2500, 2750), (3000, 4000),
    ]  # fmt: skip
    path = tmp_path / "gantt.svg"
    write_picture(figure, path)
    text = path.read_text()
    for said in ("bcast, 8 bytes: 4 s", ">near<", ">far<", "sends to another cluster"):
        assert said in text
