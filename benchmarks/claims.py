"""The claims of ``claims.toml``, the records that show them, and their figures."""

from __future__ import annotations

import datetime
import json
import operator
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from intervals import interval, mean_interval, rate_interval

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "benchmarks" / "claims.toml"
RESULTS = ROOT / "benchmarks" / "results"
RECORDS = RESULTS / "evidence"
_BARS = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}

Statistic = Literal["mean", "share", "sum", "most", "difference", "rate"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A command whose last line is JSON.

    :param seeds: it runs once for each, in place of ``{seed}``; none if it repeats by itself.
    :param quiet: whether other programs on the machine change its figures.
    """

    name: str
    command: str
    seeds: tuple[int, ...] = ()
    quiet: bool = True

    def commands(self) -> list[list[str]]:
        """Return the arguments of each run."""
        arguments = shlex.split(self.command)
        assert arguments[0] == "python", self.command
        arguments[0] = sys.executable
        if not self.seeds:
            return [arguments]
        return [[a.replace("{seed}", str(seed)) for a in arguments] for seed in self.seeds]

    @property
    def script(self) -> Path:
        """The program that it runs."""
        return ROOT / shlex.split(self.command)[1]


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the page.

    :param text: the claim, as a sentence.
    :param of: who makes it, as a link or a name; "" for agentjet.
    :param measurement: name of the measurement that shows it.
    :param value: where the result has its value: keys and indices with dots between. A list has a
        value for each seed.
    :param statistic: ``mean`` of the seeds, with the interval of the mean, which for ``share`` is
        clipped to 0 and 1; ``sum`` and ``most`` have none; ``difference`` is a mean that should be
        0; ``rate`` divides by `trials`.
    :param trials: where the result has the number of trials of a ``rate``.
    :param bar: ``<=``, ``>=`` or ``=`` and a number; "" for none.
    :param curve: where the result has a learning curve, of shares by step, or one for each seed.
    """

    section: str
    text: str
    measurement: str
    value: str
    of: str = ""
    statistic: Statistic = "mean"
    trials: str = ""
    unit: str = ""
    bar: str = ""
    curve: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What a measurement printed.

    :param date: of the run, in ISO format.
    :param commit: of the tree that was measured; "+" follows if it had changes.
    :param machine: in words.
    :param seconds: how long it took; None if that is unknown.
    :param results: the JSON of each run.
    :param file: name of the file in `RESULTS` with the result instead, of a run before there were
        records; ``#`` and a place as in `Claim.value` follow if it is a part of the file.
    """

    command: str
    date: str
    commit: str
    machine: str
    seconds: float | None = None
    results: Sequence[Any] = ()
    file: str = ""

    def runs(self) -> Sequence[Any]:
        """Return the JSON of each run."""
        if not self.file:
            return self.results
        name, _, place = self.file.partition("#")
        return [_at(json.loads((RESULTS / name).read_text(encoding="utf-8")), place)]


@dataclass(frozen=True, slots=True)
class Figure:
    """The figure of a claim.

    :param interval: of 95 %, None if the claim's statistic has none or there is a single value.
    :param count: number of values, or of trials.
    """

    value: float
    interval: tuple[float, float] | None
    count: int


def read_claims(path: Path = CLAIMS) -> tuple[dict[str, Measurement], list[Claim]]:
    """Return the measurements by name, and the claims in the order of the page."""
    declared = tomllib.loads(path.read_text(encoding="utf-8"))
    measurements = {
        each["name"]: Measurement(**{**each, "seeds": tuple(each.get("seeds", ()))})
        for each in declared["measurement"]
    }
    claims = []
    for each in declared["claim"]:
        instances = each.pop("each", [""])
        claims += [
            Claim(**{key: text.replace("{each}", instance) for key, text in each.items()})
            for instance in instances
        ]
    return measurements, claims


def read_record(name: str, directory: Path = RECORDS) -> Record | None:
    """Return the record of a measurement, None if it was not measured yet."""
    path = directory / f"{name}.json"
    if not path.exists():
        return None
    return Record(**json.loads(path.read_text(encoding="utf-8")))


def write_record(name: str, record: Record, directory: Path = RECORDS) -> None:
    """Write the record of a measurement, in place of an older one."""
    directory.mkdir(exist_ok=True)
    kept = {key: value for key, value in asdict(record).items() if value not in (None, "", ())}
    text = json.dumps(kept, indent=1) + "\n"
    (directory / f"{name}.json").write_text(text, encoding="utf-8")


def measure(measurement: Measurement) -> Record:
    """Run a measurement.

    :raises RuntimeError: it failed, or its last line is not JSON.
    """
    commit = commit_of_tree()
    load = os.getloadavg()[0]
    began = time.monotonic()
    results = [_result(command) for command in measurement.commands()]
    return Record(
        command=measurement.command,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        commit=commit,
        machine=f"{_machine(os.cpu_count(), platform.machine(), platform.python_version())}, "
        f"load {load:.1f} at the start",
        seconds=round(time.monotonic() - began, 1),
        results=results,
    )


def adopted(measurement: Measurement, file: str) -> Record:
    """Return a record of a result that was measured before there were records."""
    name = file.partition("#")[0]
    result = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    machine = result.get("hardware") or _machine(
        result.get("cores"), result.get("machine", platform.machine()), result.get("python")
    )
    return Record(
        command=measurement.command,
        date=result.get("date") or name[:10],
        commit=result.get("commit") or _git("log", "-1", "--format=%h", "--", str(RESULTS / name)),
        machine=machine,
        file=file,
    )


def commit_of_tree() -> str:
    """Return the commit of this tree, with "+" if it has changes."""
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return _git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def figure(claim: Claim, runs: Sequence[Any]) -> Figure:
    """Compute the figure of a claim.

    :raises KeyError: a result lacks the value.
    """
    values = [value for run in runs for value in _values(run, claim.value)]
    if claim.statistic == "rate":
        trials = int(sum(value for run in runs for value in _values(run, claim.trials)))
        events = int(sum(values))
        return Figure(events / trials, rate_interval(events, trials), trials)
    if claim.statistic == "sum":
        return Figure(sum(values), None, len(values))
    if claim.statistic == "most":
        return Figure(max(values), None, len(values))
    of_mean = interval if claim.statistic == "share" else mean_interval
    among = of_mean(values) if len(values) > 1 else None
    return Figure(statistics.mean(values), among, len(values))


def curve(claim: Claim, runs: Sequence[Any]) -> list[float]:
    """Return the learning curve of a claim, the mean of its seeds; [] if it has none."""
    if not claim.curve:
        return []
    kept = [_at(run, claim.curve) for run in runs]
    curves = [each for one in kept for each in (one if isinstance(one[0], list) else [one])]
    return [statistics.mean(values) for values in zip(*curves, strict=True)]


def holds(claim: Claim, found: Figure) -> bool | None:
    """Whether a figure meets the claim's bar; None without a bar."""
    if claim.statistic == "difference":
        if found.interval is None:
            return None
        low, high = found.interval
        return low <= 0 <= high
    if not claim.bar:
        return None
    sign, _, number = claim.bar.partition(" ")
    return bool(_BARS[sign](found.value, float(number)))


def _values(result: Any, place: str) -> Iterator[float]:
    value = _at(result, place)
    yield from value if isinstance(value, list) else [value]


def _at(result: Any, place: str) -> Any:
    for key in filter(None, place.split(".")):
        result = result[int(key)] if isinstance(result, list) else result[key]
    return result


def _result(command: Sequence[str]) -> Any:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{shlex.join(command)} ended with status {done.returncode}")
    result = json.loads(lines[-1])
    if not isinstance(result, Mapping):
        raise RuntimeError(f"the last line of {shlex.join(command)} is not a JSON object")
    return result


def _machine(cores: int | None, architecture: str, python: str | None) -> str:
    parts = [architecture]
    if cores is not None:
        parts.insert(0, f"{cores} cores")
    if python is not None:
        parts.append(f"Python {python}")
    return ", ".join(parts)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
