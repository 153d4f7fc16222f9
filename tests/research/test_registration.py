"""Registration refuses what cannot work, with the number and the way out."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet_core.errors import ConfigError
from ajet_research.arenas import MetricSpec, TrialEvidence, load_arena, read_evidence
from ajet_research.arenas.synthetic import SyntheticArena
from ajet_research.events import AnyEvent
from ajet_research.leader import run_study
from ajet_research.registration import power, register
from ajet_research.replicating import replicate_study
from ajet_research.runners import FileRunner
from ajet_research.verifying import verify_study
from tests.research.studies import TEXT, study, written


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        register(study(**changes), Path())
    return error.value.message


def looks(*pairs: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"seeds": seeds, "alpha": alpha} for seeds, alpha in pairs]


def test_a_study_that_can_work_is_registered() -> None:
    registration = register(study(), Path())
    assert len(registration.blueprints) == 2 * 8 + 1
    assert registration.warnings == ()


def test_trials_start_seed_by_seed_in_an_order_drawn_from_the_study() -> None:
    registration = register(study(), Path())
    seeds = [one.seed for one in registration.blueprints.values()]
    assert seeds == sorted(seeds)
    first = [registration.arms[id_] for id_, one in registration.blueprints.items() if one.seed > 1]
    assert len({tuple(first[n : n + 2]) for n in range(0, len(first), 2)}) == 2


def test_too_few_seeds_are_refused_with_the_least_number() -> None:
    message = refusal(inference__looks=looks((5, 0.05)))
    assert "2/2^5 = 0.062, above its alpha of 0.05. 6 seeds are the least: 2/2^6 = 0.031" in message


def test_alpha_is_divided_among_comparisons() -> None:
    levels = ["a", "b", "c"]
    compare = [
        {"id": f"{one}-vs-a", "arm": {"method": one}, "against": {"method": "a"}}
        for one in levels[1:]
    ]
    message = refusal(
        factors__method__levels=levels,
        compare=compare,
        decide=[{"otherwise": True, "conclude": "See the verdicts."}],
        inference__looks=looks((6, 0.05)),
        budget__trials=30,
    )
    assert "alpha of 0.025 (0.05 / 2 comparisons). 7 seeds are the least" in message


def test_more_alpha_than_there_is_is_refused() -> None:
    assert "add up to 0.09, above alpha = 0.05" in refusal(
        inference__looks=looks((6, 0.04), (8, 0.05))
    )


def test_too_few_trials_are_refused_with_the_number_needed() -> None:
    assert "needs 17 trials (2 arms x 8 seeds + 1 repeated), and budget.trials is 16" in refusal(
        budget__trials=16
    )


def test_too_little_time_is_refused_with_the_hours_needed() -> None:
    message = refusal(budget__compute_hours=0.1)
    assert "17 trials of 30 s take 0.142 h, and budget.compute_hours is 0.1" in message


def test_trials_that_may_outlast_the_wall_time_are_refused() -> None:
    message = refusal(budget__wall_hours=0.008)
    assert "A trial may take 30 s, and budget.wall_hours is 0.008, so none could start" in message


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    assert "no metric 'reward'; it has: score, far_score, loss, train_reward" in refusal(
        outcome__metric="reward"
    )


def test_an_unknown_arena_is_refused_with_the_known_ones() -> None:
    assert "Unknown arena 'gridwalk'; known: swarm, synthetic" in refusal(base__arena="gridwalk")


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    message = refusal(base__set={"wordl": "clear"})
    assert "All arms: Unknown setting 'wordl' of the arena synthetic; known: world" in message
    assert message.count("wordl") == 1


def test_a_refusal_of_one_arm_names_it() -> None:
    assert "The arm method=\"x\": Unknown synthetic world 'x'" in refusal(
        factors__method__path="world",
        factors__method__levels=["clear", "x"],
        compare=[{"id": "b-vs-a", "arm": {"method": "x"}, "against": {"method": "clear"}}],
    )


def test_a_hole_in_the_decisions_is_refused_with_a_case() -> None:
    message = refusal(
        decide=[
            {"when": {"b-vs-a": ["better", "worse"]}, "conclude": "Use the one that is better."}
        ]
    )
    assert "a hole: none applies to b-vs-a = 'equivalent'" in message


def test_decisions_behind_otherwise_are_refused() -> None:
    branches = [
        {"otherwise": True, "conclude": "Keep a."},
        {"when": {"b-vs-a": "better"}, "conclude": "Use b: it is better."},
    ]
    assert "those after it can never apply" in refusal(decide=branches)


def test_tasks_in_both_splits_are_refused() -> None:
    message = refusal(base__set={"world": "overlap"})
    assert "trains on 1 of the 8 tasks that it is evaluated on with seed 1: task-0" in message


def test_arms_that_differ_in_more_than_their_factor_are_refused() -> None:
    message = refusal(base__set={"world": "confounded"})
    assert "differ in more than their factors: batch_size is 64 and 16" in message


def test_arms_that_differ_in_nothing_are_refused() -> None:
    message = refusal(
        compare=[{"id": "b-vs-a", "arm": {"method": "a"}, "against": {"method": "a"}}]
    )
    assert "The arms of 'b-vs-a' differ in nothing" in message


def test_an_evaluator_that_is_not_frozen_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyntheticArena, "evaluator", lambda self, settings: "")
    assert "is not frozen, so its scores prove nothing" in refusal()


@pytest.mark.parametrize(
    ("sentence", "problem"),
    [
        ("Use b: it gives 3 points more.", "'3' is a number"),
        ("Use b: it is twice as good.", "'twice' is a number"),
        ("This proves that b works.", "'proves' claims more"),
        ("Both are equivalent.", "'equivalent' needs a comparison whose verdict is equivalent"),
    ],
)
def test_a_conclusion_that_its_verdict_does_not_carry_is_refused(
    sentence: str, problem: str
) -> None:
    branches = [
        {"when": {"b-vs-a": "better"}, "conclude": sentence},
        {"otherwise": True, "conclude": "Keep a."},
    ]
    assert f"The conclusion of decision 1: {problem}" in refusal(decide=branches)


def test_a_comparative_for_every_verdict_is_refused() -> None:
    assert "'better' needs a comparison" in refusal(
        decide=[{"otherwise": True, "conclude": "Method b is better."}]
    )


def test_a_low_power_is_a_warning_with_the_seeds_that_are_needed() -> None:
    (warning,) = register(study(inference__sd=0.2), Path()).warnings
    assert "with a probability of about 0." in warning
    assert "seeds would show it in four of five studies" in warning
    assert power(study(), 0.4, 8, 0.2) < 0.5


def test_a_high_power_needs_no_warning() -> None:
    assert register(study(inference__sd=0.05), Path()).warnings == ()
    assert power(study(), 0.4, 8, 0.05) > 0.99


def test_an_arena_that_two_distributions_register_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from importlib.metadata import EntryPoint

    from ajet_research import arenas

    mine = EntryPoint("synthetic", "mine:Arena", arenas.GROUP)
    monkeypatch.setattr(arenas, "_registered", lambda: (mine,))
    with pytest.raises(ConfigError, match=r"registered more than once: .*mine:Arena"):
        load_arena("synthetic")


@pytest.mark.processes
def test_code_that_is_not_committed_is_refused(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    git("init", "-q")
    (tmp_path / "agent.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match=r"not committed: agent\.py"):
        register(study(code={"path": "."}), tmp_path)
    git("add", "-A")
    git("commit", "-q", "-m", "Agent")
    registration = register(study(code={"path": "."}), tmp_path)
    assert {len(one.code) for one in registration.blueprints.values()} == {40}


@pytest.mark.processes
def test_a_study_with_code_verifies_resumes_and_replicates_with_the_same_code_alone(
    tmp_path: Path,
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    committed(code, "x = 1\n")
    text = TEXT.replace(
        "{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }", "{ seeds = 6, alpha = 0.05 }"
    )
    source = written(tmp_path, text + '\n[code]\npath = "code"\n')
    directory = tmp_path / "elsewhere" / "study"
    run_study(source, directory, runner=FileRunner)
    assert verify_study(directory).problems == []
    # A relative path means the same in the copy, which lies elsewhere.
    again = replicate_study(directory, tmp_path / "new", runner=FileRunner)
    assert again.first.keys() == again.again.keys()
    assert verify_study(tmp_path / "new").problems == []
    committed(code, "x = 2\n")
    assert verify_study(directory).problems == []
    with pytest.raises(ConfigError, match="The code in code is not the one that is registered"):
        interrupted(source, tmp_path / "other", lambda: committed(code, "x = 3\n"))


def committed(code: Path, content: str) -> None:
    """Commit a file to a repository, which is created if there is none."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    (code / "agent.py").write_text(content)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Agent"]):
        subprocess.run(["git", "-C", str(code), *identity, *command], check=True)


def interrupted(source: Path, directory: Path, meanwhile: Callable[[], None]) -> None:
    """Run a study whose leader ends after ten rows, and run it again."""

    class EndedError(Exception):
        pass

    rows = itertools.count()

    def end(event: AnyEvent) -> None:
        if next(rows) == 10:
            raise EndedError

    with pytest.raises(EndedError):
        run_study(source, directory, runner=FileRunner, on_event=end)
    meanwhile()
    run_study(source, directory, runner=FileRunner)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"score": 1.0}, "gives the metrics score, and the arena has far_score, loss, score"),
        (dict.fromkeys(SyntheticArena.metrics, math.nan), "= nan, which is not a finite number"),
        (dict.fromkeys(SyntheticArena.metrics, math.inf), "= inf, which is not a finite number"),
    ],
    ids=["missing", "nan", "infinite"],
)
def test_evidence_without_a_finite_number_for_each_metric_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, float], problem: str
) -> None:
    evidence = TrialEvidence(metrics=values, fingerprint="1")
    monkeypatch.setattr(SyntheticArena, "evidence", lambda *arguments: evidence)
    its = next(iter(register(study(), Path()).blueprints.values()))
    with pytest.raises(ConfigError, match=problem):
        read_evidence(SyntheticArena(), its, tmp_path)
    state = run_study(written(tmp_path), tmp_path / "study", runner=FileRunner)
    assert {one.status for one in state.trials.values() if one.attempts} == {"lost"}


def test_a_failed_trial_has_no_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = TrialEvidence(metrics={"score": 9.0}, failed="all episodes failed")
    monkeypatch.setattr(SyntheticArena, "evidence", lambda *arguments: evidence)
    its = next(iter(register(study(), Path()).blueprints.values()))
    assert read_evidence(SyntheticArena(), its, tmp_path).metrics == {}


def test_a_guardrail_without_a_worst_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {**SyntheticArena.metrics, "far_score": MetricSpec("max", None, "")}
    monkeypatch.setattr(SyntheticArena, "metrics", metrics)
    guardrails = [{"metric": "far_score", "margin": 1.0}]
    message = refusal(outcome__guardrails=guardrails, outcome__failed=-3.0)
    assert "'far_score' has no worst value" in message
    assert "Use a metric that has one: score, loss, train_reward." in message


def test_two_arms_with_equal_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = SyntheticArena.resolve
    monkeypatch.setattr(
        SyntheticArena,
        "resolve",
        lambda self, settings: resolve(
            self, {**settings, "method": "b" if settings["method"] == "c" else settings["method"]}
        ),
    )
    message = refusal(
        factors__method__levels=["a", "b", "c"],
        compare=[
            {"id": f"{one}-vs-a", "arm": {"method": one}, "against": {"method": "a"}}
            for one in ("b", "c")
        ],
        decide=[{"otherwise": True, "conclude": "Keep a."}],
        budget__trials=100,
    )
    assert 'method="b" and method="c" have the same settings' in message
