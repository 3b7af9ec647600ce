"""Decide once what calls of one kind do: run natively, as a plan in C, or one by one in Python.

All ranks get the same decision, as in `GridComm`, because it depends only on values that all of
them know. How to run a plan is decided by each rank alone: if its datatype has gaps, Python runs
it.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from typing import NamedTuple

from mpi4py import MPI

from gridcoll.comm.arguments.elements import Elements
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN, Decision, Semantics
from gridcoll.comm.methods.alltoallv import CHOICE_BYTES
from gridcoll.comm.methods.reduce_scattering import runs_whole
from gridcoll.comm.methods.reductions import Reduction, accepts
from gridcoll.engine.compiled import Prepared
from gridcoll.engine.memory import ByteMemory, Placement
from gridcoll.plan import Dataflow
from gridcoll.plan.natives import NONBLOCKING, VECTOR

COLLECTIVES = (
    *("Bcast", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Gather"),
    *("Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv"),
    *("Alltoallw", "Barrier"),
)
"""Collectives in the order of gridcoll.h."""

REDUCTIONS = frozenset({"Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block"})


class Action(IntEnum):
    """How calls of a kind are executed; see gridcoll.h."""

    UNKNOWN = 0
    NATIVE = 1
    PLAN = 2
    PYTHON = 3
    WAITING = 4
    ONCE = 5


class Role(IntEnum):
    """Which memory of a call is a plan's input or output; see gridcoll.h."""

    NOTHING = 0
    SEND_BUFFER = 1
    RECV_BUFFER = 2
    RECV_COPY = 3
    RECV_BLOCK = 4
    OWN_MEMORY = 5
    PACKED = 6


class Form(IntFlag):
    """Properties of a call that a decision depends on, besides its size; see calls.c."""

    TYPED = 1
    IN_PLACE = 2
    UNEVEN = 4
    USERS = 8
    ORDERED = 16


class Key(ctypes.Structure):
    """See call_key in gridcoll.h."""

    _names = ("which", "n_bytes", "root", "datatype", "operation", "form")
    _fields_ = [(name, ctypes.c_int64) for name in _names]


class Question(ctypes.Structure):
    """See question in gridcoll.h."""

    _fields_ = [
        ("key", Key),
        *((name, ctypes.c_int64) for name in ("comm", "rank", "n_ranks", "large")),
        ("args", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_int64) for name in ("action", "error")),
        *((name, ctypes.c_void_p) for name in ("program", "mpi", "call")),
        ("tag", ctypes.c_int64),
        ("stamped", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("input", "output")),
        *((name, ctypes.c_int64) for name in ("input_bytes", "output_bytes", "scratch_bytes")),
    ]


class Kind(NamedTuple):
    """A kind of calls: those that share a decision."""

    collective: str
    n_bytes: int
    root: int
    form: Form
    datatype: MPI.Datatype | None = None
    operation: MPI.Op | None = None


def handle(word: int) -> int:
    """Return a machine word as a handle in mpi4py's form, unsigned."""
    return word & 0xFFFF_FFFF_FFFF_FFFF


def kind_of(key: Key) -> Kind:
    """Return the kind of calls with ``key``."""
    name = COLLECTIVES[key.which]
    datatype = operation = None
    if name in REDUCTIONS:
        datatype = MPI.Datatype.fromhandle(handle(key.datatype)) if key.datatype else None
        operation = MPI.Op.fromhandle(handle(key.operation)) if key.operation else None
    return Kind(name, key.n_bytes, key.root, Form(key.form), datatype, operation)


class _Unplaced(ByteMemory):
    """Buffers whose addresses are set anew for every run; see `Prepared.place`."""

    def __init__(self, unit_bytes: int, datatype: int, operation: int) -> None:
        super().__init__()
        self._placement = Placement((0, 0, 0), unit_bytes, datatype, operation)

    def place(self, flow: Dataflow, unit_bytes: int = 1) -> Placement:
        return self._placement


def decide_kind(context: Context, kind: Kind) -> tuple[Action, Dataflow | None]:
    """Return how to execute calls of ``kind``, and this rank's part of the plan, if any."""
    if context.settings.check:
        return Action.PYTHON, None  # every call is compared among ranks
    name = kind.collective
    if name in REDUCTIONS:
        decision = _decide_reduction(context, kind)
    else:
        decision = _decide_move(context, kind)
    if decision is None:
        return Action.PYTHON, None
    if decision.flow is None:
        if decision.native == NONBLOCKING:
            return Action.WAITING, None
        return (Action.PYTHON if decision.native == VECTOR else Action.NATIVE), None
    in_python = name in ("Gatherv", "Scatterv", "Allgatherv", "Reduce_scatter")
    in_python |= bool(kind.form & Form.TYPED) and name != "Bcast"
    return (Action.PYTHON, None) if in_python else (Action.PLAN, decision.flow)


def _decide_move(context: Context, kind: Kind) -> Decision | None:
    """Decide, or return None if Python must execute every call."""
    name, n_bytes, root = kind.collective, kind.n_bytes, kind.root
    match name:
        case "Bcast" | "Gather" | "Scatter" | "Allgather" | "Alltoall":
            return context.decide(name.lower(), n_bytes, root)
        case "Barrier":
            return context.decide("barrier", 1, 0)
        case "Gatherv" | "Scatterv":
            return context.decide(name.lower(), 0, root)
        case "Allgatherv":
            n_ranks = context.model.grid.n_ranks
            mean = -(-n_bytes // n_ranks)
            if not kind.form & Form.UNEVEN:
                return context.decide("allgather", mean, 0, semantics=PLAIN)
            winner = context.decisions.choice("allgather", mean, 0, PLAIN).winner
            return None if winner.build_blocks else Decision(None)
        case _:
            winner = context.decisions.choice("alltoall", CHOICE_BYTES, 0, PLAIN).winner
            return Decision(None) if winner.build is None else None


def _decide_reduction(context: Context, kind: Kind) -> Decision | None:
    """Decide, or return None if Python must execute every call."""
    if kind.datatype is None:
        return None if kind.operation is None else Decision(None)
    operation = kind.operation or _placeholder(bool(kind.form & Form.ORDERED))
    if not accepts(operation, kind.datatype):
        return Decision(None)  # MPI reports the error
    if kind.form & Form.TYPED:
        return None  # a pair with a gap, which must stay as it is
    n_ranks, unit_bytes = context.model.grid.n_ranks, kind.datatype.Get_size()
    name, n_bytes = kind.collective.lower(), kind.n_bytes
    view = memoryview(b"")
    call = Reduction(view, None, Elements(view, 0, kind.datatype, unit_bytes), operation)
    if not name.startswith("reduce_scatter"):
        semantics = call.semantics(context, name)
        return context.decide(name, n_bytes, kind.root, unit_bytes=unit_bytes, semantics=semantics)
    if runs_whole(context, call, n_bytes * (n_ranks if name.endswith("block") else 1)):
        return None
    even = not kind.form & Form.UNEVEN
    if name == "reduce_scatter":
        mean = -(-(n_bytes // unit_bytes) // n_ranks)
        n_bytes = mean * unit_bytes
    semantics = Semantics(
        rank_order=call.rank_order,
        prefer_order=call.prefer_order,
        no_variants=name == "reduce_scatter",
    )
    if even:
        return context.decide(
            "reduce_scatter", n_bytes, 0, unit_bytes=unit_bytes, semantics=semantics
        )
    if call.rank_order:
        return Decision(None)
    winner = context.decisions.choice("reduce_scatter", n_bytes, 0, semantics).winner
    return None if winner.build_blocks else Decision(None)


def _nothing(*_: object) -> None:
    """Stand in for an operation of the application; never called."""


_placeholders: dict[bool, MPI.Op] = {}


def _placeholder(ordered: bool) -> MPI.Op:
    """Return an operation for one of the application's: decisions use only whether it commutes."""
    if ordered not in _placeholders:
        _placeholders[ordered] = MPI.Op.Create(_nothing, commute=not ordered)
    return _placeholders[ordered]


def answer_plan(
    question: Question, context: Context, kind: Kind, flow: Dataflow
) -> Prepared | None:
    """Fill in how C runs ``flow``. Return what to keep as long as C may run it.

    None if Python must run it.
    """
    unit_bytes = datatype = operation = 0
    if kind.collective in REDUCTIONS and kind.datatype is not None:
        unit_bytes, datatype = kind.datatype.Get_size(), MPI._handleof(kind.datatype)
        user_op = _placeholder(bool(kind.form & Form.ORDERED)) if kind.operation is None else None
        operation = MPI._handleof(user_op or kind.operation)
    elif kind.collective == "Barrier":
        datatype, operation = MPI._handleof(MPI.BYTE), MPI._handleof(MPI.BOR)
    unit_bytes = unit_bytes or 1
    prepared = context.prepare(flow, _Unplaced(unit_bytes, datatype, operation))
    if prepared is None:
        return None
    question.program, question.mpi, question.call = prepared.pointers
    question.input, question.output = _roles(kind, context.rank == kind.root)
    question.input_bytes = flow.extent["input"] * unit_bytes
    question.output_bytes = flow.extent["output"] * unit_bytes
    question.scratch_bytes = flow.scratch_units * unit_bytes
    if question.input == Role.RECV_BLOCK:
        question.input_bytes = kind.n_bytes
    return prepared


def _roles(kind: Kind, is_root: bool) -> tuple[Role, Role]:
    """Return the roles of the plan's input and output."""
    name, in_place = kind.collective, bool(kind.form & Form.IN_PLACE)
    match name:
        case "Bcast":
            packed = kind.form & Form.TYPED
            return Role.NOTHING, Role.PACKED if packed else Role.RECV_BUFFER
        case "Barrier":
            return Role.OWN_MEMORY, Role.OWN_MEMORY
        case "Scatter":
            if not is_root:
                return Role.NOTHING, Role.RECV_BUFFER
            return Role.SEND_BUFFER, Role.OWN_MEMORY if in_place else Role.RECV_BUFFER
        case "Gather" | "Reduce" if not is_root:
            return Role.SEND_BUFFER, Role.NOTHING
        case "Gather" | "Allgather" if in_place:
            return Role.RECV_BLOCK, Role.RECV_BUFFER
        case _:
            return Role.RECV_COPY if in_place else Role.SEND_BUFFER, Role.RECV_BUFFER
