"""Findings of a run that is over."""

from __future__ import annotations

import json
from pathlib import Path

from ajet_cli.report.past_findings import FindingReplay, logged_findings
from ajet_core.interfaces import StepRecord
from ajet_core.protocol import FailureConfig
from ajet_server.health import HealthMonitor

_GOOD = {"reward_mean": 0.5, "calls": 10.0, "calls_cut_off": 0.0}
_CUT_OFF = {**_GOOD, "calls_cut_off": 9.0}


def steps(*metrics: dict[str, float]) -> list[StepRecord]:
    """Steps with these metrics."""
    return [StepRecord(i, f"b{i}", one, 1000.0 + i) for i, one in enumerate(metrics, 1)]


def replayed(*metrics: dict[str, float]) -> FindingReplay:
    """The findings after these steps."""
    replay = FindingReplay(FailureConfig())
    for step in steps(*metrics):
        replay.add(step)
    return replay


def test_a_finding_has_its_first_and_its_last_step() -> None:
    (one,) = replayed(_GOOD, _CUT_OFF, _CUT_OFF, _GOOD, _GOOD).findings()
    assert (one.code, one.first, one.last) == ("cut_off", 2, 3)
    assert "max_tokens" in one.sentence


def test_a_finding_that_still_holds_comes_first_and_is_that_of_the_server() -> None:
    past = [_CUT_OFF, _GOOD, _GOOD, _CUT_OFF]
    found = replayed(*past).findings()
    assert [(one.first, one.last) for one in found] == [(4, None), (1, 1)]
    (present,) = HealthMonitor(FailureConfig(), steps(*past)).findings
    assert (found[0].sentence, found[0].good_step) == (present.sentence, present.good_step)


def test_other_findings_come_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "findings.jsonl"
    lines = [
        {"step": 3, "code": "no_clients", "message": "first"},
        {"step": 4, "code": "cut_off", "message": "is about training"},
        {"step": 8, "code": "no_clients", "message": "last"},
    ]
    text = "\n".join(map(json.dumps, lines))
    log.write_text(f'{text}\n{{"step": "x"}}\n[1]\n{{"step": 9, "co', encoding="utf-8")
    (one,) = logged_findings(log)
    assert (one.code, one.sentence, one.first, one.last, one.times) == (
        "no_clients",
        "last",
        3,
        8,
        2,
    )
    assert logged_findings(tmp_path / "missing") == []
