"""Plans as text, with one op per line. `parse_plan` reads the text that `format_plan` writes."""

from __future__ import annotations

import re
from collections.abc import Callable

from gridcoll.errors import FileError, PlanError, UsageError
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan

_HEAD = re.compile(r"plan (\S+) root (-?\d+) units (\d+)(?: blocks ([\d,]+))?(?:: (.*))?")
_RANK = re.compile(r"rank (\d+)(?: scratch (\d+))?")


def format_plan(plan: Plan) -> str:
    """Return ``plan`` as text, for `parse_plan`.

    Raises `UsageError` for a label that could not be read back: one with several lines, or with
    spaces around it.
    """
    if len(plan.label.splitlines()) > 1 or plan.label != plan.label.strip():
        raise UsageError(f"plan label {plan.label!r}: must be one line without spaces around it")
    label = f": {plan.label}" if plan.label else ""
    blocks = f" blocks {','.join(map(str, plan.blocks))}" if plan.blocks else ""
    lines = [f"plan {plan.collective} root {plan.root} units {plan.n_units}{blocks}{label}"]
    for rank, program in enumerate(plan.programs):
        scratch = f" scratch {plan.scratch_of(rank)}" if plan.scratch_units else ""
        lines.append(f"rank {rank}{scratch}")
        lines += [f"  {op}" for op in program]
    return "\n".join(lines) + "\n"


def parse_plan(text: str, place: str = "<text>") -> Plan:
    """Return the plan that ``text`` describes. ``place`` names the text in errors.

    Empty lines are ignored. Raises `FileError`, which names the line.
    """
    programs: list[list[Op]] = []
    scratch: list[str | None] = []
    head: re.Match[str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line, where = raw.strip(), f"plan {place}, line {number}"
        if not line:
            continue
        if head is None:
            head = _HEAD.fullmatch(line)
            if head is None:
                raise FileError(
                    f"{where}: expected 'plan NAME root R units N: LABEL', got {line!r}"
                )
        elif match := _RANK.fullmatch(line):
            if int(match[1]) != len(programs):
                raise FileError(f"{where}: expected rank {len(programs)}, got rank {match[1]}")
            programs.append([])
            scratch.append(match[2])
        elif not programs:
            raise FileError(f"{where}: expected 'rank 0', got {line!r}")
        else:
            programs[-1].append(_parse_op(line, where))
    if head is None:
        raise FileError(f"plan {place}: it is empty")
    return Plan(
        head[1],
        head[5] or "",
        int(head[3]),
        int(head[2]),
        tuple(tuple(program) for program in programs),
        _scratch_units(scratch, place),
        tuple(int(size) for size in head[4].split(",")) if head[4] else (),
    )


def _scratch_units(texts: list[str | None], place: str) -> tuple[int, ...]:
    if all(text is None for text in texts):
        return ()
    if None in texts:
        raise FileError(f"plan {place}: scratch must be given for all ranks or for none")
    return tuple(int(text) for text in texts if text is not None)


_CHUNK = r"(\w+)\[(\d+):(\d+)\]"


def _chunk(buffer: str, start: str, stop: str) -> Chunk:
    return Chunk(buffer, int(start), int(stop))


_OPS: tuple[tuple[re.Pattern[str], Callable[[tuple[str, ...]], Op]], ...] = (
    (
        re.compile(rf"send {_CHUNK} to (\d+) tag (\d+)(?: after {_CHUNK})?(?: due (-?\d+) us)?"),
        lambda g: Send(
            *(int(g[3]), _chunk(*g[:3]), int(g[4])),
            *(_chunk(*g[5:8]) if g[5] else None, int(g[8] or 0)),
        ),
    ),
    (
        re.compile(rf"recv {_CHUNK} from (\d+) tag (\d+)(?: stream (\d+))?"),
        lambda g: Recv(int(g[3]), _chunk(*g[:3]), int(g[4]), int(g[5] or 0)),
    ),
    (
        re.compile(rf"reduce {_CHUNK} (before|after) {_CHUNK}"),
        lambda g: Reduce(_chunk(*g[:3]), _chunk(*g[4:]), g[3] == "before"),
    ),
    (
        re.compile(rf"copy {_CHUNK} to {_CHUNK}"),
        lambda g: Copy(_chunk(*g[:3]), _chunk(*g[3:])),
    ),
)


def _parse_op(line: str, where: str) -> Op:
    for pattern, build in _OPS:
        if match := pattern.fullmatch(line):
            try:
                return build(match.groups())
            except PlanError as error:
                raise FileError(f"{where}: {error}") from None
    raise FileError(f"{where}: expected send, recv, reduce or copy on a chunk, got {line!r}")
