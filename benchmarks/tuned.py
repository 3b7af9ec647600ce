"""Tune natives by hand, as an expert would: try every documented algorithm and segment size.

An MPI library reads such settings when it starts, so each setting needs a job of its own, all of
them on one emulated grid. All settings are run briefly. Then the best are run again, longer, and so
are gridcoll and the library's default settings. `collectives.py run --natives tuned` keeps the best
setting per row. For MPICH, a selection file that has the best algorithm for each size is one more
setting.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from on_grids import Row

from gridcoll.testbed.job import Job
from gridcoll.testbed.testbed import Testbed
from gridcoll.topology.units import format_size

SEGMENTS = (16 << 10, 8 << 10, 32 << 10)
N_FINALISTS = 2
"""Number of settings per size that are run again. Two brief series of the same setting differ by
more than the best settings differ from each other."""

BRIEF_REPEATS, FINAL_REPEATS = "3", "7"
JOB_TIMEOUT_S = 60.0

Settings = Mapping[str, str]

MPICH_LIBRARY = "lib/libmpi.so.12"
"""Within an environment made from PyPI's wheel."""

OPENMPI = {
    "bcast": {
        "linear": 1, "chain": 2, "pipeline": 3, "split-binary": 4, "binary": 5, "binomial": 6,
        "knomial": 7, "scatter-allgather": 8, "scatter-allgather-ring": 9,
    },
    "allreduce": {
        "linear": 1, "nonoverlapping": 2, "recursive-doubling": 3, "ring": 4, "segmented-ring": 5,
        "rabenseifner": 6, "allgather-reduce": 7,
    },
    "alltoall": {
        "linear": 1, "pairwise": 2, "modified-bruck": 3, "linear-sync": 4,
    },
}  # fmt: skip
"""``coll_tuned_*_algorithm``, as ``ompi_info --param coll tuned --level 9`` lists them."""

OPENMPI_SEGMENTED = {
    "bcast": ("chain", "pipeline", "split-binary", "binary", "binomial"),
    "allreduce": ("segmented-ring",),
}

MPICH = {
    "bcast": ("binomial", "scatter_recursive_doubling_allgather", "scatter_ring_allgather"),
    "allreduce": (
        *("recursive_doubling", "reduce_scatter_allgather", "recursive_multiplying", "ring"),
        *("recexch", "k_reduce_scatter_allgather"),
    ),
    "alltoall": ("brucks", "k_brucks", "pairwise", "pairwise_sendrecv_replace", "scattered"),
}
"""``MPIR_CVAR_*_INTRA_ALGORITHM``, as the library describes its variables."""

MPICH_TREE_TYPES = (("kary", 1), ("kary", 2), ("knomial_1", 2), ("knomial_2", 4))
"""Types and degrees of trees for pipelined broadcasts and allreduces. The first is a chain."""

MPICH_TREE_NUMBERS = {"kary": 0, "knomial_1": 1, "knomial_2": 2}
"""Numbers of these types in a selection file."""

IMPI = {"bcast": 22, "allreduce": 32, "alltoall": 18}
"""The largest values of ``I_MPI_ADJUST_*``, from 1, as the library describes its variables."""

NONBLOCKING = {
    "mpich": {
        "bcast": (
            *("sched_binomial", "sched_scatter_recursive_doubling_allgather"),
            *("sched_scatter_ring_allgather", "tsp_scatterv_recexch_allgatherv"),
            *("tsp_scatterv_ring_allgatherv", "tsp_tree", "tsp_ring"),
        ),
        "allreduce": (
            *("sched_recursive_doubling", "sched_reduce_scatter_allgather", "tsp_ring", "tsp_tree"),
            *("tsp_recexch_single_buffer", "tsp_recexch_multiple_buffer"),
            "tsp_recexch_reduce_scatter_recexch_allgatherv",
        ),
        "alltoall": (
            *("sched_brucks", "sched_pairwise", "sched_permuted_sendrecv"),
            *("tsp_ring", "tsp_brucks", "tsp_scattered"),
        ),
    },
    "openmpi": {
        "bcast": ("linear", "binomial", "chain", "knomial"),
        "allreduce": ("ring", "binomial", "rabenseifner", "recursive_doubling"),
    },
}
"""Algorithms of non-blocking calls, from the same sources. Open MPI has only one all-to-all."""

MPICH_PARAMETERS = (
    *("k=2", "tree_type=0", "chunk_size=0", "buffer_per_child=0", "buffer_per_phase=0"),
    *("single_phase_recv=0", "recv_pre_posted=0", "scatterv_k=2", "allgatherv_k=2"),
    *("batch_size=4", "bblock=4"),
)
"""Parameters of algorithms in a selection file, with the defaults of the library's variables. An
algorithm reads those that it has, and has no defaults of its own."""


def settings_of(mpi: str, collective: str) -> dict[str, Settings]:
    """Return the environment variables of each setting, by its name. The first sets none.

    Segment sizes other than the first come last, as there may not be time for all settings.
    """
    generators = {"openmpi": _openmpi, "mpich": _mpich, "impi": _impi}[mpi]
    last = tuple(f"{segment >> 10} KiB segments" for segment in SEGMENTS[1:])
    found = sorted(generators(collective), key=lambda setting: setting[0].endswith(last))
    return {"as it comes": {}, **dict(found)}


def _openmpi(collective: str) -> Iterator[tuple[str, Settings]]:
    prefix = f"OMPI_MCA_coll_tuned_{collective}_algorithm"
    for name, number in OPENMPI.get(collective, {}).items():
        chosen = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", prefix: str(number)}
        yield name, chosen
        if name in OPENMPI_SEGMENTED.get(collective, ()):
            for segment in SEGMENTS:
                text = f"{name}, {segment >> 10} KiB segments"
                yield text, {**chosen, f"{prefix}_segmentsize": str(segment)}
    yield "han", {"OMPI_MCA_coll_han_priority": "100"}
    for name in NONBLOCKING["openmpi"].get(collective, ()):
        yield f"non-blocking {name}", {f"OMPI_MCA_coll_libnbc_i{collective}_algorithm": name}


def _mpich(collective: str) -> Iterator[tuple[str, Settings]]:
    name = f"MPIR_CVAR_{collective.upper()}"
    plain = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}
    for algorithm in MPICH.get(collective, ()):
        yield algorithm, {**plain, f"{name}_INTRA_ALGORITHM": algorithm}
    tree_algorithm = {"bcast": "pipelined_tree", "allreduce": "tree"}.get(collective)
    trees = product(MPICH_TREE_TYPES, SEGMENTS) if tree_algorithm else ()
    for (tree, degree), segment in trees:
        yield (
            f"pipelined {tree} tree of degree {degree}, {segment >> 10} KiB segments",
            {
                **plain,
                f"{name}_INTRA_ALGORITHM": str(tree_algorithm),
                f"{name}_TREE_TYPE": tree,
                f"{name}_TREE_KVAL": str(degree),
                f"{name}_TREE_PIPELINE_CHUNK_SIZE": str(segment),
            },
        )
    for algorithm in NONBLOCKING["mpich"].get(collective, ()):
        variable = f"MPIR_CVAR_I{collective.upper()}_INTRA_ALGORITHM"
        yield f"non-blocking {algorithm}", {**plain, variable: algorithm}


def _impi(collective: str) -> Iterator[tuple[str, Settings]]:
    """Yield presets. One number selects an algorithm of the blocking call, and another of the
    non-blocking call; the two are unrelated.
    """
    for number in range(1, IMPI.get(collective, 0) + 1):
        variables = [f"I_MPI_ADJUST_{prefix}{collective.upper()}" for prefix in ("", "I")]
        yield f"preset {number}", dict.fromkeys(variables, str(number))


def selection_file(library: Path, collective: str, best: Mapping[int, Settings]) -> str:
    """Return a selection file (CSEL) of MPICH: the ``best`` setting by the largest bytes it is for.

    Such a file must have rules for every collective. All others keep the library's own rules, which
    its binary contains as text.
    """
    texts = re.findall(rb'\{"collective=[^\0]+\}', library.read_bytes())
    rules = json.loads(next(each for each in texts if b'"collective=ineighbor' in each))
    for call in (collective, f"i{collective}"):
        variable = f"MPIR_CVAR_{call.upper()}_INTRA_ALGORITHM"
        by_size = {n: setting for n, setting in sorted(best.items()) if variable in setting}
        if by_size:
            chosen = {
                f"avg_msg_size<={n}": {
                    f"algorithm=MPIR_{call.capitalize()}_intra_{setting[variable]}": _parameters(
                        collective, setting
                    )
                }
                for n, setting in by_size.items()
            }
            chosen["avg_msg_size=any"] = chosen[f"avg_msg_size<={max(by_size)}"]
            rules[f"collective={call}"]["comm_type=intra"] = chosen
    return json.dumps(rules, indent=1)


def _parameters(collective: str, setting: Settings) -> dict[str, dict[str, str]]:
    """Return `MPICH_PARAMETERS`, with the tree that ``setting`` names, as keys of empty objects."""
    found = dict(each.split("=") for each in MPICH_PARAMETERS)
    name = f"MPIR_CVAR_{collective.upper()}_TREE"
    if f"{name}_TYPE" in setting:
        found["tree_type"] = str(MPICH_TREE_NUMBERS[setting[f"{name}_TYPE"]])
        found["k"] = setting[f"{name}_KVAL"]
        found["chunk_size"] = setting[f"{name}_PIPELINE_CHUNK_SIZE"]
    return {f"{key}={value}": {} for key, value in found.items()}


def sweep(
    grid: Path, mpi: str, collective: str, sizes: str, model: Path, budget_s: float
) -> list[Row]:
    """Return a row per size: the best setting of ``mpi`` on ``grid``, and gridcoll.

    ``model`` is a measured model, for gridcoll's own time. After ``budget_s`` no more settings are
    tried. The rows have the number of settings tried.
    """
    found = settings_of(mpi, collective)
    with Testbed.up(grid) as testbed, tempfile.TemporaryDirectory() as folder:
        job = Job(testbed, mpi)

        def run(name: str, repeats: str) -> dict[int, dict[str, Row]]:
            output = Path(folder, "rows.json")
            output.unlink(missing_ok=True)
            options = ["--sizes", sizes, "--grid", str(grid), "--repeats", repeats]
            command = ["gridcoll", "bench", collective, *options, "--output", str(output)]
            # The timed calls must neither learn nor wait until links are measured.
            own = {"GRIDCOLL_GRID": str(model), "GRIDCOLL_LEARN": "off"}
            return _rows(job, command, {**os.environ, **own, **found[name]}, output)

        end, n_tried = time.monotonic() + budget_s, 0
        brief: dict[str, dict[int, dict[str, Row]]] = {}
        for name in found:
            if time.monotonic() > end:
                break
            n_tried += 1
            if rows_of := run(name, BRIEF_REPEATS):
                brief[name] = rows_of
            shown = {n_bytes: _native_s(variants) for n_bytes, variants in rows_of.items()}
            print(f"{name}: {shown or 'failed'}", flush=True)
        finalists: dict[str, None] = {"as it comes": None}
        best: dict[int, Settings] = {}
        for n_bytes in brief["as it comes"]:
            order = sorted(brief, key=lambda name: _native_s(brief[name][n_bytes]))
            finalists.update(dict.fromkeys(order[:N_FINALISTS]))
            best[n_bytes] = found[order[0]]
        if mpi == "mpich":
            path = Path(folder, "selection.json")
            path.write_text(selection_file(job.venv / MPICH_LIBRARY, collective, best))
            variables = {"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": str(path)}
            found["selection file"] = {"MPIR_CVAR_DEVICE_COLLECTIVES": "none", **variables}
            finalists["selection file"] = None
            n_tried += 1
        longer = {name: rows for name in finalists if (rows := run(name, FINAL_REPEATS))}
    rows: list[Row] = []
    for n_bytes, ours in longer["as it comes"].items():
        fastest = min(longer, key=lambda name: _native_s(longer[name][n_bytes]))
        rows.append(
            {
                "collective": collective,
                "bytes": n_bytes,
                "setting": fastest,
                "variables": dict(found[fastest]),
                "tuned_s": _native_s(longer[fastest][n_bytes]),
                "native_s": _native_s(ours),
                "gridcoll_s": ours["gridcoll"]["median_s"],
                "limit_s": ours["gridcoll"]["limit_s"],
                "n_settings": len(found),
                "n_tried": n_tried,
                "n_failed": n_tried - len({*brief, *longer}),
            }
        )
    return rows


def _native_s(variants: Mapping[str, Row]) -> float:
    return min(row["median_s"] for name, row in variants.items() if name.startswith("native"))


def _rows(
    job: Job, command: Sequence[str], environment: Mapping[str, str], output: Path
) -> dict[int, dict[str, Row]]:
    """Run a job and return its rows by size and variant: none if it fails, as some settings do."""
    process = job.start(command, environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        code = process.wait(JOB_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait(10)
        code = 1
    by_size: dict[int, dict[str, Row]] = {}
    if code == 0 and output.exists():
        for row in json.loads(output.read_text()):
            by_size.setdefault(row["bytes"], {})[row["variant"]] = row
    return by_size


def verdict(row: Row) -> str:
    """Return the speedup of gridcoll over the best setting, marked if it is over 5 % behind."""
    ratio = row["tuned_s"] / row["gridcoll_s"]
    return f"{ratio:.2f} x" + (" (behind)" if ratio < 0.95 else "")


def print_markdown(rows: Sequence[Row]) -> None:
    """Print a Markdown line per grid, MPI and size."""
    print("\n| call | grid | MPI | message | by default | by hand | | tried | gridcoll | faster |")
    print("|---|---|---|--:|--:|--:|---|--:|--:|--:|")
    for row in rows:
        case = f"{row['collective']} | {row['grid']} | {row['mpi']} | {format_size(row['bytes'])}"
        times = [f"{row[name] * 1e3:.1f} ms" for name in ("native_s", "tuned_s", "gridcoll_s")]
        tried = f"{row['n_tried']} of {row['n_settings']}"
        print(
            f"| {case} | {times[0]} | {times[1]} | {row['setting']} | {tried} | {times[2]} "
            f"| {verdict(row)} |"
        )


if __name__ == "__main__":
    sys.exit("run it as: python benchmarks/collectives.py run --natives tuned")
