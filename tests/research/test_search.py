"""A search: candidates are tried on seeds of their own, and confirmed on fresh ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError
from ajet_research.actions import Await, Reserve, actions
from ajet_research.analysis import final_verdicts
from ajet_research.arenas import TrialBlueprint
from ajet_research.events import Advanced, Finished, Proposed
from ajet_research.leader import StudyLeader, run_study
from ajet_research.registration import register
from ajet_research.report import compile_report, unlinked_numerals
from ajet_research.runners import FileRunner
from ajet_research.search.sampling import ToldCandidate, proposed_values
from ajet_research.search.space import Search
from ajet_research.state import StudyState, fold
from ajet_research.study import Study, parse_study
from ajet_research.verifying import verify_study
from tests.research.test_leader import Clock, KilledError, Runner, led, new_ledger, not_called_for

TEXT = """\
schema = 1

[topic]
question = "Is there a place that is better than the middle?"

[base]
arena = "synthetic"
set = { world = "hill", steps = 1 }

[search]
sampler = "random"
candidates = 12
first_seed = 101
rungs = [{ seeds = 1, keep = 4 }, { seeds = 2 }]
set = { split = "tuning" }

[search.parameters.x]
path = "x"
low = -1.0
high = 1.0

[search.parameters.y]
path = "y"
low = -1.0
high = 1.0
step = 0.25

[outcome]
metric = "score"
smallest = 0.2

[inference]
looks = [{ seeds = 6, alpha = 0.04 }, { seeds = 10, alpha = 0.01 }]

[[compare]]
id = "chosen-vs-baseline"
arm = { search = "chosen" }
against = { search = "baseline" }

[[decide]]
when = { chosen-vs-baseline = "better" }
conclude = "Use the chosen place: it is better."

[[decide]]
otherwise = true
conclude = "Stay in the middle."

[budget]
trials = 41
trial_seconds = 30
compute_hours = 1
"""


def searching(**changes: Any) -> Study:
    """The study of `TEXT` with parts replaced, such as ``search__batch=2``."""
    content = parse_study(TEXT, "study.toml").model_dump(mode="json", by_alias=True)
    for name, value in changes.items():
        part = content
        *parents, last = name.split("__")
        for parent in parents:
            part = part[parent]
        part[last] = value
    return parse_study(_json(content), "study.json")


def _json(content: object) -> str:
    import json

    return json.dumps(content)


def written(directory: Path, text: str = TEXT) -> Path:
    path = directory / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def chosen(state: StudyState) -> Proposed:
    (number,) = state.entered
    return state.candidates[number - 1]


def test_a_search_finds_a_hill_and_confirms_it_on_fresh_seeds() -> None:
    leader = led(searching())
    state = leader.state
    assert final_verdicts(state) == {"chosen-vs-baseline": "better"}
    its = chosen(state).values
    assert (float(its["x"]) - 0.7) ** 2 + (float(its["y"]) + 0.5) ** 2 < 0.5
    assert len(state.candidates) == 12
    assert not_called_for(leader.ledger) == []
    searched, confirmed = set(), set()
    for trial in state.trials.values():
        split = trial.blueprint.settings["split"]
        (searched if trial.arm.startswith("candidate") else confirmed).add(trial.blueprint.seed)
        assert split == ("tuning" if trial.arm.startswith("candidate") else "held-out")
    assert searched == {101, 102, 103}
    assert confirmed == set(range(1, 11))
