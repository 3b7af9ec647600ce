"""What the studies' commands share: ranges, files, progress bars."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from gridcoll.draw.figures import FORMATS, new_figure
from gridcoll.errors import FileError, UsageError
from gridcoll.files import read_text, unfit, write_atomically
from gridcoll.schedule import Accounting
from gridcoll.study.parameters import PARAMETERS
from gridcoll.topology.units import format_duration, parse_duration_s, parse_rate_bytes_per_s


def parse_counts(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Parse whole numbers from 2 on, like ``2-10,15-50:5``: ranges with an optional step."""
    counts: list[int] = []
    for piece in text.split(","):
        span, _, step = piece.partition(":")
        first, dash, last = span.partition("-")
        try:
            counts.extend(range(int(first), int(last if dash else first) + 1, int(step or 1)))
        except ValueError:
            raise click.BadParameter(f"{piece!r} is not a range like 15-50:5") from None
    if not counts or min(counts) < 2:
        raise click.BadParameter(f"{text!r} must give numbers from 2 on")
    return tuple(dict.fromkeys(counts))


def whole_numbers(option: str, text: str) -> list[int]:
    """Return the comma-separated numbers in ``text``. Raises `UsageError`."""
    try:
        return [int(piece) for piece in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text!r}: must be whole numbers with commas") from None


class MeasuredRow(Struct, frozen=True):
    """A row that ``gridcoll bench`` wrote, as far as studies read it."""

    variant: str
    bytes: int
    median_s: float
    collective: str = ""
    grid: str = ""
    n_ranks: int | None = None


class _Rows(Struct):
    rows: list[MeasuredRow]


def read_measured(path: Path) -> list[MeasuredRow]:
    """Read the rows in ``path``, with or without what describes the run. Raises `FileError`."""
    text = read_text(path, "measured rows")
    try:
        found = msgspec.json.decode(text, type=list[MeasuredRow] | _Rows)
    except msgspec.DecodeError as error:
        why = f"not rows of gridcoll bench ({error})"
        raise unfit("measured rows", path, text, why) from None
    return found.rows if isinstance(found, _Rows) else found


def parse_seconds(
    context: click.Context, parameter: click.Parameter, text: str
) -> tuple[float, ...]:
    """Parse positive times in seconds, comma-separated."""
    try:
        times = tuple(float(piece) for piece in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of seconds like 0.01,0.1") from None
    if not min(times) > 0:
        raise click.BadParameter(f"{text!r}: times must be positive")
    return times


def parse_duration_range(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """Parse two times with a dash, as ``1 ms - 15 ms``, into seconds."""
    return _parse_range(text, parse_duration_s)


def parse_rate_range(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[float, float] | None:
    """Parse two rates with a dash, as ``1 MB/s - 100 MB/s``, into bytes per second."""
    return _parse_range(text, parse_rate_bytes_per_s)


def _parse_range(text: str | None, parse: Callable[[str], float]) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (parse(end) for end in text.split("-"))
    except (ValueError, UsageError):
        raise click.BadParameter(f"{text!r} is not a range like '1 ms - 15 ms'") from None
    if not 0 < low <= high:
        raise click.BadParameter(f"{text!r}: must be positive, the smaller one first")
    return low, high


BUSY = click.option(
    "--busy",
    type=click.Choice(["gap", "gap+latency"]),
    default="gap",
    show_default=True,
    help="How long a send keeps its sender busy.",
)
OVERLAP = click.option(
    "--internal-start",
    type=click.Choice(["after-last-send", "from-arrival"]),
    default="after-last-send",
    show_default=True,
    help="When a cluster's internal broadcast starts.",
)
SEED = click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed."
)
ITERATIONS = click.option(
    "--iterations", type=click.IntRange(1), default=10_000, show_default=True,
    help="How many grids are drawn for each point.",
)  # fmt: skip
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write here: a directory for tables (CSV, JSON) and any plots.",
)
PLOTS = click.option(
    "--plots",
    type=click.Choice(["svg", "png"]),
    default="svg",
    show_default=True,
    help="Format of the plots.",
)
RESULT = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
    help="Write here: the rows, into a .csv or .json file.",
)  # fmt: skip
PLOT = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path),
    help="Draw into this file, .png or .svg.",
)  # fmt: skip
MEASURED = click.option(
    "--measured", multiple=True, type=click.Path(path_type=Path),
    help="Rows that gridcoll bench --output wrote, to show beside the model; may be repeated.",
)  # fmt: skip
RANGES = click.option(
    "--parameters", type=click.Choice(list(PARAMETERS)), default="table2", show_default=True,
    help="Ranges to draw from; " + "; ".join(f"{p.name}: {p.source}" for p in PARAMETERS.values()),
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, instead of tables.")


def make_accounting(busy: str, internal_start: str) -> Accounting:
    """Return the accounting that the options ask for."""
    return Accounting(busy, internal_start)  # type: ignore[arg-type]


def table_console() -> Console:
    """Return a console on stdout; without a terminal, wide enough for a column per heuristic."""
    return Console() if sys.stdout.isatty() else Console(width=120)


def progress_bar() -> Progress:
    """Return a progress bar on stderr; silent if stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def prepare_output(path: Path | None, *, draws: bool = False) -> None:
    """Create the directory ``path``, if given, so that errors come before the work.

    Raises `FileError`, or `UsageError` if pictures are to be drawn and cannot be.
    """
    if path is None:
        return
    if draws:
        new_figure(1, 1)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"output {path}: {error}") from None


def prepare_plot(path: Path | None) -> None:
    """Raise `UsageError`, before the work, if a picture is asked for and cannot be drawn."""
    if path is None:
        return
    new_figure(1, 1)
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageError(f"--plot {path}: must end in {' or '.join(FORMATS)}")


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV or JSON, by the ending of ``path``. Raises `FileError` or `UsageError`."""
    if path.suffix == ".csv":
        write_csv(path, rows)
    elif path.suffix == ".json":
        write_json(path, list(rows))
    else:
        raise UsageError(f"--output {path}: must end in .csv or .json")


def report(
    rows: Sequence[Mapping[str, object]],
    output: Path | None,
    as_json: bool,
    show: Callable[[], None],
) -> None:
    """Write ``rows`` to ``output`` if given, and print them as JSON or by ``show``."""
    if output is not None:
        write_rows(output, rows)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        show()


def show_rows(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print ``rows`` as a table with a column for each key; keys in ``_s`` are durations."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(_cell(key, value) for key, value in row.items()))
    table_console().print(table)


def _cell(key: str, value: object) -> str:
    if isinstance(value, float):
        return format_duration(value) if key.endswith("_s") else f"{value:.2f}"
    return "" if value is None else str(value)


def write_tables(folder: Path, name: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write ``rows`` as CSV and as JSON. Raises `FileError`, or `UsageError` without rows."""
    write_csv(folder / f"{name}.csv", rows)
    write_json(folder / f"{name}.json", rows)


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows with equal keys as CSV. Raises `FileError`, or `UsageError` without rows."""
    rows = list(rows)
    if not rows:
        raise UsageError(f"{path}: nothing to write")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def write_json(path: Path, data: object) -> None:
    """Write ``data`` as JSON. Raises `FileError`."""
    write_atomically(path, json.dumps(data, indent=1) + "\n")
