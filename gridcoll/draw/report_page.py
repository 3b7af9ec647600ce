"""A self-contained HTML page about a grid: its map, its links, and the decisions for calls."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape

from gridcoll.draw.figures import write_picture_to
from gridcoll.draw.grid_picture import draw_grid
from gridcoll.model import GridModel
from gridcoll.model.summary import rates_bytes_per_s, rounded_rate
from gridcoll.plan import Choice
from gridcoll.plan.natives import NATIVES
from gridcoll.plan.traces import JobTrace
from gridcoll.topology.units import format_duration, format_size

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68em; margin: 2em auto; padding: 0 1em;
  color: #1d2433; background: #fff; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; }
table { border-collapse: collapse; } td, th { padding: .25em .8em; border-bottom: 1px solid #d8dce5;
  text-align: left; vertical-align: top; } td.n, th.n { text-align: right; white-space: nowrap; }
tr.native td { color: #6b7280; } svg { max-width: 100%; height: auto; }
figure { margin: 1em 0; } .wide { overflow-x: auto; }
"""


def report_page(model: GridModel, choices: Sequence[Choice], trace: JobTrace | None = None) -> str:
    """Return the page about ``model`` and the decisions ``choices``. It needs no other files.

    With the ``trace`` of a job, the page also shows its traffic.

    Raises `UsageError` without matplotlib.
    """
    grid = model.grid
    name = escape(grid.name or "grid")
    facts = f"{grid.n_ranks} ranks on {len(set(grid.host_of))} hosts, {len(grid.clusters)} clusters"
    origin = model.origin + (f" under {model.mpi}" if model.mpi else "")
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>gridcoll: {name}</title><style>{STYLE}</style></head><body>",
            f"<h1>{name}</h1><p>{facts}; {escape(origin)}.</p>",
            _picture(model),
            "<h2>Clusters</h2>",
            _table(("cluster", "site", "ranks", "hosts"), _clusters(model)),
            "<h2>Links</h2>",
            _table(("from", "to", "latency", "rate"), _links(model), numbers=(2, 3)),
            "<h2>Decisions</h2>",
            "<p>What a call does on this grid, by what is known of it. <em>Gain</em> compares with "
            "the MPI library's own collectives where these were measured.</p>",
            _table(
                ("call", "bytes", "predicted", "observed", "algorithm", "how", "native", "gain"),
                (_decision(choice) for choice in choices),
                numbers=(1, 2, 3, 6, 7),
                grey=[choice.winner.name in NATIVES for choice in choices],
            ),
            *(_traffic(trace) if trace else ()),
            "</body></html>\n",
        ]
    )


def _traffic(trace: JobTrace) -> Iterable[str]:
    yield "<h2>Traffic</h2>"
    yield (
        f"<p>What {trace.n_files} of {trace.n_ranks} ranks sent in plans; what the MPI library's "
        "own collectives sent is not in it.</p>"
    )
    rows = (
        (sent.sender, sent.receiver, str(sent.messages), format_size(sent.n_bytes))
        for sent in trace.sent
    )
    yield _table(("from", "to", "messages", "bytes"), rows, numbers=(2, 3))


def _picture(model: GridModel) -> str:
    buffer = io.BytesIO()
    write_picture_to(draw_grid(model), buffer, "svg")
    text = buffer.getvalue().decode()
    return f"<figure>{text[text.index('<svg') :]}</figure>"


def _clusters(model: GridModel) -> Iterable[Sequence[str]]:
    for cluster in model.grid.clusters:
        hosts = list(dict.fromkeys(process.host for process in cluster.processes))
        shown = ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")
        yield cluster.name, cluster.site, str(len(cluster)), shown


def _links(model: GridModel) -> Iterable[Sequence[str]]:
    rates = rates_bytes_per_s(model)
    names = [cluster.name for cluster in model.grid.clusters]
    for i, sender in enumerate(names):
        for j, receiver in enumerate(names):
            if model.links[i][j] is not None:
                latency = format_duration(float(model.latency_s[i, j]))
                place = "inside" if i == j else receiver
                yield sender, place, latency, rounded_rate(float(rates[i, j]))


def _decision(choice: Choice) -> Sequence[str]:
    winner = choice.winner
    natives_s = [
        candidate.observed_s or candidate.predicted_s
        for candidate in choice.candidates
        if candidate.name in NATIVES
    ]
    native_s = min((seconds for seconds in natives_s if seconds), default=None)
    took_s = winner.observed_s or winner.predicted_s
    gain = f"{native_s / took_s:.1f} x" if native_s and took_s else ""
    return (
        choice.collective,
        format_size(choice.n_bytes),
        _duration(winner.predicted_s),
        _duration(winner.observed_s),
        winner.name,
        winner.label,
        _duration(native_s),
        gain,
    )


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    grey: Sequence[bool] = (),
) -> str:
    def line(cells: Sequence[str], tag: str, kind: str = "") -> str:
        made = (
            f"<{tag}{' class=n' if at in numbers else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr{kind}>{''.join(made)}</tr>"

    lines = [line(head, "th")]
    for at, row in enumerate(rows):
        lines.append(line(row, "td", " class=native" if at < len(grey) and grey[at] else ""))
    return '<div class="wide"><table>\n' + "\n".join(lines) + "\n</table></div>"
