"""What may be known about a study while it runs: no outcome before its look."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import AjetError, ConfigError
from ajet_research.analysis import final_verdicts
from ajet_research.events import EarlierStudy
from ajet_research.inference import Verdict
from ajet_research.ledger import LEDGER, read_ledger
from ajet_research.state import fold


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """Facts that do not unblind.

    :param phase: ``running`` until a decision, then ``decided``, then ``finished``.
    :param trials: by status, how many trials.
    :param failed: finished trials that failed by what their arm does.
    :param attempts: that were started.
    :param looks: that were taken.
    :param verdicts: of the looks that were taken.
    :param seconds: that ended attempts took.
    :param exhausted: the part of the budget that ended the study early; "" if none did.
    """

    question: str
    phase: str
    trials: dict[str, int]
    failed: int
    attempts: int
    looks: int
    verdicts: dict[str, Verdict]
    seconds: float
    exhausted: str
    conclusion: str


def study_status(directory: Path) -> StudyStatus:
    """Read the status of a study, whether or not a leader has it.

    :raises ConfigError: there is no study.
    :raises DamagedRecordError: its ledger is damaged.
    """
    path = directory / LEDGER
    if not path.exists():
        raise ConfigError(f"There is no study in {directory}.")
    state = fold(read_ledger(path))
    study, decided = state.registered, state.decided
    trials = state.trials.values()
    return StudyStatus(
        question=study.topic.question,
        phase="finished" if state.reported else "decided" if decided else "running",
        trials=dict(sorted(Counter(trial.status for trial in trials).items())),
        failed=sum(bool(trial.outcome and trial.outcome.failed) for trial in trials),
        attempts=sum(trial.attempts for trial in trials),
        looks=len(state.findings),
        verdicts=final_verdicts(state) if state.findings else {},
        seconds=round(state.settled, 3),
        exhausted=state.exhausted.resource if state.exhausted else "",
        conclusion=study.decide[decided.branch].conclude if decided else "",
    )


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
