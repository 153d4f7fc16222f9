"""``ajet research try`` shows whether arms run, and neither registers nor shows anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_cli.studies import trying
from ajet_cli.studies.trying import TriedArm, try_arms
from ajet_core.errors import ConfigError
from ajet_research.arenas import Arena, TrialBlueprint
from ajet_research.study import parse_study, study_text
from ajet_research.suites.attacks import HONEST_ARM
from tests.research.studies import TEXT, written

ENDLESS = TEXT.replace("clear", "endless").replace("trial_seconds = 30", "trial_seconds = 1")
SEARCHED = """\
schema = 1
topic = { question = "Which program is best?" }
base = { arena = "swarm", set = { world = "bandit" } }
outcome = { metric = "success", smallest = 0.05 }
inference = { looks = [{ seeds = 6, alpha = 0.05 }], repeats = 0 }
decide = [{ otherwise = true, conclude = "See the verdicts." }]
budget = { trials = 100, trial_seconds = 60, compute_hours = 9 }
compare = [{ id = "c", arm = { search = "chosen" }, against = { search = "baseline" } }]

[search]
sampler = "random"
candidates = 3
first_seed = 101

[search.parameters.program]
path = "agent"
choices = ["world", "code:first.py", "code:second.py"]

[search.parameters.rate]
path = "algorithm.learning_rate"
low = 1e-4
high = 1e-2
"""


@pytest.fixture
def blueprints(monkeypatch: pytest.MonkeyPatch) -> dict[str, TrialBlueprint]:
    """By arm, the trials that would run."""
    its: dict[str, TrialBlueprint] = {}

    def kept(arm: str, _: Arena, blueprint: TrialBlueprint) -> TriedArm:
        its[arm] = blueprint
        return TriedArm(arm, 0.0, "", "")

    monkeypatch.setattr(trying, "_trial", kept)
    monkeypatch.setattr(trying, "check_machine", lambda _: None)
    return its


@pytest.mark.processes
def test_each_arm_runs_once_and_nothing_is_left(tmp_path: Path) -> None:
    source = written(tmp_path)
    done = CliRunner().invoke(cli, ["research", "try", str(source)])
    assert done.exit_code == 0, done.output
    arms = [line.partition(" after ")[0] for line in done.output.splitlines()]
    assert arms == ['method="a": ended', 'method="b": ended']
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.processes
def test_an_arm_that_does_not_end_fails_and_the_others_are_tried(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["research", "try", str(written(tmp_path, ENDLESS)), "--json"])
    assert done.exit_code == 1, done.output
    assert {one["arm"]: one["problem"] for one in json.loads(done.stdout)} == {
        'method="a"': "",
        'method="b"': "time limit",
    }


@pytest.mark.processes
def test_an_arm_whose_trial_breaks_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    # A setting of the synthetic world that no trial survives.
    done = CliRunner().invoke(
        cli, ["research", "try", str(written(tmp_path)), "--set", "step_seconds=-1"]
    )
    assert done.exit_code == 1, done.output
    assert 'method="a": failed: exit status 1: ValueError' in done.stdout
    assert "Traceback" in done.stderr


def test_the_trials_have_a_seed_that_the_study_does_not_use(
    tmp_path: Path, blueprints: dict[str, TrialBlueprint]
) -> None:
    source = written(tmp_path)
    try_arms(source)
    assert list(blueprints) == ['method="a"', 'method="b"']
    assert {one.seed for one in blueprints.values()}.isdisjoint(
        parse_study(study_text(source), "study.toml").seeds
    )


def test_a_change_is_one_of_these_trials(
    tmp_path: Path, blueprints: dict[str, TrialBlueprint]
) -> None:
    done = CliRunner().invoke(
        cli,
        ["research", "try", str(written(tmp_path)), "--set", "steps=1", "--set", "split=tuning"],
    )
    assert done.exit_code == 0, done.output
    assert [one.settings["steps"] for one in blueprints.values()] == [1, 1]
    assert {one.settings["split"] for one in blueprints.values()} == {"tuning"}
    assert [one.settings["method"] for one in blueprints.values()] == ["a", "b"]


@pytest.mark.parametrize("change", ["steps", "=3", "steps=[1]"])
def test_a_change_that_is_not_a_setting_with_its_value_is_refused(
    tmp_path: Path, change: str
) -> None:
    done = CliRunner().invoke(cli, ["research", "try", str(written(tmp_path)), "--set", change])
    assert done.exit_code == 2
    assert f"--set {change}: expected PATH=VALUE" in done.output


def test_a_change_that_the_arena_does_not_know_is_refused_with_those_it_knows(
    tmp_path: Path, blueprints: dict[str, TrialBlueprint]
) -> None:
    with pytest.raises(ConfigError, match=r"Unknown setting .speed.*known: .*steps"):
        try_arms(written(tmp_path), {"speed": 1})
    assert blueprints == {}


def test_a_study_that_is_refused_is_not_tried(
    tmp_path: Path, blueprints: dict[str, TrialBlueprint]
) -> None:
    with pytest.raises(ConfigError, match=r"budget\.trials is 2"):
        try_arms(written(tmp_path, TEXT.replace("trials = 20", "trials = 2")))
    assert blueprints == {}


def test_of_a_search_the_baseline_a_candidate_and_each_program_are_tried(
    tmp_path: Path, blueprints: dict[str, TrialBlueprint]
) -> None:
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(f"# {name}\n{HONEST_ARM}")
    try_arms(written(tmp_path, SEARCHED))
    agents = [str(one.settings["agent"]).splitlines()[0] for one in blueprints.values()]
    assert agents[0] == "world"
    assert set(agents[1:]) == {"world", "code:# first", "code:# second"}
    assert {one.seed for one in blueprints.values()} == {102}
    rates = {one.settings["algorithm.learning_rate"] for one in list(blueprints.values())[1:]}
    assert len(rates) == 1
