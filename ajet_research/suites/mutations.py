"""Forgeries of a finished study, each of which ``ajet research verify`` must catch.

Some are of a careless hand: a digit, a row, a file. Others are of one that signs the ledger again
and compiles the report from it, so that chain and report fit each other, and only the raw stores,
the statistics and the order of the rows contradict.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from ajet_core.errors import DamagedRecordError
from ajet_research.arenas.synthetic import RAW
from ajet_research.events import EVENTS, Reported
from ajet_research.leader import REPORT, TRIALS, run_study
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.report import compile_report
from ajet_research.runners import FileRunner
from ajet_research.study import Study, canonical
from ajet_research.suites.planted import planted_study
from ajet_research.verifying import verify_study

Forgery = Callable[[Path, random.Random], None]
Body = dict[str, Any]


def finished_study(directory: Path, *, world: str = "clear", repeats: int = 1) -> Path:
    """Run a small study to its end, and return its directory."""
    study = planted_study(world, looks=((6, 0.04), (8, 0.01)), repeats=repeats)
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "study.json"
    content = canonical(study.model_dump(mode="json", by_alias=True))
    source.write_text(content, encoding="utf-8")
    run_study(source, directory, runner=FileRunner)
    return directory


def run_mutations(*, seed: int, size: int = 48) -> dict[str, Any]:
    """Apply forgeries in turn, each with its own random place, and count those that are caught."""
    began = time.monotonic()
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        original = finished_study(Path(folder) / "original", world="medium")
        clean = verify_study(original)
        for index in range(size):
            name, forge = list(FORGERIES.items())[index % len(FORGERIES)]
            forged = Path(folder) / str(index)
            shutil.copytree(original, forged)
            forge(forged, random.Random(f"{seed}/{index}"))  # noqa: S311 - not for secrets
            if not verify_study(forged).problems:
                missed.append(f"{name} ({index})")
            shutil.rmtree(forged)
    return {
        "suite": "verify",
        "mutations": size,
        "kinds": min(size, len(FORGERIES)),
        "caught": size - len(missed),
        "missed": missed,
        "numerals": clean.numerals,
        "false_alarms": clean.problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": not missed and not clean.problems,
    }


def _sql(statement: str) -> Forgery:
    """Change a row of the ledger, past its triggers, without signing it again."""

    def forge(directory: Path, rng: random.Random) -> None:
        with closing(sqlite3.connect(directory / LEDGER, isolation_level=None)) as connection:
            connection.execute("DROP TRIGGER no_update")
            connection.execute("DROP TRIGGER no_delete")
            (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
            row = rng.randrange(2, count - 1)
            for part in statement.format(row=row, next=row + 1).split(";"):
                connection.execute(part)

    return forge


def _signed(change: Callable[[list[Body], random.Random], None], *, report: bool = True) -> Forgery:
    """Change the events, sign the whole ledger again, and compile the report from it."""

    def forge(directory: Path, rng: random.Random) -> None:
        path = directory / LEDGER
        rows = list(read_ledger(path))
        bodies = [row.event.model_dump(mode="json", by_alias=True) for row in rows]
        change(bodies, rng)
        path.unlink()
        ledger = StudyLedger(path)
        try:
            for body in bodies:
                event = EVENTS.validate_python(body)
                if isinstance(event, Reported) and report:
                    # From some forgeries, no report follows at all.
                    with suppress(DamagedRecordError):
                        event = _compiled_again(directory, ledger)
                ledger.append(event, time=rows[0].time, elapsed=0.0)
        finally:
            ledger.close()

    return forge


def _compiled_again(directory: Path, ledger: StudyLedger) -> Reported:
    compiled = compile_report(ledger.rows)
    for name, content in compiled.files.items():
        (directory / REPORT / name).write_text(content, encoding="utf-8")
    return Reported(files=compiled.hashes)


def _one(bodies: list[Body], kind: str, rng: random.Random) -> Body:
    return rng.choice([body for body in bodies if body["kind"] == kind])


def _better_outcome(bodies: list[Body], rng: random.Random) -> None:
    _one(bodies, "finished", rng)["metrics"]["score"] += 0.5


def _swapped_outcomes(bodies: list[Body], rng: random.Random) -> None:
    first, second = rng.sample([body for body in bodies if body["kind"] == "finished"], 2)
    first["metrics"], second["metrics"] = second["metrics"], first["metrics"]


def _swapped_arms(bodies: list[Body], rng: random.Random) -> None:
    arms: dict[str, str] = bodies[0]["arms"]
    first, second = sorted(set(arms.values()))
    trial = rng.choice(sorted(arms))
    arms[trial] = second if arms[trial] == first else first


def _dropped_trial(bodies: list[Body], rng: random.Random) -> None:
    body = _one(bodies, "finished", rng)
    place = bodies.index(body)
    failed = {"trial": body["trial"], "attempt": 1, "cause": "the worker was lost", "seconds": 0.0}
    bodies[place] = {"kind": "attempt_failed", **failed}
    bodies.insert(place + 1, {"kind": "lost", "trial": body["trial"]})


def _failed_trial(bodies: list[Body], rng: random.Random) -> None:
    _one(bodies, "finished", rng).update(metrics={}, failed="the loss is not finite")


def _finding(field: str, value: object) -> Callable[[list[Body], random.Random], None]:
    def change(bodies: list[Body], rng: random.Random) -> None:
        body = _one(bodies, "looked", rng)
        rng.choice(list(body["findings"].values()))[field] = value

    return change


def _early_look(bodies: list[Body], _rng: random.Random) -> None:
    place = next(index for index, body in enumerate(bodies) if body["kind"] == "looked")
    bodies.insert(place - 2, bodies.pop(place))


def _dropped_look(bodies: list[Body], _rng: random.Random) -> None:
    bodies.remove(next(body for body in bodies if body["kind"] == "looked"))


def _other_decision(bodies: list[Body], rng: random.Random) -> None:
    verdicts: Body = _one(bodies, "decided", rng)["verdicts"]
    name = rng.choice(sorted(verdicts))
    verdicts[name] = "worse" if verdicts[name] != "worse" else "better"


def _other_plan(bodies: list[Body], _rng: random.Random) -> None:
    bodies[0]["study"]["outcome"]["smallest"] = 0.05
    bodies[0]["digest"] = Study.model_validate(bodies[0]["study"]).digest()


def _other_fingerprint(bodies: list[Body], rng: random.Random) -> None:
    _one(bodies, "finished", rng)["fingerprint"] = "0" * 64


def _late_trial(bodies: list[Body], rng: random.Random) -> None:
    """A trial that was not needed is run after the last look."""
    place = next(index for index, body in enumerate(bodies) if body["kind"] == "decided")
    reserved = [body for body in bodies[:place] if body["kind"] == "reserved"]
    bodies.insert(place, {**rng.choice(reserved), "attempt": 2})


def _digit(name: str) -> Forgery:
    """Change one digit of a file."""

    def forge(directory: Path, rng: random.Random) -> None:
        _change_digit(directory / REPORT / name, rng)

    return forge


def _change_digit(path: Path, rng: random.Random) -> None:
    text = path.read_text(encoding="utf-8")
    place = rng.choice([match.start() for match in re.finditer(r"[0-8]", text)])
    path.write_text(text[:place] + str(int(text[place]) + 1) + text[place + 1 :], encoding="utf-8")


def _word(name: str, old: str, new: str) -> Forgery:
    """Change a claim in prose."""

    def forge(directory: Path, _rng: random.Random) -> None:
        path = directory / REPORT / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, new), encoding="utf-8")

    return forge


def _trial(directory: Path, rng: random.Random) -> Path:
    return rng.choice(sorted((directory / TRIALS).iterdir()))


def _store_digit(directory: Path, rng: random.Random) -> None:
    _change_digit(_trial(directory, rng) / "store" / RAW, rng)


def _store_cut(directory: Path, rng: random.Random) -> None:
    path = _trial(directory, rng) / "store" / RAW
    path.write_bytes(path.read_bytes()[:-20])


def _stores_swapped(directory: Path, rng: random.Random) -> None:
    first, second = rng.sample(sorted((directory / TRIALS).iterdir()), 2)
    one, other = (path / "store" / RAW for path in (first, second))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _store_removed(directory: Path, rng: random.Random) -> None:
    shutil.rmtree(_trial(directory, rng))


def _store_file_added(directory: Path, rng: random.Random) -> None:
    (_trial(directory, rng) / "store" / "more.jsonl").write_text("{}\n", encoding="utf-8")


def _trial_added(directory: Path, rng: random.Random) -> None:
    shutil.copytree(_trial(directory, rng), directory / TRIALS / f"{rng.randrange(16**12):012x}")


def _blueprint_changed(directory: Path, rng: random.Random) -> None:
    path = _trial(directory, rng) / "blueprint.json"
    content = json.loads(path.read_bytes())
    content["seed"] += 1
    path.write_text(json.dumps(content), encoding="utf-8")


def _result_changed(directory: Path, rng: random.Random) -> None:
    path = _trial(directory, rng) / "result-1.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps({**content, "seconds": 99.5}), encoding="utf-8")


def _study_changed(directory: Path, _rng: random.Random) -> None:
    path = directory / "study.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"smallest":0.2', '"smallest":0.1'), encoding="utf-8")


def _report_file_removed(directory: Path, rng: random.Random) -> None:
    rng.choice(sorted((directory / REPORT).iterdir())).unlink()


def _report_file_added(directory: Path, _rng: random.Random) -> None:
    (directory / REPORT / "summary.md").write_text("It works.\n", encoding="utf-8")


FORGERIES: dict[str, Forgery] = {
    "row: digit": _sql(
        "UPDATE events SET body = replace(body, '1', '7') WHERE seq = {row} AND body LIKE '%1%'"
        ";UPDATE events SET elapsed = elapsed + 1 WHERE seq = {row}"
    ),
    "row: removed": _sql("DELETE FROM events WHERE seq = {row}"),
    "rows: swapped": _sql(
        "UPDATE events SET seq = -1 WHERE seq = {row}"
        ";UPDATE events SET seq = {row} WHERE seq = {next}"
        ";UPDATE events SET seq = {next} WHERE seq = -1"
    ),
    "row: time": _sql("UPDATE events SET time = '2001-01-01T00:00:00+00:00' WHERE seq = {row}"),
    "row: hash": _sql("UPDATE events SET hash = previous WHERE seq = {row}"),
    "row: kind": _sql("UPDATE events SET kind = 'lost' WHERE seq = {row}"),
    "rows: end removed": _sql("DELETE FROM events WHERE seq > {row}"),
    "row: not JSON": _sql("UPDATE events SET body = body || ' ' WHERE seq = {row}"),
    "schema": _sql("PRAGMA user_version = 99"),
    "signed: outcome": _signed(_better_outcome),
    "signed: outcomes swapped": _signed(_swapped_outcomes),
    "signed: arms swapped": _signed(_swapped_arms),
    "signed: trial dropped": _signed(_dropped_trial),
    "signed: trial failed": _signed(_failed_trial),
    "signed: gain": _signed(_finding("gain", 3.25)),
    "signed: p": _signed(_finding("p", 0.03125)),
    "signed: low": _signed(_finding("low", 0.75)),
    "signed: high": _signed(_finding("high", 9.5)),
    "signed: alpha": _signed(_finding("alpha", 0.5)),
    "signed: verdict": _signed(_finding("verdict", "equivalent")),
    "signed: wins": _signed(_finding("wins", 0.125)),
    "signed: pairs": _signed(_finding("seeds", [1, 2, 3])),
    "signed: early look": _signed(_early_look),
    "signed: look dropped": _signed(_dropped_look),
    "signed: decision": _signed(_other_decision),
    "signed: plan": _signed(_other_plan),
    "signed: fingerprint": _signed(_other_fingerprint),
    "signed: trial after the look": _signed(_late_trial),
    "signed: another time": _signed(lambda _bodies, _rng: None, report=False),
    "store: digit": _store_digit,
    "store: cut": _store_cut,
    "store: swapped": _stores_swapped,
    "store: removed": _store_removed,
    "store: file added": _store_file_added,
    "trial: added": _trial_added,
    "trial: blueprint": _blueprint_changed,
    "trial: result": _result_changed,
    "study: changed": _study_changed,
    "report: Markdown digit": _digit("report.md"),
    "report: page digit": _digit("report.html"),
    "report: JSON digit": _digit("report.json"),
    "report: data digit": _digit("intervals.csv"),
    "report: picture digit": _digit("intervals.svg"),
    "report: record digit": _digit("record.md"),
    "report: prose": _word("report.md", "See the verdicts", "Method b wins"),
    "report: verdict": _word("report.html", "undecided", "better"),
    "report: file removed": _report_file_removed,
    "report: file added": _report_file_added,
}
"""By name, how a study is forged."""
