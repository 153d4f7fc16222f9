"""What a study needs next: a pure function of its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ajet_research.state import StudyState, TrialState
from ajet_research.study import arm_name


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set aside the worst case of another attempt of a trial."""

    trial: str


@dataclass(frozen=True, slots=True)
class Await:
    """See that an attempt that was reserved runs, and take its result."""

    trial: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Count a trial as lost: it has had all its attempts."""

    trial: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Start nothing more: the budget is exhausted."""

    resource: str
    used: float
    limit: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Open a registered question to a person."""

    question: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Start nothing until a person acts: resumes the study, or answers a question.

    :param question: the open one, whose default applies at its deadline; "" if there is none.
    """

    question: str


@dataclass(frozen=True, slots=True)
class Propose:
    """Have the sampler of a search propose a candidate."""

    candidate: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Let the best candidates of a search enter a rung, or the confirmation after the last one."""

    rung: int


@dataclass(frozen=True, slots=True)
class Proceed:
    """Take the next look, decide, or compile the report."""

    to: Literal["look", "decision", "report"]


Action = Reserve | Await | GiveUp | Stop | Ask | Hold | Propose | Advance | Proceed


def actions(state: StudyState) -> list[Action]:
    """Return what to do now; empty if the study is finished.

    Several `Await` and `Reserve` may be done in any order, until an attempt settles: what to do is
    then asked again. `GiveUp` stands alone or behind `Await`, and replaces every `Reserve`; so does
    `Hold`. `Stop`, `Ask`, `Propose`, `Advance` and `Proceed` are the only one in the list.
    """
    if state.reported is not None:
        return []
    if state.decided is not None:
        return [Proceed("report")]
    waiting: list[Action] = [
        Await(id_) for id_, trial in state.trials.items() if trial.status == "reserved"
    ]
    next_ones = _next(state, waiting) if state.ended is None else []
    # A look whose trials have all ended costs nothing more, whatever budget is used up.
    if next_ones and (state.exhausted is None or next_ones == [Proceed("look")]):
        return next_ones
    return waiting or [Proceed("decision")]


def _next(state: StudyState, waiting: list[Action]) -> list[Action]:
    """Return what leads to the next look; empty if no look is left to take."""
    if state.held:
        return [*waiting, Hold(state.asked.question if state.asked else "")]
    if not _open(state) or not _looks_left(state):
        return []
    if state.due is not None:
        return waiting or [Ask(state.due.id)]
    partial = _proposal(state, idle=False)
    if partial is None and (needed := needed_now(state)):
        return waiting + _starts(state, needed, idle=not waiting)
    ahead = Advance(state.rung + 1) if state.searching else Proceed("look")
    return waiting or [partial or _proposal(state, idle=True) or ahead]


def _proposal(state: StudyState, *, idle: bool) -> Propose | None:
    """Return the next proposal of a search.

    A batch is complete before any of its trials starts, and none is proposed before all trials of
    the one before it have ended: so proposals depend on outcomes, and not on when they came.
    """
    search, number = state.registered.search, len(state.candidates)
    if search is None or state.rung or number == search.candidates:
        return None
    return Propose(number + 1) if idle or number % search.proposed_at_once else None


def needed_now(state: StudyState) -> list[str]:
    """Return the trials that the next look, or the search before it, needs to be started."""
    study = state.registered
    if study.search is not None and state.searching:
        return [
            id_
            for id_, trial in state.trials.items()
            if trial.status == "planned" and trial.blueprint.seed in study.search.seeds
        ]
    undecided = _open(state)
    if not undecided or not _looks_left(state):
        return []
    seeds = study.inference.looks[len(state.findings)].seeds
    last = study.inference.first_seed + seeds
    sides = [{arm_name(arm) for arm in one.sides} for one in study.compare if one.id in undecided]
    # A search may choose fewer candidates than it was to.
    present = {trial.arm for trial in state.trials.values()}
    arms = set().union(*(both for both in sides if both <= present))
    return [
        id_
        for id_, trial in state.trials.items()
        if trial.status == "planned"
        and trial.blueprint.seed < last
        and (trial.arm in arms or (arms and trial.blueprint.repeat))
    ]


def _starts(state: StudyState, needed: list[str], *, idle: bool) -> list[Action]:
    for id_ in needed:
        if state.trials[id_].attempts >= state.budget.attempts:
            return [GiveUp(id_)]
    allowed: list[Action] = []
    begun = sum(trial.attempts > 0 for trial in state.trials.values())
    seconds = state.settled + state.reserved
    for id_ in needed:
        begun += not state.trials[id_].attempts
        seconds += state.trials[id_].blueprint.seconds
        stop = _over(state, state.trials[id_], begun, seconds)
        if stop is None:
            allowed.append(Reserve(id_))
        elif idle and not allowed:
            # Attempts that still run may settle below their reservation.
            return [stop]
        else:
            break
    return allowed


def _over(state: StudyState, trial: TrialState, begun: int, seconds: float) -> Stop | None:
    budget = state.budget
    if begun > budget.trials:
        return Stop("trials", begun - 1, budget.trials)
    limit = budget.compute_hours * 3600
    if seconds > limit * (1 + 1e-9):
        return Stop("compute_hours", (seconds - trial.blueprint.seconds) / 3600, limit / 3600)
    if state.wall + trial.blueprint.seconds > budget.wall_hours * 3600 * (1 + 1e-9):
        return Stop("wall_hours", state.wall / 3600, budget.wall_hours)
    return None


def _looks_left(state: StudyState) -> bool:
    return len(state.findings) < len(state.registered.inference.looks)


def _open(state: StudyState) -> set[str]:
    """Return the comparisons without a final verdict."""
    verdicts = state.verdicts
    return {
        one.id
        for one in state.registered.compare
        if one.id not in verdicts or verdicts[one.id].verdict == "undecided"
    }
