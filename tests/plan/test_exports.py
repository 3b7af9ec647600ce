"""Plans as GOAL schedules and as traces of SMPI: what is written is read back and walked."""

from __future__ import annotations

import re
from collections import Counter, deque

import pytest

from gridcoll.bench.simgrid import host_lines, platform_lines, smpi_settings
from gridcoll.errors import PlanError
from gridcoll.model.gridmodel import GridModel, declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import Copy, Plan, Recv, Send, choose
from gridcoll.plan.exports import goal_lines, smpi_lines
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from tests.plan.handmade import chain, out, plan

GRID = """
version = 1
name = "trio"
clusters = [
  { name = "a", hosts = 3, nic = "100 Mbit/s", slots = 2 },
  { name = "b", hosts = 2, nic = "100 Mbit/s", uplink = "50 Mbit/s" },
  { name = "c", hosts = 1, nic = "100 Mbit/s" },
]
default_link = { latency = "7 ms", rate = "50 Mbit/s" }
"""
CALLS = [("bcast", 1 << 20), ("allreduce", 1 << 16), ("alltoall", 1 << 10), ("gather", 100)]


def spec() -> GridSpec:
    return parse_gridfile(GRID)


def model() -> GridModel:
    return declared_model(spec(), spec().rank_hosts())


def chosen(collective: str, n_bytes: int) -> Plan:
    build = choose(collective, model(), n_bytes, 0, grid_only=True).winner.build
    assert build is not None
    return build(n_bytes)


def messages(of: Plan) -> Counter[tuple[int, int, int]]:
    """Sender, receiver and size of each message."""
    return Counter(
        (rank, op.peer, op.chunk.size)
        for rank, program in enumerate(of.programs)
        for op in program
        if isinstance(op, Send)
    )


# GOAL.

TASK = re.compile(
    r"(\w+): (?:(send|recv) (\d+)b (?:to|from) (\d+) tag (\d+)|calc (\d+)(?: cpu 1)?)"
)
NEEDS = re.compile(r"(\w+) requires (\w+)")


def walk_goal(text: str) -> Counter[tuple[int, int, int]]:
    """Run a GOAL schedule to its end; returns its messages. Raises where that cannot be done."""
    head, *lines = [line for line in text.splitlines() if line]
    n_ranks = int(head.removeprefix("num_ranks "))
    tasks: dict[tuple[int, str], tuple[str, ...] | None] = {}
    needs: dict[tuple[int, str], set[tuple[int, str]]] = {}
    rank = -1
    for line in lines:
        if line == f"rank {rank + 1} {{":
            rank += 1
        elif match := TASK.fullmatch(line):
            assert (rank, match[1]) not in tasks
            tasks[rank, match[1]] = match.groups()[1:5] if match[2] else None
            needs[rank, match[1]] = set()
        elif match := NEEDS.fullmatch(line):
            needs[rank, match[1]].add((rank, match[2]))
        else:
            assert line == "}", line
    assert rank == n_ranks - 1
    assert all(needed in tasks for of in needs.values() for needed in of)
    done: set[tuple[int, str]] = set()
    sent: dict[tuple[int, int, str], str] = {}
    found: Counter[tuple[int, int, int]] = Counter()
    look = deque(tasks)
    idle = 0
    while look and idle <= len(look):
        at = look.popleft()
        task, idle = tasks[at], idle + 1
        if not needs[at] <= done:
            look.append(at)
            continue
        if task is not None and task[0] == "send":
            key = at[0], int(task[2]), task[3]
            assert key not in sent, "a tag is used twice"
            sent[key] = task[1]
            found[at[0], int(task[2]), int(task[1])] += 1
        elif task is not None:
            size = sent.pop((int(task[2]), at[0], task[3]), None)
            if size is None:
                look.append(at)
                continue
            assert size == task[1]
        done.add(at)
        idle = 0
    if look or sent:
        raise ValueError(f"stuck: {list(look)[:3]} {list(sent)[:3]}")
    return found


@pytest.mark.parametrize(("collective", "n_bytes"), CALLS)
def test_goal_read_back_runs_to_its_end(collective: str, n_bytes: int) -> None:
    of = chosen(collective, n_bytes)
    assert walk_goal("".join(goal_lines(of))) == messages(of)


def test_what_waits_for_data_requires_it_in_goal() -> None:
    text = "".join(goal_lines(plan(chain()), unit_bytes=3))
    relay = text.split("rank 1 {")[1].split("}")[0]
    assert "l0: recv 12b from 0 tag 0" in relay
    assert "l1 requires l0" in relay
    assert "l3 requires l2" in relay
    assert "l2 requires" not in relay


def test_a_send_that_is_due_later_waits_in_goal() -> None:
    late = [[Send(1, out(0, 8), 0, due_us=5)], [Recv(0, out(0, 8), 0)]]
    text = "".join(goal_lines(plan(late)))
    assert "d0: calc 5000 cpu 1\nl0 requires d0\n" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [("recv 4b from 0 tag 1", "recv 4b from 2 tag 1"), ("send 4b to 2 tag 1", "calc 0")],
)
def test_a_broken_schedule_does_not_pass(old: str, new: str) -> None:
    text = "".join(goal_lines(plan(chain())))
    assert old in text
    with pytest.raises(ValueError, match="stuck"):
        walk_goal(text.replace(old, new))


# SMPI.


def walk_smpi(lines: list[str], n_ranks: int) -> Counter[tuple[int, int, int]]:
    """Follow a trace to its end, with sends that end when received; returns its messages."""
    programs = [deque[list[str]]() for _ in range(n_ranks)]
    for line in lines:
        rank, *words = line.split()
        programs[int(rank)].append(words)
    assert all(of[0] == ["init"] and of[-1] == ["finalize"] for of in programs)
    sent: dict[tuple[int, int, str], str] = {}
    posted: dict[tuple[int, int, str], str] = {}
    found: Counter[tuple[int, int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while program:
                what, *words = program[0]
                if what == "wait":
                    key = int(words[0]), int(words[1]), words[2]
                    if not (key in sent and key in posted):
                        break
                elif what == "isend":
                    key = rank, int(words[0]), words[1]
                    assert key not in sent
                    sent[key] = words[2]
                    found[rank, int(words[0]), int(words[2])] += 1
                elif what == "irecv":
                    key = int(words[0]), rank, words[1]
                    assert key not in posted
                    posted[key] = words[2]
                else:
                    assert what in ("init", "compute", "sleep", "waitall", "finalize")
                program.popleft()
                moved = True
    if any(programs) or sent != posted:
        raise ValueError("stuck")
    return found


@pytest.mark.parametrize(("collective", "n_bytes"), CALLS)
def test_a_trace_has_the_plan_s_messages_and_ends(collective: str, n_bytes: int) -> None:
    of = chosen(collective, n_bytes)
    lines = list(smpi_lines(of, model()))
    assert walk_smpi(lines, of.n_ranks) == messages(of)


def test_a_broken_trace_does_not_pass() -> None:
    of = chosen("bcast", 1 << 16)
    lines = list(smpi_lines(of, model()))
    lost = next(line for line in lines if " isend " in line)
    with pytest.raises(ValueError, match="stuck"):
        walk_smpi([line for line in lines if line != lost], of.n_ranks)


def test_a_relay_forwards_what_it_waited_for() -> None:
    one = parse_gridfile('version = 1\nname = "one"\nclusters = [{ name = "a", hosts = 3 }]')
    grid = declared_model(one, one.rank_hosts())
    lines = [line.strip() for line in smpi_lines(plan(chain()), grid)]
    mine = [line[2:] for line in lines if line.startswith("1 ")]
    assert mine.index("irecv 0 1 4") < mine.index("isend 2 0 4")
    assert mine.index("wait 0 1 0") < mine.index("isend 2 0 4") < mine.index("wait 0 1 1")
    assert mine.index("wait 0 1 1") < mine.index("isend 2 1 4")


def test_senders_are_paced_by_their_interface() -> None:
    """Two messages of 10 ms each on 100 Mbit/s: what is between their sends is computing."""
    size = 125_000
    two = [out(0, size), out(size, 2 * size)]
    programs = [
        [Send(2, c, k) for k, c in enumerate(two)],
        [],
        [Recv(0, c, k) for k, c in enumerate(two)],
    ]
    text = GRID.replace(", slots = 2", "")
    grid = parse_gridfile(text.replace("50 Mbit/s", "1 Gbit/s"))
    programs += [[] for _ in range(len(grid.rank_hosts()) - 3)]
    of = plan(programs, n_units=2 * size)
    lines = list(smpi_lines(of, declared_model(grid, grid.rank_hosts())))
    assert [line.split()[1] for line in lines if line.startswith("0 ")] == [
        "init", "isend", "compute", "isend", "waitall", "finalize",
    ]  # fmt: skip
    computed = next(line for line in lines if "compute" in line)
    assert float(computed.split()[2]) == pytest.approx(10e6, rel=0.01)


@pytest.mark.parametrize("write", [goal_lines, lambda of: smpi_lines(of, model())])
def test_a_broken_plan_is_rejected(write) -> None:  # type: ignore[no-untyped-def]
    n_ranks = len(spec().rank_hosts())
    lonely = [[Send(1, out(0, 8), 0)], *([] for _ in range(n_ranks - 1))]
    with pytest.raises(PlanError, match=r"rank 0, op 0 .* no matching receive"):
        list(write(plan(lonely)))


def test_a_trace_of_a_plan_that_never_ends_is_not_written() -> None:
    n_ranks = len(spec().rank_hosts())
    each = out(0, 8)
    stuck = [[Recv(k, each, 0), Send(k, each, 0)] for k in (1, 0)]
    with pytest.raises(PlanError, match="never ends"):
        list(smpi_lines(plan([*stuck, *([] for _ in range(n_ranks - 2))]), model()))


def test_copies_stand_between_messages_without_taking_time() -> None:
    n_ranks = len(spec().rank_hosts())
    a, b = out(0, 4), out(4, 8)
    programs = [[Send(1, a, 0)], [Recv(0, a, 0), Copy(a, b), Send(2, b, 0)], [Recv(1, b, 0)]]
    lines = list(smpi_lines(plan([*programs, *([] for _ in range(n_ranks - 3))]), model()))
    mine = [line.strip() for line in lines if line.startswith("1 ")]
    assert mine[1:4] == ["1 irecv 0 0 4", "1 wait 0 1 0", "1 isend 2 0 4"]


def test_the_platform_has_hosts_and_latencies_of_the_grid() -> None:
    wires = wires_from_spec(spec(), spec().rank_hosts())
    text = "".join(platform_lines(wires))
    assert re.findall(r'radical="0-(\d)"', text) == ["2", "1", "0"]
    assert text.count("<zoneRoute") == 6
    # 7 ms between clusters, of which each side's switch is 25 us away from its hosts.
    assert text.count('id="c0-c1" bandwidth="6250000Bps" latency="0.006950000s"') == 1
    assert 'bw="12500000Bps" lat="0.000025000s"' in text
    assert '<link_ctn id="c0-c1"/><link_ctn id="c1-in"/>' in text
    assert "".join(host_lines(wires)).split() == [
        "c0h0", "c0h0", "c0h1", "c0h1", "c0h2", "c0h2", "c1h0", "c1h1", "c2h0",
    ]  # fmt: skip


def test_a_window_limits_flows_there_too() -> None:
    assert "--cfg=network/TCP-gamma:65536" in smpi_settings(65536)
    assert "--cfg=network/TCP-gamma:0" in smpi_settings(None)
