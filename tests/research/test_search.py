"""A search: candidates are tried on seeds of their own, and confirmed on fresh ones."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import random
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.errors import ConfigError, StoreError
from ajet_research.actions import Await, Reserve, actions
from ajet_research.analysis import final_verdicts
from ajet_research.arenas import TrialBlueprint, registered_arena
from ajet_research.arenas.synthetic import SyntheticArena
from ajet_research.events import Advanced, Finished, Proposed
from ajet_research.leader import StudyLeader, registered_event, run_study
from ajet_research.ledger import LEDGER, StudyLedger, read_ledger
from ajet_research.registration import register
from ajet_research.replicating import replicate_study
from ajet_research.report import compile_report, unlinked_numerals
from ajet_research.researchers.asking import RefusedError
from ajet_research.researchers.proposing import CEILINGS, TopicFile, accepted_study
from ajet_research.runners import FileRunner
from ajet_research.search.sampling import TriedCandidate, proposed_values
from ajet_research.search.space import Search
from ajet_research.search.steps import next_candidate
from ajet_research.state import StudyState, fold
from ajet_research.status import study_status
from ajet_research.study import Scalar, Study, parse_study
from ajet_research.suites import SUITES
from ajet_research.suites.mutations import Body, _signed
from ajet_research.verifying import _wrong_search, verify_study
from tests.research.studies import written as write_study
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
candidates = 24
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
trials = 53
trial_seconds = 30
compute_hours = 1
"""


LEARNING = "tpe" if find_spec("optuna") else "random"


def searching(**changes: Any) -> Study:
    """The study of `TEXT` with parts replaced, such as ``search__batch=2``."""
    content = parse_study(TEXT, "study.toml").model_dump(mode="json", by_alias=True)
    for name, value in changes.items():
        part = content
        *parents, last = name.split("__")
        for parent in parents:
            part = part[parent]
        part[last] = value
    return parse_study(json.dumps(content), "study.json")


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
    assert len(state.candidates) == 24
    assert not_called_for(leader.ledger) == []
    searched: set[int] = set()
    confirmed: set[int] = set()
    for trial in state.trials.values():
        split = trial.blueprint.settings["split"]
        (searched if trial.arm.startswith("candidate") else confirmed).add(trial.blueprint.seed)
        assert split == ("tuning" if trial.arm.startswith("candidate") else "held-out")
    assert searched == {101, 102, 103}
    assert confirmed == set(range(1, 11))


def test_what_a_split_rewards_is_not_confirmed_on_the_hidden_one() -> None:
    state = led(searching(base__set={"world": "bait", "steps": 1})).state
    assert float(chosen(state).values["x"]) > 0.5
    assert final_verdicts(state)["chosen-vs-baseline"] != "better"


def test_fewer_candidates_in_each_rung_are_the_best_of_the_one_before() -> None:
    leader = led(searching())
    first, last = (row.event for row in leader.ledger.rows if isinstance(row.event, Advanced))
    measured: dict[str, float] = {}
    for row in leader.ledger.rows:
        if isinstance(row.event, Finished):
            trial = leader.state.trials[row.event.trial]
            if trial.arm.endswith("rung 1"):
                measured[trial.arm] = row.event.metrics["score"]
    best = sorted(measured, key=lambda arm: -measured[arm])[:4]
    assert [f"candidate {number}, rung 1" for number in first.candidates] == best
    assert len(last.candidates) == 1
    assert set(last.candidates) < set(first.candidates)


def test_less_is_chosen_if_less_is_better() -> None:
    more = led(searching()).state
    less = led(searching(outcome__metric="loss")).state
    assert chosen(more).values == chosen(less).values
    assert final_verdicts(less) == {"chosen-vs-baseline": "better"}


def test_several_chosen_candidates_are_confirmed_beside_each_other() -> None:
    compare = [
        {"id": "first", "arm": {"search": "chosen"}, "against": {"search": "baseline"}},
        {"id": "second", "arm": {"search": "chosen-2"}, "against": {"search": "baseline"}},
    ]
    its = searching(
        search__rungs=[{"seeds": 2, "keep": 2}],
        compare=compare,
        decide=[{"otherwise": True, "conclude": "See the verdicts."}],
        inference__looks=[{"seeds": 10, "alpha": 0.05}],
        budget__trials=79,
    )
    state = led(its).state
    assert len(state.entered) == 2
    assert set(final_verdicts(state)) == {"first", "second"}
    assert all(len(one.seeds) == 10 for one in state.verdicts.values())


def test_a_search_beside_a_factor_tries_candidates_with_its_level() -> None:
    levels = [{"method": "b", "search": one} for one in ("chosen", "baseline")]
    its = searching(
        base__set={"world": "xor", "steps": 1},
        factors={"method": {"path": "method", "levels": ["a", "b"]}},
        search__arm={"method": "b"},
        search__parameters={"variant": {"path": "variant", "choices": ["a", "b", "c"]}},
        search__sampler="grid",
        search__candidates=3,
        search__rungs=[{"seeds": 3}],
        compare=[{"id": "chosen-vs-baseline", "arm": levels[0], "against": levels[1]}],
    )
    state = led(its).state
    assert [one.refused for one in state.candidates] == [
        'method="b", search="chosen": it is the baseline',
        "",
        "",
    ]
    assert chosen(state).values == {"variant": "b"}
    assert final_verdicts(state) == {"chosen-vs-baseline": "better"}


def test_a_candidate_that_changes_more_than_its_parameters_is_not_tried() -> None:
    its = searching(
        base__set={"world": "confounded", "steps": 1},
        search__parameters={"method": {"path": "method", "choices": ["b", "c"]}},
        search__sampler="grid",
        search__candidates=2,
        search__rungs=[{"seeds": 1}],
    )
    state = led(its).state
    assert {one.refused for one in state.candidates} == {
        'search="chosen": it changes more than its parameters: batch_size'
    }
    finding = state.verdicts["chosen-vs-baseline"]
    assert (finding.verdict, finding.reason) == ("invalid", "no pair of trials has outcomes")
    assert {one.status for one in state.trials.values()} == {"planned"}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_no_candidate_is_tried_twice(sampler: str) -> None:
    if sampler == "tpe":
        pytest.importorskip("optuna")
    its = searching(
        search__parameters={"x": {"path": "x", "choices": [0.25, 0.5, 1.0]}},
        search__sampler=sampler,
        search__candidates=9,
    )
    state = led(its).state
    tried = [one.values["x"] for one in state.candidates if not one.refused]
    assert len(tried) == len(set(tried)) <= 3
    assert {one.refused for one in state.candidates} == {"", "it was proposed before"}


def test_batches_are_proposed_whole_and_see_the_batches_before() -> None:
    pytest.importorskip("optuna")
    rows = led(searching(search__sampler="tpe", search__batch=5)).ledger.rows
    finished = 0
    seen = []
    for row in rows:
        finished += isinstance(row.event, Finished)
        if isinstance(row.event, Proposed):
            seen.append(finished)
    assert seen == [0] * 5 + [5] * 5 + [10] * 5 + [15] * 5 + [20] * 4


@pytest.mark.slow
def test_a_sampler_that_learns_comes_closer_than_chance() -> None:
    pytest.importorskip("optuna")

    def reached(sampler: str) -> float:
        values = []
        for world in range(4):
            settings = {"world": f"hill:{world}", "steps": 1}
            its = searching(base__set=settings, search__sampler=sampler, search__batch=2)
            state = led(its).state
            late = [search for search in state.candidates[12:] if not search.refused]
            arms = {f"candidate {one.candidate}, rung 1" for one in late}
            measured = [
                trial.outcome.metrics["score"]
                for trial in state.trials.values()
                if trial.arm in arms and trial.outcome
            ]
            values.append(sum(measured) / len(measured))
        return sum(values) / len(values)

    assert reached("tpe") > reached("random") + 0.5


@pytest.mark.nightly
@pytest.mark.slow
@given(st.sets(st.integers(0, 90), max_size=12), st.integers(1, 5))
@settings(deadline=None, max_examples=12)
def test_a_leader_that_is_killed_while_it_searches_leaves_the_same_report(
    kill_at: set[int], parallel: int
) -> None:
    its = searching(search__batch=6, search__sampler=LEARNING)
    ledger, runner = new_ledger(its), Runner(kill_at=kill_at)
    while fold(ledger.rows).reported is None:
        try:
            StudyLeader(ledger, runner, None, Clock(), parallel).lead()
        except KilledError:
            continue
    calm = compile_report(led(its).ledger.rows).files
    killed = compile_report(ledger.rows).files
    assert {name for name in calm if calm[name] != killed[name]} <= {"record.md", "record.html"}
    assert not_called_for(ledger) == []


@pytest.mark.slow
def test_a_leader_that_ends_after_any_row_goes_on_as_if_it_had_not() -> None:
    its = searching(search__sampler=LEARNING, search__batch=8, search__candidates=10)
    calm = led(its).ledger.rows
    events = [row.event for row in calm if row.event.kind in ("proposed", "advanced", "looked")]
    for cut in range(1, len(calm), 5):
        ledger = new_ledger(its)
        for row in calm[1:cut]:
            ledger.append(row.event, time=row.time, elapsed=row.elapsed)
        StudyLeader(ledger, Runner(), None, Clock()).lead()
        again = [
            row.event for row in ledger.rows if row.event.kind in ("proposed", "advanced", "looked")
        ]
        assert again == events


def test_lost_trials_of_a_candidate_do_not_choose_it() -> None:
    best = chosen(led(searching()).state).values

    def lost(blueprint: TrialBlueprint, attempt: int) -> bool:
        return blueprint.seed > 100 and blueprint.settings["x"] == best["x"]

    leader = led(searching(), Runner(lost))
    assert chosen(leader.state).values != best
    assert not_called_for(leader.ledger) == []


def test_a_budget_that_ends_in_the_search_claims_nothing() -> None:
    its = searching(budget__compute_hours=53 * 30 / 3600)
    leader = led(its, Runner(lambda blueprint, attempt: True))
    assert leader.state.searching
    assert final_verdicts(leader.state) == {"chosen-vs-baseline": "undecided"}
    report = compile_report(leader.ledger.rows).files["report.md"]
    assert "The search did not end" in report


def test_the_report_lists_all_candidates_and_verifies(finished: Path) -> None:
    state = fold(read_ledger(finished / LEDGER))
    result = verify_study(finished)
    assert (result.problems, result.finished) == ([], True)
    report = (finished / "report" / "report.md").read_text()
    section = report.partition("## Search")[2].partition("\n## ")[0]
    assert all(json.dumps(one.values["x"]) in section for one in state.candidates)
    assert "nothing is claimed from these trials" in section
    content = json.loads((finished / "report" / "report.json").read_text())
    assert content["search"]["chosen"] == state.entered
    for name in ("report.html", "record.html"):
        assert unlinked_numerals((finished / "report" / name).read_text())[0] == []


def test_a_replica_searches_and_confirms_with_fresh_seeds(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "again"
    again = replicate_study(finished, target, runner=FileRunner)
    assert again.first == {"chosen-vs-baseline": "better"}
    seeds = [
        {trial.blueprint.seed for trial in fold(read_ledger(one / LEDGER)).trials.values()}
        for one in (finished, target)
    ]
    assert seeds[0] & seeds[1] == set()
    assert verify_study(target).problems == []


def test_another_search_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "study"
    run_study(write_study(tmp_path), directory, runner=FileRunner)
    with pytest.raises(ConfigError, match=r"it differs in .*search"):
        run_study(written(tmp_path), directory, runner=FileRunner)


def test_status_counts_candidates_together_and_hides_their_outcomes(finished: Path) -> None:
    its = study_status(finished)
    assert {one.arm: one.done for one in its.arms} == {
        "candidates of the search": 32,
        'search="baseline"': 11,
        'search="chosen"': 10,
    }


def test_a_researcher_may_not_search_what_it_may_not_set() -> None:
    topic = TopicFile("?", "", {}, CEILINGS, {})
    for where in ("parameters", "set", "rungs"):
        proposal = json.loads(searching().model_dump_json(by_alias=True, exclude={"topic"}))
        proposal["base"] = {"arena": "swarm", "set": {}}
        if where == "parameters":
            proposal["search"]["parameters"]["x"]["path"] = "engine.path"
        elif where == "set":
            proposal["search"]["set"] = {"engine.path": "x"}
        else:
            proposal["search"]["rungs"][0]["set"] = {"engine.path": "x"}
        answer = json.dumps({"study": proposal})
        with pytest.raises(RefusedError) as error:
            accepted_study(answer, topic, Path(), lambda text, directory, files: [])
        assert "the setting 'engine.path' is not a researcher's to set" in error.value.problems


def test_a_researcher_may_propose_a_search(tmp_path: Path) -> None:
    topic = TopicFile("?", "", {}, CEILINGS, {})
    proposal = json.loads(searching().model_dump_json(by_alias=True, exclude={"topic"}))
    proposed = accepted_study(
        json.dumps({"study": proposal}), topic, tmp_path, lambda text, directory, files: []
    )
    assert proposed.study.search == searching().search
    assert parse_study(proposed.toml, "study.toml") == proposed.study


@pytest.mark.slow
def test_few_searches_without_a_better_place_make_few_false_claims_and_a_hill_is_found() -> None:
    pytest.importorskip("optuna")
    result = SUITES["search"](seed=3, size=8)
    assert result["false_claims"] <= 1
    assert result["right"] >= 0.75
    assert result["best_of_search"]["false"] > 0.2


def test_a_search_is_resumed_and_verified_without_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    text = TEXT.replace('"random"', '"tpe"').replace("[search]\n", "[search]\nbatch = 24\n")
    source, its = written(tmp_path, text), parse_study(text, "study.toml")
    calm = led(its)
    monkeypatch.setitem(sys.modules, "optuna", None)
    ledger = new_ledger(its)
    for row in calm.ledger.rows[1:]:
        ledger.append(row.event, time=row.time, elapsed=row.elapsed)
        if isinstance(row.event, Proposed) and row.event.candidate == 24:
            break
    resumed = StudyLeader(ledger, Runner(), None, Clock()).lead()
    assert resumed.verdicts == calm.state.verdicts
    with pytest.raises(ConfigError, match="needs optuna: pip install 'agentjet"):
        run_study(source, tmp_path / "study", runner=FileRunner)
    assert not (tmp_path / "study").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that has found a hill, with files."""
    folder = tmp_path_factory.mktemp("search")
    run_study(written(folder), folder / "study", runner=FileRunner)
    return folder / "study"


def _rows_of(bodies: list[Body], kind: str) -> list[Body]:
    return [body for body in bodies if body["kind"] == kind]


def _another_is_chosen(bodies: list[Body], rng: random.Random) -> None:
    first, last = _rows_of(bodies, "advanced")
    last["candidates"] = [next(n for n in first["candidates"] if n not in last["candidates"])]


def _other_values(bodies: list[Body], rng: random.Random) -> None:
    rng.choice(_rows_of(bodies, "proposed"))["values"]["y"] = 0.5


def _outside_the_space(bodies: list[Body], rng: random.Random) -> None:
    rng.choice(_rows_of(bodies, "proposed"))["values"]["x"] = 1.5


def _forgotten(bodies: list[Body], rng: random.Random) -> None:
    bodies.remove(_rows_of(bodies, "proposed")[-1])


def _refused_for_no_reason(bodies: list[Body], rng: random.Random) -> None:
    rng.choice(_rows_of(bodies, "proposed")).update(refused="it was proposed before")


def _other_arms(bodies: list[Body], rng: random.Random) -> None:
    arms: Body = _rows_of(bodies, "advanced")[-1]["arms"]
    trial = rng.choice(sorted(arms))
    arms[trial] = next(arm for arm in arms.values() if arm != arms[trial])


def _other_seed(bodies: list[Body], rng: random.Random) -> None:
    rng.choice(_rows_of(bodies, "advanced")[-1]["blueprints"])["seed"] = 101


def _lucky_candidate(bodies: list[Body], rng: random.Random) -> None:
    rng.choice(_rows_of(bodies, "finished")[:24])["metrics"]["score"] = 5.0


FORGED = [
    _another_is_chosen,
    _other_values,
    _outside_the_space,
    _forgotten,
    _refused_for_no_reason,
    _other_arms,
    _other_seed,
    _lucky_candidate,
]


@pytest.mark.slow
@pytest.mark.parametrize("change", FORGED)
def test_a_forged_search_is_noticed_though_it_is_signed(
    finished: Path, tmp_path: Path, change: Callable[[list[Body], random.Random], None]
) -> None:
    directory = tmp_path / "study"
    shutil.copytree(finished, directory)
    assert verify_study(directory).problems == []
    _signed(change, report=False)(directory, random.Random(0))
    assert verify_study(directory).problems


@given(st.integers(0, 2**20), st.integers(1, 40))
@settings(deadline=None, max_examples=60)
def test_every_proposal_is_a_point_of_the_space(seed: int, number: int) -> None:
    search = Search.model_validate({**SPACE, "seed": seed, "sampler": "random"})
    values, _ = proposed_values(search, number, [])
    assert search.holds(values)
    assert values == proposed_values(search, number, [])[0]
    assert Search.model_validate_json(search.model_dump_json()).holds(
        json.loads(json.dumps(values))
    )


@pytest.mark.slow
def test_proposals_of_optuna_are_points_of_the_space_and_depend_on_what_is_told() -> None:
    pytest.importorskip("optuna")
    search = Search.model_validate({**SPACE, "sampler": "tpe"})
    tried: list[TriedCandidate] = []
    for number in range(1, 30):
        values, by = proposed_values(search, number, tried)
        assert search.holds(values)
        assert proposed_values(search, number, tried)[0] == values
        tried.append(TriedCandidate(values, None if number % 4 == 0 else float(values["share"])))
    assert by.startswith("tpe of optuna ")
    turned = [
        TriedCandidate(one.values, None if one.value is None else -one.value) for one in tried
    ]
    high, low = (
        [float(proposed_values(search, 100 + n, its)[0]["share"]) for n in range(12)]
        for its in (tried, turned)
    )
    assert sum(high) > sum(low) + 3


def test_a_grid_is_every_cell_once() -> None:
    search = Search.model_validate(
        {
            "sampler": "grid",
            "candidates": 12,
            "first_seed": 50,
            "parameters": {
                "size": {"path": "size", "low": 2, "high": 8, "step": 2},
                "kind": {"path": "kind", "choices": ["a", True, 1]},
            },
        }
    )
    cells = [proposed_values(search, number, [])[0] for number in range(1, 13)]
    pairs = [(one["size"], json.dumps(one["kind"])) for one in cells]
    assert pairs == list(itertools.product([2, 4, 6, 8], ['"a"', "true", "1"]))


REFUSED = [
    ({"search__first_seed": 5}, "share 3 seeds: the search has 5 to 7", "search.first_seed = 21"),
    ({"search__set": {}}, "choose on 8 of the 8 tasks that confirm its choice", "in search.set"),
    ({"search__set": {"split": "tuning", "wrld": 1}}, "Unknown setting 'wrld'", "known: world"),
    (
        {"budget__trials": 52},
        "needs 53 trials (32 of the search + 2 arms x 10",
        "budget.trials is 52",
    ),
    ({"budget__compute_hours": 0.4}, "53 trials of 30 s take 0.442 h", "Raise it"),
    ({"search__parameters__x__path": "z"}, "setting 'z', which the arena does not have", "world"),
]


@pytest.mark.parametrize(("changes", "what", "way_out"), REFUSED)
def test_registration_refuses_a_search_with_the_way_out(
    changes: dict[str, Any], what: str, way_out: str
) -> None:
    with pytest.raises(ConfigError) as error:
        register(searching(**changes), Path())
    assert what in error.value.message
    assert way_out in error.value.message


WRONG = [
    ('"random"', '"hill_climbing"', "line 11: search.sampler: Input should be 'grid', 'random'"),
    ('"random"', '"grid"', "line 17: a grid lists all values of 'x': give it 'choices', or a"),
    ("high = 1.0\nstep", "high = -1.0\nstep", "the range of 'y' is empty: 'low' is -1.0, and 'hi"),
    ("step = 0.25", "step = 3", "line 26: the step of 'y' is 3: it lies between 0 and high - low"),
    ("step = 0.25", "choices = [1]", "line 26: 'y' has 'choices' and a range: remove one of them"),
    ("step = 0.25", "log = true", "line 24: 'y' has no logarithm at -1.0: raise 'low'"),
    ('path = "y"', 'path = "x"', "'y' searches 'x', which the parameter 'x' sets: remove one"),
    ("split = ", "x = 1.0, split = ", "'x' searches 'x', which the setting 'x' of search.set sets"),
    ("keep = 4", "keep = 19, steps = 3", "unknown key 'steps'; known: seeds, keep, set"),
    (
        "candidates = 24",
        "candidates = 3",
        "line 14: rung 1 keeps 4 of 3 candidates: keep at most 3",
    ),
    ('arm = { search = "chosen" }', 'arm = { search = "baseline" }', "no comparison confirms what"),
    (
        'arm = { search = "chosen" }',
        'arm = { search = "chosen-2" }',
        '"chosen-2" is not a level of',
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_a_wrong_search_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_study(TEXT.replace(old, new, 1), "study.toml")
    assert message in error.value.message


def test_a_parameter_that_is_also_a_factor_is_refused() -> None:
    factor = '[factors.place]\npath = "x"\nlevels = [0.0, 1.0]\n\n[outcome]'
    with pytest.raises(ConfigError) as error:
        parse_study(TEXT.replace("[outcome]", factor), "study.toml")
    assert "'x' searches 'x', which the factor 'place' sets: remove one of them" in str(error.value)
    assert "'arm' lacks a level of 'place'; its levels: 0.0, 1.0" in str(error.value)


def test_a_study_needs_a_factor_or_a_search() -> None:
    begin, _, rest = TEXT.partition("[search]")
    with pytest.raises(ConfigError, match="a study has a factor, or a search"):
        parse_study(begin + "[outcome]" + rest.partition("[outcome]")[2], "study.toml")


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_actions_of_a_search_depend_on_the_state_alone(data: st.DataObject) -> None:
    rows = ROWS
    cut = data.draw(st.integers(1, len(rows)))
    todo = actions(fold(rows[:cut]))
    assert todo == actions(fold(rows[:cut]))
    assert len(todo) <= 1 or all(isinstance(one, Await | Reserve) for one in todo)


SPACE: dict[str, Any] = {
    "candidates": 40,
    "first_seed": 100,
    "parameters": {
        "rate": {"path": "rate", "low": 1e-6, "high": 1e-2, "log": True},
        "share": {"path": "share", "low": 0, "high": 1.0},
        "tenth": {"path": "tenth", "low": -0.3, "high": 0.75, "step": 0.1},
        "count": {"path": "count", "low": 1, "high": 9},
        "size": {"path": "size", "low": 16, "high": 70, "step": 16},
        "many": {"path": "many", "low": 1, "high": 100000, "log": True},
        "kind": {"path": "kind", "choices": [1, 1.0, True, "1"]},
    },
}
ROWS = led(searching(search__candidates=6, search__rungs=[{"seeds": 2, "keep": 1}])).ledger.rows


# --- Code -----------------------------------------------------------------------------------------


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods of the arena `synthetic` may be code, which is method b there."""
    known = SyntheticArena.resolve

    def resolve(arena: SyntheticArena, its: Mapping[str, Scalar]) -> dict[str, Scalar]:
        method = str(its.get("method", "a"))
        plain = {**its, "method": "b" if method.startswith("code:") else method}
        return {**known(arena, plain), "method": method}

    monkeypatch.setattr(SyntheticArena, "programs", ("method",))
    monkeypatch.setattr(SyntheticArena, "resolve", resolve)


def code_of(number: int) -> str:
    """The path of a file. Its order in the study is not the one of its name."""
    return f"arms/{9 - number}.py"


def code_search(directory: Path, *texts: str, **changes: Any) -> Path:
    """A study that searches among files of these texts; returns its file."""
    choices = [f"code:{code_of(number)}" for number in range(len(texts))]
    (directory / "arms").mkdir(exist_ok=True)
    for number, text in enumerate(texts):
        (directory / code_of(number)).write_text(text)
    its = searching(
        search__parameters={"program": {"path": "method", "choices": choices}},
        search__sampler="grid",
        search__candidates=len(texts),
        search__rungs=[{"seeds": 2}],
        **changes,
    )
    path = directory / "study.json"
    path.write_text(its.model_dump_json(by_alias=True))
    return path


def test_a_search_among_programs_has_their_registered_bytes(tmp_path: Path, programs: None) -> None:
    texts = ["print(1)\n", "print(2)\n", "print(3)\n"]
    source, where = code_search(tmp_path, *texts), tmp_path / "own"
    state = run_study(source, where, runner=FileRunner)
    assert state.files == {code_of(number): text for number, text in enumerate(texts)}
    methods = {
        trial.arm: trial.blueprint.settings["method"]
        for trial in state.trials.values()
        if trial.arm.startswith("candidate")
    }
    assert methods == {f"candidate {n}, rung 1": f"code:{text}" for n, text in enumerate(texts, 1)}
    best = 9 - int(str(chosen(state).values["program"])[len("code:arms/")])
    confirmed = {
        trial.blueprint.settings["method"]
        for trial in state.trials.values()
        if trial.arm == 'search="chosen"'
    }
    assert confirmed == {f"code:{texts[best]}"}
    assert verify_study(where).problems == []
    page = (where / "report/report.md").read_text()
    assert all(hashlib.sha256(text.encode()).hexdigest() in page for text in texts)
    assert unlinked_numerals((where / "report/report.html").read_text())[0] == []
    # The files may be gone by then: the ledger has them.
    shutil.rmtree(tmp_path / "arms")
    again = replicate_study(where, tmp_path / "again", runner=FileRunner)
    assert again.first.keys() == again.again.keys()
    assert verify_study(tmp_path / "again").problems == []


def test_another_candidate_than_its_code_is_caught(tmp_path: Path, programs: None) -> None:
    source, where = code_search(tmp_path, "print(1)\n", "print(2)\n"), tmp_path / "own"
    run_study(source, where, runner=FileRunner)
    rows = list(read_ledger(where / LEDGER))
    state = StudyState()
    for row in rows:
        if isinstance(row.event, Proposed):
            (first, *rest) = row.event.blueprints
            its = {**first.settings, "method": "code:print(3)\n"}
            other = row.event.model_copy(
                update={"blueprints": [first.model_copy(update={"settings": its}), *rest]}
            )
            assert list(_wrong_search(replace(row, event=other), state)) == [
                f"Row {row.seq}: the trials of the candidate do not follow from its values."
            ]
            assert list(_wrong_search(row, state)) == []
        state.apply(row)


@pytest.mark.parametrize(
    ("texts", "missing", "problem"),
    [
        (["print(1)\n", "print(1)\n"], "", "The choices .*9.py.* and .*8.py.* are the same code"),
        (["print(1)\n", "print(2)\n"], "arms/8.py", "of 'program': There is no code arms/8.py in"),
    ],
    ids=["same", "missing"],
)
def test_programs_that_cannot_be_candidates_are_refused(
    tmp_path: Path, programs: None, texts: list[str], missing: str, problem: str
) -> None:
    source = code_search(tmp_path, *texts)
    (tmp_path / (missing or "other")).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=problem):
        run_study(source, tmp_path / "own", runner=FileRunner)


def test_changed_code_of_a_candidate_is_refused_when_a_study_continues(
    tmp_path: Path, programs: None
) -> None:
    class Full(FileRunner):
        def poll(self, *_: Any) -> Any:
            raise OSError(errno.ENOSPC, "full")

    source, where = code_search(tmp_path, "print(1)\n", "print(2)\n"), tmp_path / "own"
    with pytest.raises(StoreError, match="cannot run"):
        run_study(source, where, runner=Full)
    (tmp_path / "arms/8.py").write_text("print(3)\n")
    with pytest.raises(ConfigError, match=r"not the one that is registered: arms/8\.py\. Restore"):
        run_study(source, where, runner=FileRunner)


def test_machines_are_checked_with_the_code_of_candidates(
    tmp_path: Path, programs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_: SyntheticArena, settings: Mapping[str, Scalar]) -> None:
        if str(settings["method"]).startswith("code:"):
            raise ConfigError("there is no sandbox")

    monkeypatch.setattr(SyntheticArena, "check_machine", check)
    source = code_search(tmp_path, "print(1)\n", "print(2)\n")
    with pytest.raises(ConfigError, match=r"9\.py.* cannot run here: there is no sandbox"):
        run_study(source, tmp_path / "own", runner=FileRunner)
    assert not (tmp_path / "own").exists()


def test_code_is_a_fixed_part_of_all_candidates(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    its = searching(
        base={"arena": "swarm", "set": {"agent": "code:a.py"}},
        search__parameters={"rate": {"path": "algorithm.learning_rate", "low": 1e-4, "high": 1e-2}},
        search__set={},
        outcome__metric="success",
    )
    registration = register(its, tmp_path)
    assert registration.files == {"a.py": "print(1)\n"}
    ledger = StudyLedger(None)
    ledger.append(registered_event(registration), time="2026-01-01T00:00:00+00:00", elapsed=0.0)
    (tmp_path / "a.py").unlink()
    state = fold(ledger.rows)
    row = next_candidate(state, registered_arena("swarm", state.files))
    assert row.refused == ""
    assert {one.settings["agent"] for one in row.blueprints} == {"code:print(1)\n"}
    rates = {one.settings["algorithm.learning_rate"] for one in row.blueprints}
    assert rates == {row.values["rate"]}
