"""Reading rows as tasks: every row is validated, and no question is in two splits."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import Field

from agentjet.agents.readers import DatasetRow, RowReader
from agentjet.agents.registered import load_reader
from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.interfaces import ComponentSettings, DatasetReader, Task
from ajet_core.plugin.targets import plugin_faults
from ajet_sources.files import TRAIN, DataFile, data_files, in_order
from ajet_sources.shapes import (
    RowQuestion,
    Shape,
    asked,
    fields_of,
    fitting,
    identity,
    own_id,
    prompt_identity,
    row_identity,
    shape_of_field,
    value_at,
)

_log = logging.getLogger("ajet.sources")

_HEAD = 100
_SHOWN = 5
_MOST_PROBLEMS = 1_000
_SHARES = 2**32


class RowsSettings(ComponentSettings):
    """:param reader: the dataset reader; by default that for the file's ending, else ``jsonl``.

    :param shape: of the rows; by default the one that their fields fit. See `Shape`.
    :param judge: the name of a judge, or ``MODULE:FUNCTION``; it gets the row and the answer.
    :param program: ``MODULE:FUNCTION`` of an agent. It gets the row, and the judge what it
        returns. By default the model is asked the prompt once.
    :param prompt: the field with the question: a text, or messages. By default that of the shape.
    :param answer: the field with the reference answer. By default that of the shape.
    :param system: the system message; "" for none.
    :param id: the field with the id of a row; by default ``id`` or ``task_id``. A row without one,
        and each one if this is "", has a digest of what it asks as its id.
    :param same: the field in which rows that ask the same are the same; by default the question,
        or, with a program, the whole row without its id and its place in the file.
    :param split: the field with the split of a row, if it has one.
    :param eval_share: the share of rows that the split ``eval`` has, by what they ask.
    :param bad_rows: whether a bad row is an error, or is skipped.
    :param duplicates: whether a row that asks the same as an earlier one of its split is an error,
        or is left out.
    :param leaks: whether a row that asks the same as one of a later split is an error, or is left
        out.
    :param tag: the field with the tag of a row, for mixtures.
    :param difficulty: the field with the difficulty of a row.
    :param reader_settings: override those of ``[readers.NAME]``.
    :param judge_settings: override those of ``[judges.NAME]``.
    """

    reader: str = ""
    shape: Shape | None = None
    judge: Annotated[str, Field(min_length=1)] = "exact"
    program: str = ""
    prompt: Annotated[str, Field(min_length=1)] | None = None
    answer: Annotated[str, Field(min_length=1)] | None = None
    system: str = ""
    id: str | None = None
    same: str = ""
    split: str = "split"
    eval_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    bad_rows: Literal["error", "skip"] = "error"
    duplicates: Literal["error", "drop"] = "drop"
    leaks: Literal["error", "drop"] = "error"
    tag: str = "tag"
    difficulty: str = "difficulty"
    reader_settings: dict[str, Any] = Field(default_factory=dict)
    judge_settings: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RowsReport:
    """What reading a dataset has shown.

    :param shape: of the rows; None if only a program reads them.
    :param rows: how many there are, with those that were left out.
    :param tasks: how many tasks each split has.
    :param bad: rows that cannot be tasks, each with its place and the reason.
    :param duplicates: rows that ask the same as an earlier one of their split, which are left out.
    :param conflicting: how many of them have another reference than the earlier one.
    :param leaks: rows of a split that a later split has too, and which are left out.
    """

    shape: Shape | None
    rows: int
    tasks: Mapping[str, int]
    bad: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    conflicting: int = 0
    leaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        shape = f" of the shape {self.shape}" if self.shape else ""
        tasks = ", ".join(f"{name} {number}" for name, number in self.tasks.items())
        left_out = ", ".join(
            _count(len(places), what)
            for what, places in (
                ("bad row", self.bad),
                ("duplicate", self.duplicates),
                ("leak", self.leaks),
            )
        )
        return f"{_count(self.rows, 'row')}{shape}; tasks: {tasks}; left out: {left_out}"

    @property
    def warnings(self) -> list[str]:
        """What was left out, in one line for each reason."""
        other = f", {self.conflicting} with another answer" if self.conflicting else ""
        return [
            f"{_count(len(places), what)} left out{which}: {_shown(places)}"
            for what, which, places in (
                ("bad row", "", self.bad),
                ("duplicate", other, self.duplicates),
                ("row", ", because a later split has the same", self.leaks),
            )
            if places
        ]


@dataclass(frozen=True, slots=True)
class RowTasks:
    """A dataset as tasks.

    :param tasks: of each split, the splits in the order of their use.
    """

    tasks: Mapping[str, list[Task]]
    report: RowsReport


def read_rows(
    path: str, settings: RowsSettings, *, needs_answer: bool, needs_prompt: bool
) -> RowTasks:
    """Read a dataset. All of its tasks are in memory afterwards.

    :param path: a file, or a directory; see `data_files`.
    :param needs_answer: whether a row without a reference is bad.
    :param needs_prompt: whether a row that asks nothing is bad.
    :raises ConfigError: the shape of the rows is not clear, or settings contradict each other.
    :raises UnreadableFileError: a file cannot be read, or has rows that it must not have.
    """
    reading = _RowReading(path, settings, needs_answer=needs_answer, needs_prompt=needs_prompt)
    return reading.run()


@dataclass
class _Split:
    """The tasks of a split, by what they ask."""

    tasks: dict[str, Task] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)


class _Placed(NamedTuple):
    """A row with the split of its file.

    :ivar place: with the name of the file.
    """

    split: str
    place: str
    row: DatasetRow


class _RowReading:
    def __init__(
        self, path: str, settings: RowsSettings, *, needs_answer: bool, needs_prompt: bool
    ) -> None:
        self._path = path
        self._settings = settings
        self._needs_answer = needs_answer
        self._needs_prompt = needs_prompt
        self._shape: Shape | None = None
        self._splits: dict[str, _Split] = {}
        self._of_files: set[str] = set()
        self._bad: list[str] = []
        self._duplicates: list[str] = []
        self._conflicting = 0
        self._count = 0

    def run(self) -> RowTasks:
        rows = self._rows()
        head: list[_Placed] = []
        for placed in rows:
            head.append(placed)
            if sum(one.row.item is not None for one in head) >= _HEAD:
                break
        self._shape = self._chosen_shape([one for one in head if one.row.item is not None])
        for placed in itertools.chain(head, rows):
            self._count += 1
            try:
                self._take(placed)
            except ValueError as error:
                self._bad.append(f"{placed.place}: {error}")
            if len(self._bad) >= _MOST_PROBLEMS and self._settings.bad_rows == "error":
                break
        return self._result()

    def _rows(self) -> Iterator[_Placed]:
        settings = self._settings
        files = (
            [DataFile(self._path, TRAIN, settings.reader)]
            if settings.reader
            else data_files(self._path)
        )
        for file in files:
            given = dict(settings.reader_settings)
            if file.has_tabs and file.reader == "csv":
                given.setdefault("delimiter", "\t")
            reader, owner = load_reader(file.reader, given)
            with plugin_faults(owner, "failed in read"):
                for row in _located(reader, file.path):
                    yield _Placed(file.split, f"{file.path}, {row.place}", row)

    def _chosen_shape(self, head: Sequence[_Placed]) -> Shape | None:
        """:raises ConfigError: two shapes fit, or none."""
        settings = self._settings
        if settings.shape is not None or not head:
            return settings.shape
        mappings = [(one.place, one.row.item) for one in head if isinstance(one.row.item, dict)]
        if len(mappings) < len(head):
            return "trl"
        if settings.prompt is not None:
            return shape_of_field(settings.prompt, [item for _, item in mappings])
        fits: dict[Shape, str] = {}
        for place, item in mappings:
            for shape in fitting(item):
                fits.setdefault(shape, place)
        if len(fits) == 1:
            return next(iter(fits))
        if not self._needs_prompt:
            return None
        if fits:
            said = " and ".join(f"{shape} ({place})" for shape, place in fits.items())
            raise ConfigError(
                f"the rows fit the shapes {said}: choose one, as in ?shape={next(iter(fits))}",
                param="sources.rows.shape",
            )
        place, first = mappings[0]
        raise ConfigError(
            f"{place}: fits none of the shapes verl, trl, openai and sharegpt; the fields are "
            f"{', '.join(map(str, first))}. Name those with the question and the answer, as in "
            "?prompt=question&answer=solution",
            param="sources.rows.prompt",
        )

    def _take(self, placed: _Placed) -> None:
        """:raises ValueError: the row is bad; the message says why."""
        settings, place = self._settings, placed.place
        given: Any = placed.row.item
        if given is None:
            raise ValueError(placed.row.problem)
        item = given.payload if isinstance(given, Task) else given
        question = None
        if self._shape is not None:
            question = asked(item, self._shape, settings.prompt, settings.answer)
            if self._needs_answer and question.reference is None:
                where = f" in the field {settings.answer!r}" if settings.answer else ""
                raise ValueError(
                    f"has no answer{where}, which the judge {settings.judge!r} needs: name its "
                    f"field with ?answer=FIELD{fields_of(item)}"
                )
        key = self._key(item, question)
        into = self._splits.setdefault(self._split(placed.split, item, key), _Split())
        reference = "" if question is None else identity(question.reference)
        if key in into.places:
            self._duplicates.append(f"{place} (as {into.places[key]})")
            self._conflicting += reference != into.references[key]
            return
        name = given.id if isinstance(given, Task) else own_id(item, settings.id)
        task = _task(name or f"task-{key[:16]}", item, question, settings)
        if task.id in into.ids:
            raise ValueError(
                f"has the id {task.id!r}, as {into.ids[task.id]} has: name another field with "
                "?id=FIELD, or none with ?id="
            )
        into.tasks[key] = task
        into.places[key] = into.ids[task.id] = place
        into.references[key] = reference

    def _key(self, item: object, question: RowQuestion | None) -> str:
        """Return a digest that is the same for rows that ask the same."""
        settings = self._settings
        if settings.same:
            value = value_at(item, settings.same)
            if value is None:
                raise ValueError(f"has nothing in the field {settings.same!r}")
            return identity(value)
        # Only the program knows what it asks, unless the setting names the question.
        if question is not None and (self._needs_prompt or settings.prompt is not None):
            return prompt_identity(question.prompt)
        return row_identity(item)

    def _split(self, of_file: str, item: object, key: str) -> str:
        settings = self._settings
        value = (
            value_at(item, settings.split) if settings.split and isinstance(item, Mapping) else None
        )
        own = value if isinstance(value, str) and value else of_file
        self._of_files.add(own)
        if settings.eval_share:
            # By what is asked, so that a row keeps its split when others are added.
            return "eval" if int(key[:8], 16) < settings.eval_share * _SHARES else TRAIN
        return own

    def _result(self) -> RowTasks:
        settings = self._settings
        if self._bad and settings.bad_rows == "error":
            first, *others = self._bad
            more = [one.partition(": ")[0] for one in others]
            and_more = f". And {_count(len(more), 'more bad row')}: {_shown(more)}" if more else ""
            self._refuse(f"{first}{and_more}", "bad_rows=skip")
        if self._duplicates and settings.duplicates == "error":
            said = f"{self._path} has {_count(len(self._duplicates), 'duplicate')}"
            self._refuse(f"{said}: {_shown(self._duplicates)}", "duplicates=drop")
        if settings.eval_share and len(self._of_files) > 1:
            raise ConfigError(
                f"{self._path} has the splits {', '.join(in_order(sorted(self._of_files)))}: "
                "remove eval_share, or name one file",
                param="sources.rows.eval_share",
            )
        names = [TRAIN, "eval"] if settings.eval_share else in_order(list(self._splits))
        leaks = self._leaks(names)
        if leaks and settings.leaks == "error":
            said = f"{self._path} has {_count(len(leaks), 'row')} that a later split has too"
            self._refuse(f"{said}: {_shown(leaks)}", "leaks=drop")
        tasks = {name: list(self._splits.get(name, _Split()).tasks.values()) for name in names}
        if not any(tasks.values()):
            why = f" that are good: {self._bad[0]}" if self._bad else ""
            raise ConfigError(f"{self._path} has no rows{why}", param="source")
        report = RowsReport(
            shape=self._shape,
            rows=self._count,
            tasks={name: len(of_split) for name, of_split in tasks.items()},
            bad=tuple(self._bad),
            duplicates=tuple(self._duplicates),
            conflicting=self._conflicting,
            leaks=tuple(leaks),
        )
        for warning in report.warnings:
            _log.warning("%s: %s", self._path, warning)
        return RowTasks(tasks, report)

    def _leaks(self, names: Sequence[str]) -> list[str]:
        """Remove from each split what a later one has, and return the places of these rows."""
        leaks: list[str] = []
        later: dict[str, str] = {}
        for name in reversed(names):
            split = self._splits.get(name, _Split())
            for key in [key for key in split.tasks if key in later]:
                leaks.append(f"{split.places[key]} (as {later[key]})")
                del split.tasks[key]
            later |= split.places
        return leaks

    def _refuse(self, said: str, setting: str) -> NoReturn:
        """:raises UnreadableFileError: always."""
        raise UnreadableFileError(f"{said}. Correct the dataset, or leave them out: ?{setting}")


def _located(reader: DatasetReader[Any], path: str) -> Iterator[DatasetRow]:
    if isinstance(reader, RowReader):
        yield from reader.rows(path)
        return
    for number, item in enumerate(reader.read(path), start=1):
        yield DatasetRow(f"item {number}", item)


def _task(name: str, item: Any, question: RowQuestion | None, settings: RowsSettings) -> Task:
    """:raises ValueError: the difficulty is not a number."""
    tag, difficulty = value_at(item, settings.tag), value_at(item, settings.difficulty)
    if isinstance(difficulty, str):
        # All values of CSV are texts.
        try:
            difficulty = float(difficulty) if difficulty.strip() else None
        except ValueError:
            raise ValueError(
                f"has {difficulty!r} in the field {settings.difficulty!r}, which is to be a "
                "number: name another field with ?difficulty=FIELD"
            ) from None
    payload = item
    if question is not None and isinstance(item, Mapping):
        # Judges and programs need not know the shape.
        added = {"answer": question.reference} if question.reference is not None else {}
        payload = {"prompt": question.prompt, **item, **added}
        if item.get("prompt") is None:
            payload["prompt"] = question.prompt
    return Task(
        name,
        payload=payload,
        tag=tag if isinstance(tag, str) else "",
        difficulty=float(difficulty) if isinstance(difficulty, int | float) else None,
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shown(places: Sequence[str]) -> str:
    more = len(places) - _SHOWN
    return ", ".join(places[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
