"""What a study file would do, before it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ajet_research.inference import least_p
from ajet_research.leader import check_machine
from ajet_research.registration import register
from ajet_research.study import arm_name, parse_study, study_text


@dataclass(frozen=True, slots=True)
class PlannedLook:
    """A registered look.

    :param least_p: the smallest p value that so many seeds can reach.
    :param alpha: of one comparison.
    """

    seeds: int
    alpha: float
    least_p: float


@dataclass(frozen=True, slots=True)
class StudyCheck:
    """A study that may start.

    :param trials: the most that it can need.
    :param compute_hours: of these, in the worst case.
    :param disk_mib: of the study, in the worst case; None if its trials have no limit.
    :param warnings: what its author should know, such as a low power.
    """

    question: str
    digest: str
    arms: list[str]
    comparisons: list[str]
    trials: int
    compute_hours: float
    disk_mib: float | None
    looks: list[PlannedLook]
    warnings: list[str]


def check_study(source: Path) -> StudyCheck:
    """Check a study file as its start would, and change nothing.

    :raises ConfigError: it is invalid or refused; each line of the message is one reason.
    """
    study = parse_study(study_text(source), str(source))
    registration = register(study, source.resolve().parent)
    check_machine(registration)
    trials, disk = study.trials, study.most_disk_mib
    return StudyCheck(
        question=study.topic.question,
        digest=study.digest(),
        arms=sorted(arm_name(arm) for arm in study.arms),
        comparisons=[one.id for one in study.compare],
        trials=trials,
        compute_hours=round(trials * study.budget.trial_seconds / 3600, 4),
        disk_mib=None if disk is None else round(disk, 2),
        looks=[
            PlannedLook(look.seeds, study.alpha_of(index), least_p(look.seeds))
            for index, look in enumerate(study.inference.looks)
        ],
        warnings=list(registration.warnings),
    )
