"""Claims, records and the page docs/evidence.md."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_layers import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    return _module("claims")


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_the_page_is_up_to_date() -> None:
    page = _module("evidence").page()
    assert (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8") == page, (
        "run `make generate`"
    )
    assert "| not measured |" in page


def test_each_declared_command_exists_and_shows_a_claim(claims: ModuleType) -> None:
    measurements, rows = claims.read_claims()
    readme = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for measurement in measurements.values():
        assert measurement.script.is_file(), measurement.command
        assert f"`python benchmarks/{measurement.script.name}" in readme
    assert {claim.measurement for claim in rows} == set(measurements)
    assert len({(claim.section, claim.text, claim.of) for claim in rows}) == len(rows)


def test_each_record_is_of_the_declared_command_and_has_the_claimed_values(
    claims: ModuleType,
) -> None:
    measurements, rows = claims.read_claims()
    assert {path.stem for path in claims.RECORDS.glob("*.json")} <= set(measurements)
    for name, measurement in measurements.items():
        record = claims.read_record(name)
        if record is None:
            continue
        assert record.command == measurement.command, "measure it again, or restore the command"
        assert record.commit
        for claim in rows:
            if claim.measurement == name:
                claims.figure(claim, record.runs())


def declared(tmp_path: Path, script: str, **more: str) -> Path:
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    extra = "\n".join(f"{key} = {value}" for key, value in more.items())
    path = tmp_path / "claims.toml"
    path.write_text(
        f"""
[[measurement]]
name = "one"
command = "python {tmp_path / "script.py"} --seed {{seed}}"
seeds = [3, 4, 5]

[[claim]]
section = "S"
text = "T of {{each}}"
each = ["a", "b"]
measurement = "one"
value = "by.{{each}}.0"
{extra}
""",
        encoding="utf-8",
    )
    return path


SEEDS = """
import json, sys
seed = int(sys.argv[2])
print("some other line")
print(json.dumps({"by": {"a": [seed], "b": [10 * seed]}}))
"""


@pytest.mark.processes
def test_a_measurement_runs_once_for_each_seed(claims: ModuleType, tmp_path: Path) -> None:
    measurements, rows = claims.read_claims(declared(tmp_path, SEEDS, bar='">= 4"'))
    record = claims.measure(measurements["one"])
    claims.write_record("one", record, tmp_path)
    kept = claims.read_record("one", tmp_path)
    assert kept is not None
    assert (kept.command, kept.file) == (measurements["one"].command, "")
    first, second = (claims.figure(claim, kept.runs()) for claim in rows)
    assert [claim.text for claim in rows] == ["T of a", "T of b"]
    assert (first.value, first.count, second.value) == (4, 3, 40)
    # 4 and a deviation of 1: 4.303 / sqrt(3)
    assert first.interval == pytest.approx((4 - 2.4843, 4 + 2.4843), abs=1e-3)
    assert claims.holds(rows[0], first)
    assert not claims.holds(rows[0], claims.Figure(3.9, None, 1))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "error"),
    [("raise SystemExit(3)", "status 3"), ("print([1])", "not a JSON object"), ("", "status 0")],
    ids=["failed", "no-object", "silent"],
)
def test_a_measurement_without_a_result_makes_no_record(
    claims: ModuleType, tmp_path: Path, script: str, error: str
) -> None:
    measurements, _ = claims.read_claims(declared(tmp_path, script))
    with pytest.raises(RuntimeError, match=error):
        claims.measure(measurements["one"])


def test_the_interval_of_a_share_is_clipped(claims: ModuleType) -> None:
    mean, share = (claims.Claim("S", "T", "one", "x", statistic=s) for s in ("mean", "share"))
    runs = [{"x": [0.9, 1.0]}]
    assert claims.figure(mean, runs).interval == pytest.approx((0.3147, 1.5853), abs=1e-4)
    assert claims.figure(share, runs).interval == pytest.approx((0.3147, 1.0), abs=1e-4)


def test_a_difference_holds_if_its_interval_contains_0(claims: ModuleType) -> None:
    claim = claims.Claim("S", "T", "one", "x", statistic="difference")
    assert claims.holds(claim, claims.figure(claim, [{"x": [-1, 0.5, 1]}]))
    assert not claims.holds(claim, claims.figure(claim, [{"x": [0.9, 1, 1.1]}]))
    assert claims.holds(claim, claims.figure(claim, [{"x": [0]}])) is None


def test_a_curve_is_the_mean_of_its_seeds(claims: ModuleType) -> None:
    claim = claims.Claim("S", "T", "one", "x", curve="a.curve")
    runs = [{"a": {"curve": [[0.0, 0.5], [0.5, 1.0]]}}, {"a": {"curve": [0.25, 0.75]}}]
    assert claims.curve(claim, runs) == [0.25, 0.75]
    assert claims.curve(claims.Claim("S", "T", "one", "x"), runs) == []
    drawn = _module("evidence")._drawn
    assert drawn([0.0, 0.5, 1.0]) == "▁▅█"
    assert len(drawn([0.1] * 40)) == 15


@pytest.mark.processes  # git
def test_an_older_result_is_a_record_of_its_place_in_a_file(claims: ModuleType) -> None:
    measurements, _ = claims.read_claims()
    record = claims.adopted(measurements["recovery_async"], "2026-11-24-recovery.json#runs.1")
    assert record.date == "2026-11-24"
    assert [run["mode"] for run in record.runs()] == ["async"]


@pytest.mark.parametrize(
    ("events", "trials", "low", "high"),
    [(0, 100, 0.0, 0.036217), (5, 20, 0.086571, 0.491046), (3, 3, 0.292402, 1.0)],
)
def test_the_interval_of_a_rate_is_that_of_clopper_and_pearson(
    events: int, trials: int, low: float, high: float
) -> None:
    assert _module("intervals").rate_interval(events, trials) == pytest.approx(
        (low, high), abs=1e-6
    )
