"""What may be known about a study while it runs: no outcome before its look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import AjetError, ConfigError
from ajet_research.analysis import final_verdicts
from ajet_research.disk import used_mebibytes
from ajet_research.events import AnyEvent, EarlierStudy, Finished, Looked, Steering
from ajet_research.inference import Verdict
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.report.steered import interventions
from ajet_research.state import StudyState, TrialState, fold, shown_time
from ajet_research.steering import leader_of
from ajet_research.study import Answer

_EVENTS = 12
_TRIALS = "trials"
_WORDS = {
    "registered": "the study was registered",
    "proposed": "candidate {0.candidate} was proposed",
    "advanced": "the best candidates of a rung were kept",
    "leader_started": "a leader started",
    "reserved": "trial {0.trial} started, attempt {0.attempt}",
    "attempt_failed": "trial {0.trial}, attempt {0.attempt} failed: {0.cause}",
    "finished": "trial {0.trial} finished",
    "lost": "trial {0.trial} was lost",
    "exhausted": "the budget's {0.resource} was used up",
    "clock_jumped": "the clock moved by {0.seconds:g} s",
    "hindered": "the leader stopped: {0.cause}",
    "asked": "the question {0.question} was asked",
    "decided": "the study was decided",
    "reported": "the report was written",
    "researcher_asked": "the researcher {0.researcher} was asked ({0.purpose})",
    "researcher_answered": "request {0.number} to a researcher ended",
    "interpreted": "the researcher {0.researcher} interpreted the report",
}


@dataclass(frozen=True, slots=True)
class ArmProgress:
    """The trials of an arm.

    :param done: with an outcome.
    :param failed: of the done ones, those that failed by what their arm does.
    :param left: that were not started, and may not be needed.
    """

    arm: str
    done: int
    failed: int
    running: int
    lost: int
    left: int


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A limit of the budget.

    :param used: what is spent, and what is reserved for attempts that run.
    """

    name: str
    used: float
    limit: float


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question to a person.

    :param default: the answer that applies at the deadline.
    """

    id: str
    question: str
    default: Answer
    deadline: str


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """Facts that do not unblind.

    :param phase: ``running`` until a decision, then ``decided``, then ``finished``; ``paused`` and
        ``asking`` if it waits for a person, ``ending`` if nothing more starts.
    :param leader: process id of the leader that is at work on this machine; "" if none is.
    :param trials: by status, how many trials.
    :param failed: finished trials that failed by what their arm does.
    :param attempts: that were started.
    :param looks: that were taken.
    :param verdicts: of the looks that were taken.
    :param seconds: that ended attempts took.
    :param exhausted: the part of the budget that ended the study early; "" if none did.
    :param paused: since when, by whom and why; "" if it is not paused.
    :param ended: who ended the study early; "" if no person did.
    :param interventions: what people did, one line each.
    :param events: the last rows of the ledger, one line each, without outcomes.
    """

    question: str
    phase: str
    leader: str
    trials: dict[str, int]
    arms: list[ArmProgress]
    failed: int
    attempts: int
    looks: int
    planned_looks: int
    verdicts: dict[str, Verdict]
    seconds: float
    budget: list[SpentBudget]
    exhausted: str
    paused: str
    open_question: OpenQuestion | None
    ended: str
    interventions: list[str]
    events: list[str]
    conclusion: str


def study_status(directory: Path) -> StudyStatus:
    """Read the status of a study, whether or not a leader has it.

    :raises ConfigError: there is no study.
    :raises DamagedRecordError: its ledger is damaged.
    """
    path = directory / LEDGER
    if not path.exists():
        raise ConfigError(f"There is no study in {directory}.")
    rows = list(read_ledger(path))
    state = fold(rows)
    study, decided = state.registered, state.decided
    trials = state.trials.values()
    pause = state.paused
    return StudyStatus(
        question=study.topic.question,
        phase=_phase(state),
        leader=leader_of(directory),
        trials=dict(sorted(Counter(trial.status for trial in trials).items())),
        arms=_arms(state),
        failed=sum(bool(trial.outcome and trial.outcome.failed) for trial in trials),
        attempts=sum(trial.attempts for trial in trials),
        looks=len(state.findings),
        planned_looks=len(study.inference.looks),
        verdicts=final_verdicts(state) if state.findings else {},
        seconds=round(state.settled, 3),
        budget=_spent(state, directory),
        exhausted=state.exhausted.resource if state.exhausted else "",
        paused=f"since {shown_time(pause.at)}, by {pause.by}: {pause.why}" if pause else "",
        open_question=_question(state),
        ended=(state.ended.by or "the registered default") if state.ended else "",
        interventions=[one.line for one in interventions(state)],
        events=[f"{row.time} {_words(row.event)}" for row in rows[-_EVENTS:]],
        conclusion=study.decide[decided.branch].conclude if decided else "",
    )


def _phase(state: StudyState) -> str:
    if state.reported is not None:
        return "finished"
    if state.decided is not None:
        return "decided"
    if state.over:
        return "ending"
    if state.asked is not None:
        return "asking"
    return "paused" if state.paused is not None else "running"


def _arms(state: StudyState) -> list[ArmProgress]:
    search = state.registered.search
    by_arm: dict[str, list[TrialState]] = {}
    for trial in state.trials.values():
        searched = search is not None and trial.blueprint.seed in search.seeds
        by_arm.setdefault("candidates of the search" if searched else trial.arm, []).append(trial)
    arms = []
    for arm, trials in by_arm.items():
        count = Counter(trial.status for trial in trials)
        arms.append(
            ArmProgress(
                arm=arm,
                done=count["finished"],
                failed=sum(bool(trial.outcome and trial.outcome.failed) for trial in trials),
                running=count["reserved"],
                lost=count["lost"],
                left=count["planned"],
            )
        )
    return sorted(arms, key=lambda one: one.arm)


def _spent(state: StudyState, directory: Path) -> list[SpentBudget]:
    budget = state.budget
    begun = sum(trial.attempts > 0 for trial in state.trials.values())
    hours = (state.settled + state.reserved) / 3600
    spent = [
        SpentBudget("trials", begun, budget.trials),
        SpentBudget("compute_hours", round(hours, 4), budget.compute_hours),
        SpentBudget("wall_hours", round(state.wall / 3600, 4), budget.wall_hours),
        SpentBudget("disk_mib", round(_disk(state, directory), 2), budget.disk_mib),
    ]
    if budget.researcher_tokens is not None:
        tokens = state.spending.tokens
        spent.append(SpentBudget("researcher_tokens", tokens, budget.researcher_tokens))
    if budget.researcher_money is not None:
        money = round(state.spending.money, 4)
        spent.append(SpentBudget("researcher_money", money, budget.researcher_money))
    return spent


def _disk(state: StudyState, directory: Path) -> float:
    """Return what a study takes on the disk, and what is set aside for attempts that run."""
    used = used_mebibytes(directory)
    for id_, trial in state.trials.items():
        if trial.status == "reserved" and trial.blueprint.disk_mib is not None:
            own = used_mebibytes(directory / _TRIALS / id_)
            used += max(0.0, trial.blueprint.disk_mib - own)
    return used


def _question(state: StudyState) -> OpenQuestion | None:
    asked = state.asked
    if asked is None:
        return None
    (registered,) = (one for one in state.registered.ask if one.id == asked.question)
    return OpenQuestion(
        registered.id, registered.question, registered.default, shown_time(asked.deadline)
    )


def _words(event: AnyEvent) -> str:
    """Return a row in words, without its outcome."""
    if isinstance(event, Steering):
        why = f": {event.why}" if event.why else ""
        return f"{event.kind} by {event.by or 'the registered default'}{why}"
    if isinstance(event, Looked):
        return f"look {event.look + 1} was taken"
    if isinstance(event, Finished) and event.failed:
        return f"trial {event.trial} failed"
    return _WORDS[event.kind].format(event)


def earlier_studies(directory: Path) -> list[EarlierStudy]:
    """Return the other studies in the directory that a study's directory is in, by name."""
    own = directory.resolve()
    studies = []
    for path in sorted(own.parent.glob(f"*/{LEDGER}")):
        if path.parent == own:
            continue
        try:
            state = fold(read_ledger(path))
            studies.append(
                EarlierStudy(
                    name=path.parent.name,
                    question=state.registered.topic.question,
                    digest=state.digest,
                    phase="finished" if state.decided else "running",
                    verdicts=final_verdicts(state) if state.decided else {},
                )
            )
        except (AjetError, OSError):
            name = path.parent.name
            studies.append(
                EarlierStudy(name=name, question="", digest="", phase="unreadable", verdicts={})
            )
    return studies
