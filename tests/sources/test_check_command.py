"""``ajet check`` finds graders that are wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sources.conftest import ajet

GRADERS = """
import itertools, os, socket, subprocess, sys

turns = itertools.count()

def right(row, answer):
    return float(answer == row["answer"])

def raises_on_junk(row, answer):
    return float(int(answer) == int(row["answer"]))

def believes_all_words(row, answer):
    return float(answer == row["answer"] or "know" in answer)

def partial_credit(row, answer):
    return 1.0 if answer == row["answer"] else 0.125 if "+" in answer else 0.0

def refuses_the_reference(row, answer):
    return 0.5 * (answer == row["answer"])

def pays_for_nothing(row, answer):
    return float(answer in ("", row["answer"]))

def random(row, answer):
    return float(answer == row["answer"]) * (next(turns) % 2)

def too_much(row, answer):
    return 2.0 * (answer == row["answer"])

def not_a_number(row, answer):
    return float("nan") if answer == "" else right(row, answer)

def hangs(row, answer):
    import time
    time.sleep(0.0 if answer == row["answer"] else 3.0)
    return right(row, answer)

def asks_the_internet(row, answer):
    with socket.socket() as other:
        other.settimeout(0.01)
        try:
            other.connect(("192.0.2.1", 80))
        except OSError:
            pass
    return right(row, answer)

def starts_a_program_with_a_key(row, answer):
    subprocess.run([sys.executable, "-c", ""], env={"OTHER_API_KEY": "x"}, check=False)
    return right(row, answer)
"""


def check(name: str, *options: str, **environ: str) -> tuple[int, dict[str, Any]]:
    source = f"rows.jsonl?judge=graders:{name}&prompt=question"
    result = ajet("check", source, "--json", *options, **environ)
    return result.exit_code, json.loads(result.output)


def faults(report: dict[str, Any]) -> set[tuple[str, str]]:
    counts = Counter(
        (finding["fault"], finding["probe"])
        for task in report["tasks"]
        for finding in task["findings"]
    )
    return set(counts)


@pytest.fixture(autouse=True)
def graders(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "graders", raising=False)
    (rows / "graders.py").write_text(GRADERS)


def test_a_right_grader_has_no_findings() -> None:
    code, report = check("right")
    assert (code, faults(report)) == (0, set())
    assert [task["task_id"] for task in report["tasks"]] == ["a", "b", "c"]
    rewards = {"reference": [1.0, 1.0], "nop": [0.0, 0.0]}
    assert report["tasks"][0]["rewards"] == {
        **rewards,
        "unknown": [0.0, 0.0],
        "question": [0.0, 0.0],
    }
    assert report["unscored"] == report["without_reference"] == report["hosts"] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("raises_on_junk", {("probe_failed", probe) for probe in ("nop", "unknown", "question")}),
        ("believes_all_words", {("junk_above_minimum", "unknown")}),
        ("partial_credit", {("junk_above_minimum", "question")}),
        ("refuses_the_reference", {("reference_below_maximum", "reference")}),
        ("pays_for_nothing", {("nop_not_below_reference", "nop")}),
        (
            "random",
            {
                ("not_deterministic", "reference"),
                ("reference_below_maximum", "reference"),
                ("nop_not_below_reference", "nop"),
            },
        ),
        ("too_much", {("outside_range", "reference")}),
        ("not_a_number", {("probe_failed", "nop")}),
    ],
)
def test_wrong_graders_are_found(name: str, found: set[tuple[str, str]]) -> None:
    code, report = check(name, "--concurrency", "1")
    assert code == 1
    assert faults(report) == found


@pytest.mark.slow
def test_a_score_that_takes_too_long_is_a_finding() -> None:
    code, report = check("hangs", "--timeout", "0.5", "--limit", "1")
    assert code == 1
    assert faults(report) == {("probe_failed", probe) for probe in ("nop", "unknown", "question")}
    assert "took more than 0.5 s" in report["tasks"][0]["findings"][0]["detail"]


def test_a_grader_that_uses_the_network_is_shown() -> None:
    code, report = check("asks_the_internet")
    assert (code, report["hosts"]) == (0, ["192.0.2.1"])


@pytest.mark.processes
def test_keys_that_a_grader_sees_are_shown() -> None:
    _, report = check("starts_a_program_with_a_key", "--limit", "1", MY_TOKEN="x")
    assert {"MY_TOKEN", "OTHER_API_KEY"} <= set(report["keys"])
    assert "PATH" not in report["keys"]


def test_a_person_reads_what_is_wrong_with_which_task() -> None:
    result = ajet("check", "rows.jsonl?judge=graders:believes_all_words&prompt=question")
    assert "a: junk_above_minimum (unknown): 1, the least is 0" in result.output
    assert "3 tasks checked, 3 with findings: 3 junk_above_minimum" in result.output


@pytest.mark.processes
@pytest.mark.parametrize(
    ("judge", "fields", "found"),
    [
        # Patterns that match anything, or not the reference.
        ("regex", {"pattern": r"\d+"}, set()),
        ("regex", {"pattern": ".*"}, {"nop_not_below_reference", "junk_above_minimum"}),
        ("regex", {"pattern": "[a-z]+"}, {"reference_below_maximum", "nop_not_below_reference"}),
        ("json_schema", {"schema": {"type": "integer"}}, set()),
        (
            "json_schema",
            {"schema": {"type": "array"}},
            {"reference_below_maximum", "nop_not_below_reference"},
        ),
        ("symbolic", {}, set()),
    ],
)
def test_judges_with_wrong_tasks_are_found(
    judge: str, fields: dict[str, Any], found: set[str], tmp_path: Path
) -> None:
    row = {"id": "a", "prompt": "What is half of 84, as a number?", "answer": "42", **fields}
    Path("judged.jsonl").write_text(json.dumps(row))
    result = ajet("check", f"judged.jsonl?judge={judge}", "--json")
    assert {fault for fault, _ in faults(json.loads(result.output))} == found
