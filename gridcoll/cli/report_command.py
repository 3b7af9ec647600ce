"""``gridcoll report``: one page about a grid and what calls do on it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gridcoll.cli.options import JSON, SIZES, takes_grid
from gridcoll.errors import UsageError

DEFAULT_COLLECTIVES = "bcast,allreduce,alltoall,scatter,gather,allgather"
DEFAULT_SIZES = "8,1K,64K,1M"


@click.command()
@takes_grid(required=True)
@click.option("--html", metavar="FILE", default="", help="write the page into this file")
@click.option(
    "--collectives",
    default=DEFAULT_COLLECTIVES,
    show_default=True,
    help="collectives to report on, with commas between them",
)
@click.option("--sizes", default=DEFAULT_SIZES, show_default=True, help=SIZES)
@JSON
def command(grid: str, html: str, collectives: str, sizes: str, as_json: bool) -> None:
    """Report on GRID: its map and links, and for each call the choice, its time and its gain.

    GRID is a measured model (.json), a declared grid (.toml), or the name of one. It may also be
    the folder that a job with GRIDCOLL_TRACE=DIR has written: then the report shows the calls of
    that job, with the times observed and the traffic between clusters. The HTML page is a single
    file that loads nothing from elsewhere.
    """
    from gridcoll.cli.models import load_model
    from gridcoll.files import check_writable, write_atomically
    from gridcoll.model.summary import summarise
    from gridcoll.plan import REGISTRIES, choose
    from gridcoll.plan.traces import read_trace
    from gridcoll.topology.units import parse_size_bytes

    names = collectives.split(",")
    for name in names:
        if name not in REGISTRIES:
            raise UsageError(f"collective {name!r}: known are {', '.join(REGISTRIES)}")
    n_bytes = [parse_size_bytes(text) for text in sizes.split(",")]
    if html:
        check_writable(html)
    trace = read_trace(Path(grid)) if Path(grid).is_dir() else None
    if trace:
        model, choices = trace.model, [choice for choice, _ in trace.choices]
    else:
        model = load_model(grid)
        choices = [choose(name, model, size, 0) for name in names for size in n_bytes]
    if html:
        from gridcoll.draw.report_page import report_page

        write_atomically(html, report_page(model, choices, trace))
    if as_json:
        data = {"grid": summarise(model), "decisions": [choice.to_dict() for choice in choices]}
        if trace:
            data["traffic"] = [
                {
                    "from": sent.sender,
                    "to": sent.receiver,
                    "messages": sent.messages,
                    "n_bytes": sent.n_bytes,
                }
                for sent in trace.sent
            ]
        click.echo(json.dumps(data, indent=2))
    elif html:
        click.echo(html)
    else:
        from gridcoll.cli.gridmap import print_map
        from gridcoll.plan.choice import headline, times_of
        from gridcoll.topology.units import format_size

        print_map(model)
        click.echo()
        for choice in choices:
            times = times_of(choice.winner)
            click.echo(headline(choice) + (f" ({times})" if times else ""))
        for sent in trace.sent if trace else ():
            pair = f"{sent.sender} to {sent.receiver}"
            click.echo(f"{pair}: {sent.messages} messages, {format_size(sent.n_bytes)}")
