from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gridcoll.cli.study_command import command
from gridcoll.errors import UsageError
from gridcoll.study.comparison import Setting, compare
from gridcoll.study.fillings_command import CLAIMS, by_key
from gridcoll.study.options import parse_duration_range, parse_rate_range
from gridcoll.study.parameters import PARAMETERS, change_parameters


def run(*arguments: str):
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


@pytest.mark.long
def test_verdicts_by_filling(tmp_path: Path) -> None:
    """Per-cluster gaps agree with most of what paper 000 prints; see CLAIMS.md, 7 to 10."""
    files = ["--output", str(tmp_path / "rows.json"), "--plot", str(tmp_path / "figure.png")]
    result = run("fillings", "--iterations", "300", "--clusters", "4,10,50", "--json", *files)
    said = json.loads(result.output)
    assert json.loads((tmp_path / "rows.json").read_text()) == said["scores"]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    held = {name: sum(found) for name, found in said["verdicts"].items()}
    assert max(held, key=lambda name: held[name]) == "per-cluster"
    assert said["verdicts"]["independent"][8] is False  # ECEF-LAT the fastest of many
    assert said["verdicts"]["per-cluster"][8] is True


def test_every_claim_can_fail() -> None:
    """Each is false of some scores: of the measured ones with heuristics exchanged or worsened."""
    scores = [score for n in (4, 10, 50) for score in compare(Setting(n_iterations=200), n)]
    worse = by_key(scores)
    flipped = {}
    for (n, name), score in worse.items():
        factor = {"flat": 0.1, "fef": 0.2, "ecef": 1.0, "bottom-up": 3.0}.get(name, 2.0 + n)
        flipped[n, name] = replace(score, mean_s=score.mean_s * factor, hit_rate=n / 100)
    assert [claim.number for claim in CLAIMS if claim.holds(flipped)] == []


def test_fillings_needs_both_ends() -> None:
    result = CliRunner().invoke(command, ["fillings", "--clusters", "4-9"])
    assert result.exit_code
    assert "10 and 50" in result.output


def parse(parser, text):
    return parser(click.Context(command), click.Option(["--x"]), text)


def test_ranges() -> None:
    assert parse(parse_duration_range, "1 ms - 15ms") == pytest.approx((1e-3, 15e-3))
    assert parse(parse_rate_range, "1 MB/s-100 MB/s") == pytest.approx((1e6, 1e8))
    assert parse(parse_duration_range, None) is None
    for text in ("", "1 ms", "2 ms - 1 ms", "0 ms - 1 ms", "a-b", "1ms-2ms-3ms"):
        with pytest.raises(click.BadParameter):
            parse(parse_duration_range, text)


def test_parameters_can_be_changed() -> None:
    larger = change_parameters(PARAMETERS["adaptive"], message_bytes=4_000_000)
    mean = [
        compare(Setting(parameters, n_iterations=50), 5, ("ecef",))[0].mean_s
        for parameters in (PARAMETERS["adaptive"], larger)
    ]
    assert mean[1] > mean[0]
    gaps = change_parameters(PARAMETERS["adaptive"], gap_s=(0.1, 0.2), latency_s=(1e-3, 2e-3))
    assert gaps.bytes_per_s is None
    with pytest.raises(UsageError, match="not both"):
        change_parameters(PARAMETERS["table2"], gap_s=(1, 2), bytes_per_s=(1, 2))
    with pytest.raises(UsageError, match="give a rate"):
        change_parameters(PARAMETERS["table2"], message_bytes=1000)
    with pytest.raises(UsageError, match="at least 1 byte"):
        change_parameters(PARAMETERS["adaptive"], message_bytes=0)
