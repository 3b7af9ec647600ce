"""Find the optimum of an allreduce on a few hosts in time slots, beside limit and best plan.

    python benchmarks/exact_allreduce.py [--sites 2,1] [--segments 3] [--latency 2] [--paces 1,2]

Needs highspy. An interface sends or receives a segment in as many slots as the pace of its site
says. Sites are ``latency`` slots apart; inside a site there is no latency. Hosts forward a segment
when they have all of it. For each segment, a host holds sums over sets of hosts. It adds the sums
of disjoint sets in no time, and can send any sum to any host. A mixed integer program decides
whether an allreduce of a number of segments can end within a number of slots. The smallest such
number of slots is the optimum: no plan with these segments is faster. Plans may use shorter
segments.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product

from msgspec import Struct, field
from msgspec.structs import replace

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import GridSpec, parse_gridfile

SLOT_S = 1e-3
SEGMENT_BYTES = 12_500
"""The bytes that 100 Mbit/s carry in a slot."""


class Program(Struct):
    """Rows ``lower <= sum of coefficients times variables``, all variables 0 or 1."""

    n: int = 0
    rows: list[tuple[float, list[tuple[int, float]]]] = field(default_factory=list)

    def variable(self) -> int:
        self.n += 1
        return self.n - 1

    def at_least(self, lower: float, *terms: tuple[int, float]) -> None:
        self.rows.append((lower, list(terms)))

    def solvable(self, seconds: float) -> bool | None:
        """Whether there is a solution; None if that is not known within ``seconds``."""
        import highspy
        import numpy as np

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("time_limit", seconds)
        solver.addVars(self.n, np.zeros(self.n), np.ones(self.n))
        every = np.arange(self.n, dtype=np.int32)
        solver.changeColsIntegrality(self.n, every, np.full(self.n, 1, dtype=np.uint8))
        for lower, terms in self.rows:
            index = np.array([k for k, _ in terms], dtype=np.int32)
            value = np.array([by for _, by in terms], dtype=float)
            solver.addRow(lower, highspy.kHighsInf, len(terms), index, value)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return False
        return True if status == highspy.HighsModelStatus.kOptimal else None


def allreduce_program(
    sites: Sequence[int], paces: Sequence[int], segments: int, latency: int, slots: int
) -> Program:
    """Return a program that is solvable if all hosts can have all sums after ``slots``."""
    site = [k for k, n in enumerate(sites) for _ in range(n)]
    hosts, sets = range(len(site)), range(1, 1 << len(site))
    program, full_set = Program(), (1 << len(site)) - 1
    pairs = [(i, j) for i in hosts for j in hosts if i != j]
    pace = [paces[k] for k in site]
    takes = {(i, j): max(pace[i], pace[j]) for i, j in pairs}
    delay = {(i, j): takes[i, j] + latency * (site[i] != site[j]) for i, j in pairs}
    times, parts = range(slots), range(segments)
    sends = {
        key: program.variable()
        for key in product(parts, sets, pairs, times)
        if (
            key[1] >> key[2][0] & 1  # a host's own part is in every sum that it sends
            and not key[1] >> key[2][1] & 1
        )
        or key[1] == full_set
        if key[3] + delay[key[2]] <= slots
    }
    has = {key: program.variable() for key in product(parts, sets, hosts, range(slots + 1))}
    coming: dict[tuple[int, int, int, int], list[int]] = {}
    out: dict[tuple[int, int], list[int]] = {}
    into: dict[tuple[int, int], list[int]] = {}
    for (part, subset, (i, j), time), sent in sends.items():
        program.at_least(0.0, (has[part, subset, i, time], 1.0), (sent, -1.0))
        comes = time + delay[i, j]
        coming.setdefault((part, subset, j, comes), []).append(sent)
        for slot in range(time, time + pace[i]):
            out.setdefault((i, slot), []).append(sent)
        for slot in range(comes - pace[j], comes):
            into.setdefault((j, slot), []).append(sent)
    for busy in (*out.values(), *into.values()):
        program.at_least(-1.0, *((sent, -1.0) for sent in busy))
    for part, subset, host, time in has:
        terms = [(sent, 1.0) for sent in coming.get((part, subset, host, time), [])]
        if time:
            terms.append((has[part, subset, host, time - 1], 1.0))
        elif subset == 1 << host:
            continue
        one = (subset - 1) & subset
        while one:
            other = subset ^ one
            if one > other:
                both = program.variable()
                for each in (one, other):
                    program.at_least(0.0, (has[part, each, host, time], 1.0), (both, -1.0))
                terms.append((both, 1.0))
            one = (one - 1) & subset
        program.at_least(0.0, *terms, (has[part, subset, host, time], -1.0))
    for part, host in product(parts, hosts):
        program.at_least(1.0, (has[part, full_set, host, slots], 1.0))
    return program


def spec_of(sites: Sequence[int], paces: Sequence[int], latency: int) -> GridSpec:
    """Return the same grid as a specification, for limits and plans."""
    lines = ["version = 1", 'name = "exact"']
    for k, n in enumerate(sites):
        nic = f'nic = "{100 / paces[k]} Mbit/s"'
        lines += ["[[clusters]]", f'name = "s{k}"', f"hosts = {n}", nic]
    for k in range(len(sites)):
        for other in range(k):
            lines += ["[[links]]", f'between = ["s{other}", "s{k}"]']
            lines += [f'latency = "{latency} ms"', 'rate = "10 Gbit/s"']
    return parse_gridfile("\n".join(lines))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", default="2,1", help="number of hosts of each site")
    parser.add_argument("--segments", type=int, default=3)
    parser.add_argument("--paces", default="", help="slots per segment, by site; default: 1")
    parser.add_argument("--latency", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="limit per number of slots")
    options = parser.parse_args(arguments)
    sites = [int(n) for n in options.sites.split(",")]
    paces = [int(n) for n in options.paces.split(",")] if options.paces else [1] * len(sites)
    spec = spec_of(sites, paces, options.latency)
    n_bytes = options.segments * SEGMENT_BYTES
    wires = replace(wires_from_spec(spec, spec.rank_hosts()), burst_bytes=0)
    limit = limit_s("allreduce", wires, n_bytes) / SLOT_S
    model = declared_model(spec, spec.rank_hosts())
    winner = choose("allreduce", model, n_bytes, 0, grid_only=True).winner
    plan_s = price_plan(winner.build(n_bytes), model).makespan_s if winner.build else 0.0
    print(f"limit {limit:.2f} slots; best plan {plan_s / SLOT_S:.2f} ({winner.name})", flush=True)
    slots = max(int(limit - 1e-6), 1)
    while True:
        program = allreduce_program(sites, paces, options.segments, options.latency, slots)
        can = program.solvable(options.seconds)
        word = {True: "enough", False: "too few", None: "not known"}[can]
        print(f"{slots} slots: {word} ({program.n} variables)", flush=True)
        if can:
            return
        slots += 1


if __name__ == "__main__":
    main()
