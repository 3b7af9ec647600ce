"""``gridcoll cache``: what is known about hosts, clusters and links, and how old it is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gridcoll.cli.options import JSON
from gridcoll.errors import FileError, UsageError

if TYPE_CHECKING:
    from gridcoll.measure.cache.entries import AnyEntry
    from gridcoll.measure.cache.folder import Cache, Folder
    from gridcoll.measure.cache.knowledge import Knowledge


@click.group()
def command() -> None:
    """Show, forget, export and import what was measured.

    Jobs keep what they measure in ~/.cache/gridcoll, or in the directory GRIDCOLL_CACHE. They also
    read a cache that an administrator provides, in the directory GRIDCOLL_SITE_CACHE.
    """


@command.command("path")
def show_path() -> None:
    """Print the directory of the cache, or off."""
    from gridcoll.measure.cache.folder import Cache, find_places

    places = find_places()
    click.echo(str(places.own) if places.own else "off")
    site = Cache(places).site
    if site and (warning := site.why_not_readable()):
        click.echo(f"gridcoll: {warning}", err=True)


@command.command("list")
@JSON
def list_entries(as_json: bool) -> None:
    """List hosts, clusters, links and MPI libraries, one per line."""
    known = read_cache()
    rows = [summary_of(entry) for entry in known]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    from gridcoll.measure.cache.entries import FOLDERS

    for kind in FOLDERS:
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        if kind == "outcomes":  # one for each collective and algorithm
            if rows_of_kind:
                click.echo(f"outcomes  {len(rows_of_kind)}")
            continue
        for row in rows_of_kind:
            click.echo(
                f"{kind:10} {row['name']:32} {row['origin']:9} {row['last']}  {row['count']} x"
            )


@command.command("show")
@JSON
def show(as_json: bool) -> None:
    """Show clusters and the links between them: latency, rate, origin and age."""
    known = read_cache()
    if as_json:
        click.echo(json.dumps(links_of(known), indent=2))
        return
    print_links(known)


@command.command("forget")
@click.argument("what")
def forget(what: str) -> None:
    """Forget WHAT: a site, a cluster, a host, a link, or an imported grid file.

    A link is named A--B; both of its directions are forgotten. A grid file is named after its grid;
    everything that it declares is forgotten with it.
    """
    known, folder = read_cache(), own_folder()
    entries = concerning(known, what)
    is_declared = folder.remove_gridfile(what)
    if not entries and not is_declared:
        raise UsageError(f"forget {what!r}: no site, cluster, host, link or grid has this name")
    removed = folder.remove(entries) + is_declared
    if not removed:
        grids = ", ".join(folder.gridfiles())
        why = f"declared; forget its grid, one of {grids}" if grids else "in GRIDCOLL_SITE_CACHE"
        raise UsageError(f"forget {what!r}: nothing was measured here, it is {why}")
    click.echo(f"{what}: {removed} entries forgotten")


@command.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
def export(file: str) -> None:
    """Write the whole cache into FILE, for `gridcoll cache import` elsewhere."""
    from gridcoll.files import write_atomically
    from gridcoll.measure.cache.entries import encode_bundle

    known = read_cache()
    write_atomically(file, encode_bundle(known))
    click.echo(f"{len(known)} entries in {file}")


@command.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
def import_file(file: str) -> None:
    """Import FILE: entries of another cache, a measured model (.json), or a grid file (.toml).

    Of two entries for the same thing, a measured one is preferred to a declared one, and otherwise
    the newer one.
    """
    folder = own_folder()
    if Path(file).suffix == ".toml":
        click.echo(f"{_import_gridfile(folder, file)} in {folder.path}")
        return
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise FileError(f"cache file {file}: {error.strerror or error}") from None
    entries = _entries_in(data, file)

    def change(here: Knowledge) -> list[AnyEntry]:
        return [entry for entry in entries if here.put(entry)]

    n = folder.update(change)
    click.echo(f"{n} of {len(entries)} entries taken into {folder.path}")


def _import_gridfile(folder: Folder, file: str) -> str:
    from gridcoll.files import read_text
    from gridcoll.measure.cache.learning import declared_entries
    from gridcoll.topology.gridfile import parse_gridfile

    text = read_text(file, "grid file")
    spec = parse_gridfile(text, file)
    declared_entries(spec, 0.0)
    folder.add_gridfile(spec.name, text)
    return spec.name


def _entries_in(data: bytes, file: str) -> list[AnyEntry]:
    from gridcoll.measure.cache.entries import decode_bundle
    from gridcoll.measure.cache.knowledge import Knowledge
    from gridcoll.measure.cache.learning import can_be_kept, learn_model
    from gridcoll.model import parse_model
    from gridcoll.model.storage import FORMAT

    if f'"{FORMAT}"'.encode() not in data[:200]:
        return decode_bundle(data, file)
    model = parse_model(data, file)
    if not can_be_kept(model):
        raise UsageError(f"import {file}: a declared model, or two hosts of one name")
    return learn_model(Knowledge(), model)


def read_cache() -> Knowledge:
    """Return what the user's and the administrator's cache know; warn about damaged files."""
    cache = _cache()
    known = cache.read()
    if warning := cache.warning():
        click.echo(f"gridcoll: {warning}", err=True)
    return known


def _cache() -> Cache:
    from gridcoll.measure.cache.folder import Cache, find_places

    return Cache(find_places())


def own_folder() -> Folder:
    """Return the folder of the user's cache. Raises `UsageError` if there is none."""
    folder = _cache().own
    if folder is None:
        raise UsageError("the cache is off: GRIDCOLL_CACHE says so, or there is no home directory")
    return folder


def concerning(known: Knowledge, what: str) -> list[AnyEntry]:
    """Return the entries of the site, cluster, host or link called ``what``."""
    from gridcoll.measure.cache.entries import ClusterEntry, Host, LinkEntry, Outcome

    clusters = {e.name for e in known if isinstance(e, ClusterEntry) and what in (e.site, e.name)}
    pair = set(what.split("--")) if "--" in what else set()
    found: list[AnyEntry] = []
    for entry in known:
        if isinstance(entry, ClusterEntry):
            wanted = entry.name in clusters
        elif isinstance(entry, Host):
            wanted = entry.cluster in clusters or entry.name == what
        elif isinstance(entry, LinkEntry):
            ends = {entry.sender, entry.receiver}
            wanted = bool(ends & clusters) or ends == pair
        else:
            wanted = isinstance(entry, Outcome) and bool(clusters & set(entry.clusters))
        if wanted:
            found.append(entry)
    return found


def summary_of(entry: AnyEntry) -> dict[str, Any]:
    """Return one entry as a row."""
    return {
        "kind": entry.folder,
        "name": " -- ".join(entry.parts()),
        "origin": entry.origin,
        "first": entry.first.isoformat(),
        "last": entry.last.isoformat(),
        "count": entry.count,
    }


def links_of(known: Knowledge) -> list[dict[str, Any]]:
    """Return the links between clusters and those inside each cluster, as rows."""
    from gridcoll.measure.cache.entries import ClusterEntry, LinkEntry

    rows: list[dict[str, Any]] = []
    for entry in known:
        if isinstance(entry, LinkEntry):
            ends = entry.sender, entry.receiver
        elif isinstance(entry, ClusterEntry) and not entry.same_as:
            ends = entry.name, entry.name
        else:
            continue
        link = entry.plogp if isinstance(entry, LinkEntry) else entry.inside or entry.within_host
        latency, rate = entry.latency_s, entry.rate_bytes_per_s
        rows.append(
            {
                "sender": ends[0],
                "receiver": ends[1],
                "latency_s": link.latency_s if link else None,
                "latency_spread_s": latency.spread if latency else None,
                "rate_bytes_per_s": rate.mean if rate else None,
                "rate_spread_bytes_per_s": rate.spread if rate else None,
                "origin": entry.origin,
                "mpi": entry.mpi,
                "first": entry.first.isoformat(),
                "last": entry.last.isoformat(),
                "count": entry.count,
            }
        )
    return rows


def print_links(known: Knowledge, names: Iterable[str] | None = None) -> None:
    """Print the table of links; with ``names``, only those between clusters of these names."""
    from datetime import datetime

    from rich.table import Table

    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.measure.cache.entries import Host, now
    from gridcoll.model.summary import rounded_rate
    from gridcoll.topology.units import format_duration

    hosts = [entry for entry in known if isinstance(entry, Host)]
    wanted = None if names is None else set(names)
    table = Table(title=f"{len(hosts)} hosts", title_justify="left", title_style="")
    for column in ("from", "to", "latency", "rate", "origin", "last seen", "times"):
        table.add_column(column, justify="right" if column in ("latency", "rate") else "left")
    for row in links_of(known):
        if wanted is not None and not {row["sender"], row["receiver"]} <= wanted:
            continue
        inside = row["sender"] == row["receiver"]
        latency, rate = row["latency_s"], row["rate_bytes_per_s"]
        age = (now() - datetime.fromisoformat(row["last"])).days
        table.add_row(
            row["sender"],
            "inside" if inside else row["receiver"],
            format_duration(latency) if latency is not None else "-",
            rounded_rate(rate) if rate is not None else "-",
            row["origin"],
            f"{row['last'][:10]} ({age} days ago)" if age else f"{row['last'][:10]} (today)",
            str(row["count"]),
        )
    stdout_console().print(table)
