"""What a world must offer so that studies can be run in it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ajet_research.parts import is_unset
from ajet_research.study import Scalar, digest


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A number that the evaluator of an arena reports.

    :param direction: ``max`` if more is better.
    :param worst: the worst value that it can have; None if there is none.
    :param summary: a description, with the unit.
    """

    direction: Literal["max", "min"]
    worst: float | None
    summary: str


@dataclass(frozen=True, slots=True)
class Splits:
    """Hashes of the tasks of the two splits, or other ids that equal tasks share."""

    train: frozenset[str]
    held_out: frozenset[str]


class TrialBlueprint(BaseModel):
    """Everything that one trial needs. Equal blueprints are the same trial.

    :param arena: name of the arena.
    :param evaluator: fingerprint of the arena's frozen evaluator.
    :param settings: all settings of the arena, defaults included.
    :param seed: what the trial may differ in from other trials of its arm.
    :param repeat: 0, or the number of the repetition of the trial with the same seed.
    :param seconds: wall time after which an attempt is killed, from outside.
    :param disk_mib: size of the trial's directory, above which it is killed, from outside; None
        means no limit.
    :param code: tree hash of the user's code; "" without.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arena: str
    evaluator: str
    settings: dict[str, Scalar]
    seed: int
    repeat: Annotated[int, Field(ge=0)] = 0
    seconds: float
    code: str = ""
    # Left out where it is not used, so that trials without it keep their ids.
    disk_mib: float | None = Field(None, exclude_if=is_unset)

    @property
    def limits(self) -> tuple[float, float | None]:
        """The worst case of an attempt: seconds, and the size of its directory in MiB."""
        return self.seconds, self.disk_mib

    @functools.cached_property
    def id(self) -> str:
        """The first 12 hex digits of the blueprint's hash."""
        return digest(self.model_dump(mode="json"))[:12]


@dataclass(frozen=True, slots=True)
class TrialEvidence:
    """What an arena reads from the raw store of a trial.

    :param metrics: each metric of the arena; empty if the trial failed.
    :param failed: why the arm made the trial fail, such as a loss that is not finite; "" if it did
        not.
    :param fingerprint: of everything that the trial measured. Two seeds of an arm that have the
        same one show that the seed is ignored.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    fingerprint: str = ""


class Arena(ABC):
    """A world with tasks, something that is trained on them, and a frozen evaluator.

    `resolve`, `splits`, `evaluator` and `evidence` are pure functions of their arguments: the
    leader, the report and ``ajet research verify`` call them, also years later. `check_machine` is
    called once, when a study starts. `run` is called in a process of its own, which is killed when
    the blueprint's time is over.

    :cvar summary: what the arena is, and which values its settings may have, for researchers.
    :cvar reserved: beginnings of settings that a researcher may not set, because they name
        programs, files or hosts.
    :ivar programs: settings that may be ``code:`` and the path of a file. `resolve` gets the text
        of the file instead of its path. A trial runs it in a sandbox alone, and `check_machine`
        refuses it where there is none.
    """

    metrics: Mapping[str, MetricSpec]
    summary: ClassVar[str] = ""
    reserved: ClassVar[tuple[str, ...]] = ()
    programs: tuple[str, ...] = ()

    @abstractmethod
    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all settings, with defaults and what presets imply.

        :raises ConfigError: a setting is unknown or has the wrong type; the message names the
            known ones.
        """

    @abstractmethod
    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:
        """Return the tasks that a trial trains on and those that it is evaluated on."""

    @abstractmethod
    def evaluator(self, settings: Mapping[str, Scalar]) -> str:
        """Return the fingerprint of what scores a trial; "" if it is not frozen.

        :raises ConfigError: it is not frozen; the message says why, and what to do.
        """

    def check_machine(self, settings: Mapping[str, Scalar]) -> None:  # noqa: B027 - most need nothing
        """Check that trials with resolved settings can run here, before a study starts.

        :raises ConfigError: they cannot; the message says what to install.
        """

    @abstractmethod
    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Run a trial to its end, and write all that it measured to `directory`.

        Called again with the directory of an attempt that was killed, it continues there. A trial
        that fails by what its arm does writes this to the directory and returns. Any exception
        counts as a fault of the machine, and the trial is attempted again.
        """

    @abstractmethod
    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:
        """Read the raw store of a finished trial.

        :raises ConfigError: the store is incomplete or damaged.
        """
