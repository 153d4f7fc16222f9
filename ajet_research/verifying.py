"""``ajet research verify``: derives a report again from the raw stores, and trusts nothing else.

The statistics are computed here in another way than the leader does: p values by SciPy's
permutation test, and each end of an interval by the test on both of its sides.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ajet_core.errors import AjetError
from ajet_research.actions import (
    Advance,
    Ask,
    Await,
    GiveUp,
    Hold,
    Proceed,
    Propose,
    Reserve,
    Stop,
    actions,
)
from ajet_research.arenas import (
    Arena,
    TrialBlueprint,
    load_arena,
    read_evidence,
    registered_arena,
)
from ajet_research.events import (
    Advanced,
    Answered,
    Asked,
    AttemptFailed,
    Decided,
    Exhausted,
    Finished,
    Interpreted,
    Looked,
    LookFinding,
    Lost,
    Proposed,
    Registered,
    Reported,
    ResearcherAnswered,
    ResearcherAsked,
    Reserved,
)
from ajet_research.ledger import LEDGER, LedgerRow, read_ledger
from ajet_research.registration import register
from ajet_research.report import (
    compile_report,
    interpretation_problems,
    referents_of,
    unlinked_numerals,
)
from ajet_research.report.steered import interventions
from ajet_research.runners import store_hashes
from ajet_research.search.space import candidate_arm
from ajet_research.search.steps import candidate_row, next_rung
from ajet_research.spending import ResearcherLimits
from ajet_research.state import StudyState
from ajet_research.study import Compare, Study, arm_name, parse_study
from ajet_research.worker import BLUEPRINT, DISK_LIMIT, STORE, AttemptResult, result_path

_NEAR = 1e-9
_ROUNDING = 1e-12
"""What lies closer to a limit, relative to the numbers compared, counts as on it."""
_REPORT, _TRIALS, _TRANSCRIPTS = "report", "trials", "researchers"


@dataclass(slots=True)
class Verification:
    """What was checked.

    :param problems: what does not hold; empty if all does.
    :param finished: whether the study has its report.
    :param rows: rows of the ledger.
    :param trials: raw stores that outcomes were derived from.
    :param numerals: of the report, all of which link to what they come from.
    :param amendments: one line for each amendment, answer and stop, in order.
    """

    problems: list[str] = field(default_factory=list)
    finished: bool = False
    rows: int = 0
    trials: int = 0
    numerals: int = 0
    amendments: list[str] = field(default_factory=list)


def verify_study(directory: Path) -> Verification:
    """Check the study in a directory, without changing anything."""
    result = Verification()
    if not (directory / LEDGER).exists():
        result.problems.append(f"There is no study in {directory}.")
        return result
    try:
        for problem in _problems(directory, result):
            result.problems.append(problem)
    except AjetError as error:
        result.problems.append(error.message)
    except OSError as error:
        result.problems.append(f"{error.filename} cannot be read: {error.strerror}")
    except ValueError as error:
        result.problems.append(f"A file of the study cannot be decoded: {error}")
    except Exception as error:  # noqa: BLE001 - a study that breaks the check does not pass it
        result.problems.append(f"The study cannot be checked: {type(error).__name__}: {error}")
    return result


def _problems(directory: Path, result: Verification) -> Iterator[str]:
    rows = list(read_ledger(directory / LEDGER))
    result.rows = len(rows)
    state = StudyState()
    for row in rows:
        yield from _out_of_order(row, state)
        yield from _wrong_interpretation(row, state)
        yield from _wrong_search(row, state)
        state.apply(row)
        yield from _wrong_statistics(row, state)
    result.amendments = [one.line for one in interventions(state) if one.changes]
    study = state.registered
    first = rows[0].event
    assert isinstance(first, Registered)
    yield from _other_study(directory, study, first)
    arena = load_arena(study.base.arena)
    yield from _wrong_outcomes(directory / _TRIALS, rows, state, arena, result)
    yield from _overspent(state)
    yield from _wrong_transcripts(directory / _TRANSCRIPTS, rows)
    if result.problems:
        # A report can be compiled from consistent rows alone.
        return
    yield from _other_report(directory / _REPORT, rows, state, result)


def _out_of_order(row: LedgerRow, state: StudyState) -> Iterator[str]:
    """Each row of a leader is what the rows before it call for: no look comes early."""
    event = row.event
    if isinstance(event, Registered) or state.study is None:
        return
    todo = actions(state)
    match event:
        case Reserved():
            trial = state.trials.get(event.trial)
            fits = trial is not None and event.limits == trial.blueprint.limits
            fits = fits and Reserve(event.trial) in todo
        case Finished() | AttemptFailed():
            fits = Await(event.trial) in todo
        case Lost():
            fits = GiveUp(event.trial) in todo
        case Exhausted(resource="wall_hours" | "disk_mib") if event.used > event.limit:
            # Measured, and not to be derived from rows.
            fits = event.limit == getattr(state.budget, event.resource)
        case Exhausted():
            fits = Stop(event.resource, event.used, event.limit) in todo
        case Proposed() | Advanced():
            fits = todo == [
                Propose(event.candidate) if isinstance(event, Proposed) else Advance(event.rung)
            ]
        case Asked():
            fits = todo == [Ask(event.question)]
        case Answered():
            fits = Hold(event.question) in todo
        case Looked() | Decided() | Reported():
            place = {"looked": "look", "decided": "decision", "reported": "report"}
            fits = [one.to for one in todo if isinstance(one, Proceed)] == [place[event.kind]]
        case _:
            fits = True
    if not fits:
        yield f"Row {row.seq} ({event.kind}) is not what the rows before it call for."


def _wrong_interpretation(row: LedgerRow, state: StudyState) -> Iterator[str]:
    """Researchers spend what they may, and their words pass the checks of prose."""
    event = row.event
    if isinstance(event, ResearcherAsked):
        limits = ResearcherLimits.of(state.budget)
        if state.spending.excess(event.tokens, event.money, limits):
            yield f"Row {row.seq}: the budget of researchers did not allow this request."
        if state.reported is None or event.purpose != "interpretation":
            yield f"Row {row.seq}: a researcher was asked before the report."
    elif isinstance(event, Interpreted) and state.reported is not None:
        if bool(event.prose) == bool(event.problem):
            yield f"Row {row.seq}: an interpretation has either prose or a problem."
        if event.prose:
            for problem in interpretation_problems(event.prose, referents_of(state)):
                yield f"Row {row.seq}: the prose of {event.researcher}: {problem}."


def _wrong_search(row: LedgerRow, state: StudyState) -> Iterator[str]:
    """Candidates are of the space, their trials follow from them, and the best are kept.

    Which candidates were proposed is not checked: whatever they were, their confirmation counts.
    """
    event = row.event
    if not isinstance(event, Proposed | Advanced) or not state.searching:
        return
    study = state.registered
    search, arena = study.search, registered_arena(study.base.arena, state.files)
    assert search is not None
    if isinstance(event, Proposed):
        if not search.holds(event.values):
            yield f"Row {row.seq}: the candidate is not of the space of the search."
        elif event != candidate_row(state, arena, event.values, event.by):
            yield f"Row {row.seq}: the trials of the candidate do not follow from its values."
        return
    turn = 1.0 if state.metrics[study.outcome.metric].direction == "max" else -1.0
    means: list[tuple[float, int]] = []
    for number in state.entered:
        arm = candidate_arm(number, state.rung)
        if values := _outcomes(state, arm, study.outcome.metric):
            means.append((-turn * math.fsum(values.values()) / len(values), number))
    best = [number for _, number in sorted(means)][: search.rungs[state.rung].keep]
    if event.candidates != best:
        yield f"Row {row.seq}: the best candidates are {best}, not {event.candidates}."
    elif event != next_rung(state, arena, best):
        yield f"Row {row.seq}: the trials of the best candidates do not follow from them."


def _wrong_statistics(row: LedgerRow, state: StudyState) -> Iterator[str]:
    event = row.event
    if isinstance(event, Looked):
        earlier: dict[str, LookFinding] = {}
        for findings in state.findings[:-1]:
            earlier.update(findings)
        study = state.registered
        expected = [
            one.id
            for one in study.compare
            if one.id not in earlier or earlier[one.id].verdict == "undecided"
        ]
        if sorted(event.findings) != sorted(expected):
            yield f"Row {row.seq}: the look has other comparisons than those that are open."
        for one in study.compare:
            if (finding := event.findings.get(one.id)) is not None:
                for what in _wrong_finding(state, one, finding, event.look):
                    yield f"Row {row.seq}, comparison {one.id}: {what}."
    elif isinstance(event, Decided):
        latest: dict[str, LookFinding] = state.verdicts
        verdicts = {
            one.id: latest[one.id].verdict if one.id in latest else "undecided"
            for one in state.registered.compare
        }
        tree = state.registered.decide
        branch = next((i for i, one in enumerate(tree) if one.applies(verdicts)), -1)
        if verdicts != event.verdicts or branch != event.branch:
            yield f"Row {row.seq}: the decision does not follow from the verdicts."


def _wrong_finding(
    state: StudyState, one: Compare, finding: LookFinding, look: int
) -> Iterator[str]:
    study = state.registered
    seeds = range(study.inference.first_seed, study.seeds.start + study.inference.looks[look].seeds)
    values = _differences(state, one, study.outcome.metric, seeds)
    arm, against = (
        _outcomes(state, arm_name(side), study.outcome.metric) for side in (one.arm, one.against)
    )
    if finding.seeds != list(values):
        yield "other pairs than those with outcomes"
        return
    if finding.missing != [seed for seed in seeds if seed not in values]:
        yield "other missing pairs than those without outcomes"
    alpha = study.inference.looks[look].alpha / len(study.compare)
    if finding.alpha != alpha:
        yield "another alpha than the registered one"
    if not values:
        if finding.verdict != "invalid":
            yield "a verdict without outcomes"
        return
    each = list(values.values())
    for name, sample, theirs in (
        ("mean of the arm", [arm[s] for s in values], finding.arm_mean),
        ("mean of the other", [against[s] for s in values], finding.against_mean),
    ):
        if theirs is None or not _near(mine := math.fsum(sample) / len(each), theirs, sample):
            yield f"the {name} is {mine!r}, not {theirs!r}"
    yield from _wrong_estimate(each, finding, alpha)
    holding = True
    for guard in study.outcome.guardrails:
        guarded = finding.guardrails.get(guard.metric)
        guarded_values = list(_differences(state, one, guard.metric, seeds).values())
        if guarded is None:
            yield f"the guardrail {guard.metric} is missing"
            continue
        yield from _wrong_interval(guarded_values, guarded.low, guarded.high, alpha)
        gain = math.fsum(guarded_values) / len(guarded_values)
        room = _ROUNDING * max(abs(guarded.gain), guard.margin)
        holds = guarded.low is not None and guarded.low > -guard.margin + room
        if guarded.holds != holds or not _near(gain, guarded.gain, guarded_values):
            yield f"the guardrail {guard.metric} has another state"
        holding = holding and holds
    if set(finding.guardrails) - {guard.metric for guard in study.outcome.guardrails}:
        yield "a guardrail that is not registered"
    verdict = _verdict(state, one, finding, look, holding)
    if verdict != finding.verdict:
        yield f"the verdict is {verdict}, not {finding.verdict}"


def _verdict(
    state: StudyState, one: Compare, finding: LookFinding, look: int, holding: bool
) -> str:
    study = state.registered
    for side in (one.arm, one.against):
        prints = [
            trial.outcome.fingerprint
            for trial in state.trials.values()
            if trial.arm == arm_name(side)
            and not trial.blueprint.repeat
            and trial.outcome is not None
            and not trial.outcome.failed
        ]
        if len(set(prints)) < len(prints):
            return "invalid"
    planned = len(finding.seeds) + len(finding.missing)
    if len(finding.missing) / planned > study.inference.most_missing:
        return "invalid" if look == len(study.inference.looks) - 1 else "undecided"
    smallest = study.outcome.smallest
    low = -math.inf if finding.low is None else finding.low
    high = math.inf if finding.high is None else finding.high
    room = _ROUNDING * max(abs(finding.gain or 0.0), smallest)
    if high < -smallest - room:
        return "worse"
    if not holding:
        return "undecided"
    if low > smallest + room:
        return "better"
    within = low > -smallest + room and high < smallest - room
    return "equivalent" if within else "undecided"


def _wrong_estimate(values: Sequence[float], finding: LookFinding, alpha: float) -> Iterator[str]:
    """Check what a finding says about differences; shape of `values`: ``[seeds]``."""
    gain = math.fsum(values) / len(values)
    if finding.gain is None or not _near(gain, finding.gain, values):
        yield f"the difference is {gain!r}, not {finding.gain!r}"
    # Rounding decides between sums that are equal but for it, and a finding may have either.
    least, most = (_p(values, 0.0, room=room) for room in (_ROUNDING / 10, _NEAR))
    if finding.p is None or not least - _NEAR <= finding.p <= most + _NEAR:
        yield f"the p value is {most!r}, not {finding.p!r}"
    tie = _ROUNDING * max(abs(value) for value in values)
    wins = sum(1.0 if d > tie else 0.5 if d >= -tie else 0.0 for d in values) / len(values)
    if finding.wins is None or abs(wins - finding.wins) > _NEAR:
        yield f"the share of wins is {wins!r}, not {finding.wins!r}"
    yield from _wrong_interval(values, finding.low, finding.high, alpha)


def _near(mine: float, theirs: float, of: Sequence[float]) -> bool:
    return abs(mine - theirs) <= _NEAR * max(abs(value) for value in of)


def _wrong_interval(
    values: Sequence[float], low: float | None, high: float | None, alpha: float
) -> Iterator[str]:
    """The test rejects just outside an interval, and not just inside it."""
    scale = max(abs(value) for value in values) or 1.0
    mean = math.fsum(values) / len(values)
    for name, end, outward in (("lower", low, -1.0), ("upper", high, 1.0)):
        step = outward * 1e-7 * scale
        if end is None:
            wrong = _p(values, mean + outward * 4 * scale) <= alpha * (1 + _NEAR)
        else:
            # An interval reaches to the mean at least, however narrow it is.
            inside = min(end - step, mean) if outward < 0 else max(end - step, mean)
            wrong = _p(values, end + step) > alpha * (1 + _NEAR)
            wrong = wrong or _p(values, inside) <= alpha * (1 + _NEAR)
        if wrong:
            yield f"the {name} end of an interval does not invert the test"


def _p(values: Sequence[float], theta: float, *, room: float = _NEAR) -> float:
    """Return the p value of the hypothesis that the true difference is `theta`.

    :param room: relative to the largest value; a sum that is smaller than the observed one by less
        counts as equal.
    """
    import numpy as np
    from scipy import stats

    if len(values) == 1:
        # SciPy refuses a single pair, both of whose signs are as extreme.
        return 1.0
    moved = np.asarray(values) - theta
    scale = float(np.abs(values).max()) or 1.0
    observed = abs(float(moved.sum()))

    def extreme(sample: np.ndarray, axis: int) -> np.ndarray:
        # All that SciPy has to compare is then 0 or 1, so that its own tolerance has no effect.
        as_extreme: np.ndarray = np.abs(sample.sum(axis=axis)) >= observed - room * scale
        return as_extreme.astype(float)

    done = stats.permutation_test(
        (moved,),
        extreme,
        permutation_type="samples",
        alternative="greater",
        n_resamples=math.inf,
        vectorized=True,
        batch=4096,
    )
    return float(done.null_distribution.mean())


def _outcomes(state: StudyState, arm: str, metric: str) -> dict[int, float]:
    worst, failed = state.metrics[metric].worst, state.registered.outcome.failed
    # `outcome.failed` is a value of the study's metric, not of its guardrails.
    if failed == "worst" or metric != state.registered.outcome.metric:
        failed = math.nan if worst is None else worst
    return {
        trial.blueprint.seed: failed if trial.outcome.failed else trial.outcome.metrics[metric]
        for trial in state.trials.values()
        if trial.arm == arm and not trial.blueprint.repeat and trial.outcome is not None
    }


def _differences(state: StudyState, one: Compare, metric: str, seeds: range) -> dict[int, float]:
    arm, against = (_outcomes(state, arm_name(side), metric) for side in (one.arm, one.against))
    turn = 1.0 if state.metrics[metric].direction == "max" else -1.0
    return {s: turn * (arm[s] - against[s]) for s in seeds if s in arm and s in against}


def _other_study(directory: Path, study: Study, first: Registered) -> Iterator[str]:
    for name in ("study.toml", "study.json"):
        path = directory / name
        if path.exists():
            own = parse_study(path.read_text(encoding="utf-8"), name)
            if own.digest() != first.digest:
                yield f"{path} is not the registered study."
            break
    else:
        yield f"{directory} lacks its study file."
    # The user's code may have moved on: its hash is the one in the blueprints.
    code = first.blueprints[0].code if first.blueprints else ""
    again = register(study, directory, code=code, files=first.files)
    if first.files != again.files:
        yield "The registered code of arms is not the one that their levels name."
    if bool(code) != (study.code is not None):
        yield "The trials have code that the study does not have, or lack it."
    if first.blueprints != list(again.blueprints.values()):
        yield (
            "The registered trials are not those of the study with this version of the arena and "
            "its evaluator."
        )
    if [first.arms.get(one.id) for one in first.blueprints] != list(again.arms.values()):
        yield "The registered trials do not belong to the arms of the study."
    arena = load_arena(study.base.arena)
    known = {name: (one.direction, one.worst) for name, one in first.metrics.items()}
    if known != {name: (one.direction, one.worst) for name, one in arena.metrics.items()}:
        yield "The registered metrics are not those of the evaluator."


def _wrong_outcomes(
    trials: Path,
    rows: Sequence[LedgerRow],
    state: StudyState,
    arena: Arena,
    result: Verification,
) -> Iterator[str]:
    present = {path.name for path in trials.iterdir()} if trials.exists() else set()
    for name in sorted(present - {id_ for id_, one in state.trials.items() if one.attempts}):
        yield f"The trial {name} has a directory and is not in the ledger."
    for row in rows:
        event = row.event
        if not isinstance(event, Finished | AttemptFailed):
            continue
        trial, blueprint = trials / event.trial, state.trials[event.trial].blueprint
        ended = _result(trial, event.attempt)
        if isinstance(event, AttemptFailed):
            if ended is not None and (
                ended.status == "limit"
                or (ended.status == "done" and _has_evidence(arena, trial, blueprint))
            ):
                yield f"Row {row.seq}: attempt {event.attempt} of {event.trial} has a result."
            continue
        result.trials += 1
        for what in _wrong_outcome(trial, blueprint, event, ended, arena):
            yield f"Row {row.seq}, trial {event.trial}: {what}."


def _wrong_outcome(
    trial: Path,
    blueprint: TrialBlueprint,
    event: Finished,
    ended: AttemptResult | None,
    arena: Arena,
) -> Iterator[str]:
    if json.loads((trial / BLUEPRINT).read_bytes()) != blueprint.model_dump(mode="json"):
        yield "the blueprint in its directory is another one"
    if ended is None or (ended.seconds, ended.mebibytes) != (event.seconds, event.mebibytes):
        yield "the result of its attempt is missing or another one"
        return
    # A trial may have measured all when its time was over.
    if ended.status == "failed" or (event.limit and ended.status != "limit"):
        yield "its attempt ended in another way"
    if event.limit:
        if not (reached := ended.reached(blueprint)) or _has_evidence(arena, trial, blueprint):
            yield "it ended before it reached a limit"
        if event.failed != reached or event.store or event.fingerprint:
            yield "it has an outcome, though it reached a limit"
        return
    if ended.reached(blueprint) == DISK_LIMIT:
        yield "it has an outcome, though its directory was too large"
    if store_hashes(trial / STORE) != event.store:
        yield "its raw store has changed"
    evidence = read_evidence(arena, blueprint, trial / STORE)
    if (dict(evidence.metrics), evidence.failed, evidence.fingerprint) != (
        event.metrics,
        event.failed,
        event.fingerprint,
    ):
        yield "its outcome is not the one of its raw store"


def _result(trial: Path, attempt: int) -> AttemptResult | None:
    path = result_path(trial, attempt)
    if not path.exists():
        return None
    try:
        result = AttemptResult.model_validate_json(path.read_bytes(), strict=True)
    except ValueError:
        return None
    return result if result.attempt == attempt else None


def _has_evidence(arena: Arena, trial: Path, blueprint: TrialBlueprint) -> bool:
    try:
        read_evidence(arena, blueprint, trial / STORE)
    except AjetError:
        return False
    return True


def _overspent(state: StudyState) -> Iterator[str]:
    budget = state.budget
    begun = sum(trial.attempts > 0 for trial in state.trials.values())
    if begun > budget.trials:
        yield f"{begun} trials were started, more than the budget's {budget.trials}."
    if state.settled + state.reserved > budget.compute_hours * 3600 * (1 + _NEAR) + begun:
        yield "The trials took more time than budget.compute_hours."


def _wrong_transcripts(folder: Path, rows: Sequence[LedgerRow]) -> Iterator[str]:
    """What researchers were asked, and what they said, is what the ledger has the hashes of."""
    for row in rows:
        match row.event:
            case ResearcherAsked(number=number, request=expected):
                name = f"{number:03}-request.json"
            case ResearcherAnswered(number=number, answer=expected):
                name = f"{number:03}-answer.txt"
            case _:
                continue
        path = folder / name
        own = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        if own != expected:
            yield f"Row {row.seq}: {name} is not what the researcher was asked, or said."


def _other_report(
    folder: Path, rows: Sequence[LedgerRow], state: StudyState, result: Verification
) -> Iterator[str]:
    present = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    if state.reported is None:
        if present:
            yield "There is a report that the ledger does not have. Run the study again."
        return
    result.finished = True
    last = max(i for i, row in enumerate(rows) if isinstance(row.event, Reported))
    compiled = compile_report(rows[:last])
    if compiled.hashes != state.reported.files:
        yield "The ledger names another report than the one that follows from it."
    for name in sorted(compiled.files.keys() | present.keys()):
        if name not in present:
            yield f"The report lacks {name}."
        elif name not in compiled.files:
            yield f"The report has a file that was not compiled: {name}."
        elif hashlib.sha256(present[name]).hexdigest() != compiled.hashes[name]:
            yield f"{name} is not what follows from the ledger."
    for name in ("report.html", "record.html"):
        bare, count = unlinked_numerals(compiled.files[name])
        result.numerals += count
        if bare:
            yield f"{name} has numerals that link to nothing: {', '.join(bare[:5])}."
