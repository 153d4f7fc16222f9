"""The study file: what is varied, what is measured, and what follows from each result.

A study is registered before its first result. Its words and rules are in docs/research.md.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_bytes
from ajet_research import parts
from ajet_research.inference import MOST_SEEDS, VERDICTS, Verdict
from ajet_research.parts import Count, Name, Positive, Share, StudyPart, is_unset
from ajet_research.search.space import (
    BASELINE,
    SEARCH,
    Parameter,
    Rung,
    Search,
    chosen_level,
    wrong_search,
)

SCHEMA = 1
"""The version of the study file, of the ledger and of the trial directories."""

Scalar = parts.Scalar
Answer = Literal["yes", "no"]


class Topic(StudyPart):
    """What is asked, in the user's words.

    :param proposed_by: the researcher that wrote the rest of the study; "" if people did.
    """

    question: Annotated[str, Field(min_length=1, max_length=2000)]
    proposed_by: Annotated[str, Field(max_length=80)] = Field("", exclude_if=is_unset)


class Base(StudyPart):
    """What all arms share.

    :param arena: a registered arena: its tasks, what is trained on them, and its evaluator.
    :param set: settings of the arena; others have the arena's defaults.
    """

    arena: Name
    set: dict[str, Scalar] = Field({})


class Factor(StudyPart):
    """One thing that is varied: the arena's setting `path` takes each of `levels`."""

    path: str
    levels: Annotated[list[Scalar], Field(min_length=2)]


class Guardrail(StudyPart):
    """A metric that must not become worse by `margin` or more, or no arm is better."""

    metric: str
    margin: Positive


class Measure(StudyPart):
    """The registered outcome.

    :param metric: a metric of the arena's evaluator, which also says which direction is better.
    :param smallest: the smallest effect of interest, in the metric's unit.
    :param failed: the outcome of a trial that fails by what its arm does. ``worst`` is the worst
        value of the metric. In guardrails, it always has the worst value of their metric.
    """

    metric: str
    smallest: Positive
    failed: Literal["worst"] | Annotated[float, Field(allow_inf_nan=False)] = "worst"
    guardrails: list[Guardrail] = Field([])


class Look(StudyPart):
    """A registered moment of analysis: after so many seeds, with this part of alpha."""

    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)]
    alpha: Share


class Inference(StudyPart):
    """How results become verdicts.

    :param alpha: probability of any false verdict in the whole study.
    :param first_seed: the seeds are this one and those after it.
    :param most_missing: the share of pairs that may be lost; with more, a comparison is invalid.
    :param repeats: number of trials that are run again with the same seed, to measure noise.
    :param sd: standard deviation of a difference between two arms with the same seed, if known: the
        power of the study is then shown when it is registered.
    """

    alpha: Share = 0.05
    looks: Annotated[list[Look], Field(min_length=1, max_length=5)]
    first_seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    most_missing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    repeats: Annotated[int, Field(ge=0, le=5)] = 1
    sd: Positive | None = None


class Compare(StudyPart):
    """One comparison of two arms; `expect` is what the author expects before any result."""

    id: Name
    arm: dict[str, Scalar]
    against: dict[str, Scalar]
    expect: Verdict | None = None

    @property
    def sides(self) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        """Both arms."""
        return self.arm, self.against


class Decide(StudyPart):
    """A branch of the decision tree: the first that applies to the verdicts is the conclusion."""

    when: dict[str, Verdict | list[Verdict]] = Field({})
    otherwise: bool = False
    conclude: Annotated[str, Field(min_length=1, max_length=500)]

    def allowed(self, comparison: str) -> tuple[Verdict, ...]:
        """Return the verdicts of a comparison with which this branch applies."""
        listed = self.when.get(comparison, list(VERDICTS))
        return tuple(listed) if isinstance(listed, list) else (listed,)

    def applies(self, verdicts: Mapping[str, Verdict]) -> bool:
        """Return whether this branch applies."""
        return all(verdict in self.allowed(id_) for id_, verdict in verdicts.items())


class ResearcherPrice(StudyPart):
    """What a million tokens of a model cost, in any currency."""

    input: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Budget(StudyPart):
    """What may be spent. A trial's worst case is reserved before the trial starts.

    :param trials: that may be started, each with all its attempts.
    :param trial_seconds: wall time after which an attempt is killed.
    :param compute_hours: wall time of all attempts together.
    :param wall_hours: time in which a leader was at work.
    :param disk_mib: size of the study's directory.
    :param trial_disk_mib: size of a trial's directory, above which the trial is killed. None means
        that trials have no limit of their own.
    :param attempts: how often a trial is tried if the machine, not its arm, lets it fail.
    :param researcher_tokens: of prompts and answers of all researchers together.
    :param researcher_money: what these tokens cost at most, by `researcher_prices`.
    """

    trials: Count
    trial_seconds: Positive
    compute_hours: Positive
    wall_hours: Positive = 24.0
    disk_mib: Positive = 1024.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    # Left out of the digest where they are not used, so that studies without them keep theirs.
    trial_disk_mib: Positive | None = Field(None, exclude_if=is_unset)
    researcher_tokens: Annotated[int, Field(ge=0)] | None = Field(None, exclude_if=is_unset)
    researcher_money: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, exclude_if=is_unset
    )
    researcher_prices: dict[str, ResearcherPrice] = Field({}, exclude_if=is_unset)


_LEDGER_MIB = 1.0
"""Size of a ledger without trials."""
_RECORD_MIB = 1 / 32
"""What a trial adds to the ledger and to the report."""
FIXED_LIMITS = frozenset({"trial_seconds", "trial_disk_mib"})
"""Parts of the budget that no amendment changes: each trial is registered with them."""


class StudyQuestion(StudyPart):
    """A question to a person, whether the study continues; ``no`` ends it.

    :param before_look: it is asked before the trials of this look (counted from 1) start, unless
        nothing is left to compare.
    :param default: the answer if no person gives one in time.
    :param deadline_hours: after which the default applies, by the wall clock.
    """

    id: Name
    before_look: Count
    question: Annotated[str, Field(min_length=1, max_length=500)]
    default: Answer
    deadline_hours: Annotated[float, Field(gt=0, le=8784, allow_inf_nan=False)]


class Code(StudyPart):
    """Code of the user's that trials run: a Git repository without uncommitted changes."""

    path: str


class Study(StudyPart):
    """A whole study file."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    topic: Topic
    base: Base
    factors: dict[Name, Factor] = Field({})
    search: Search | None = Field(None, exclude_if=is_unset)
    outcome: Measure
    inference: Inference
    compare: Annotated[list[Compare], Field(min_length=1)]
    decide: Annotated[list[Decide], Field(min_length=1)]
    budget: Budget
    ask: list[StudyQuestion] = Field([], exclude_if=is_unset)
    code: Code | None = None

    @property
    def seeds(self) -> range:
        """The seeds of the last look."""
        first = self.inference.first_seed
        return range(first, first + self.inference.looks[-1].seeds)

    @property
    def arms(self) -> list[dict[str, Scalar]]:
        """The arms that are compared, each once, in the order of the file."""
        unique: dict[str, dict[str, Scalar]] = {}
        for one in self.compare:
            for arm in (one.against, one.arm):
                unique.setdefault(arm_name(arm), arm)
        return list(unique.values())

    @property
    def levels(self) -> dict[str, list[Scalar]]:
        """The levels of each factor; a search is one."""
        declared = {name: factor.levels for name, factor in self.factors.items()}
        return declared if self.search is None else {**declared, SEARCH: self.search.levels}

    @property
    def trials(self) -> int:
        """The most trials that the study needs."""
        searched = self.search.trials if self.search else 0
        return searched + len(self.arms) * len(self.seeds) + self.inference.repeats

    @property
    def most_disk_mib(self) -> float | None:
        """What all trials and their records may take; None if trials have no limit."""
        if (own := self.budget.trial_disk_mib) is None:
            return None
        return self.trials * (own + _RECORD_MIB) + _LEDGER_MIB

    def is_chosen(self, arm: Mapping[str, Scalar]) -> bool:
        """Return whether an arm has settings that the search chooses."""
        return arm.get(SEARCH, BASELINE) != BASELINE

    def settings(
        self, arm: Mapping[str, Scalar], values: Mapping[str, Scalar] | None = None
    ) -> dict[str, Scalar]:
        """Return the arena's settings of an arm: those of `base`, with the arm's levels.

        :param values: of the search's parameters, for an arm that the search chooses.
        """
        levels = {self.factors[name].path: level for name, level in arm.items() if name != SEARCH}
        searched = self.search.settings_of(values) if self.search and values else {}
        return {**self.base.set, **levels, **searched}

    def alpha_of(self, look: int) -> float:
        """Return the error rate of one comparison at a look (counted from 0)."""
        return self.inference.looks[look].alpha / len(self.compare)

    def digest(self) -> str:
        """Return the SHA-256 of the study's content, whatever the layout of its file."""
        return digest(self.model_dump(mode="json", by_alias=True))


def canonical(value: object) -> str:
    """Return JSON that is the same for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def arm_name(arm: Mapping[str, Scalar]) -> str:
    """Return the name of an arm: its levels, by factor."""
    return ", ".join(f"{factor}={canonical(level)}" for factor, level in sorted(arm.items()))


def outcomes_of_tree(study: Study) -> Iterator[dict[str, Verdict]]:
    """Yield every combination of verdicts that the decision tree must cover."""
    ids = [one.id for one in study.compare]
    for verdicts in itertools.product(VERDICTS, repeat=len(ids)):
        yield dict(zip(ids, verdicts, strict=True))


def study_text(path: Path) -> str:
    """Read the text of a study: TOML, JSON, or the head of a Markdown file between ``+++`` lines.

    :raises ConfigError: the file cannot be read, or a Markdown file has no such head.
    """
    try:
        text = read_bytes(path, limit=1024 * 1024).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no study file {path}.") from None
    except (UnreadableFileError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the study {path}: {error}") from error
    if path.suffix != ".md":
        return text
    head = re.match(r"\+\+\+\n(.*?)^\+\+\+$", text, re.DOTALL | re.MULTILINE)
    if head is None:
        raise ConfigError(
            f"{path} has no study between two lines '+++' at its beginning. A topic needs its "
            "study there: factors, outcome, inference, comparisons, decisions and budget. "
            "'ajet research propose' lets a researcher write it."
        )
    # Keeps the line numbers of the file.
    return "\n" + head[1]


def parse_study(text: str, source: str) -> Study:
    """Decode a study strictly.

    :param source: the name of the file, for messages.
    :raises ConfigError: it is invalid. Each problem has its line and, for unknown or missing keys,
        the known ones.
    """
    try:
        content = json.loads(text) if source.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} cannot be decoded: {error}") from error
    version = content.get("schema") if isinstance(content, dict) else None
    if version is None:
        raise ConfigError(f"{source} has no key 'schema': write 'schema = {SCHEMA}' as first line")
    if version != SCHEMA:
        raise ConfigError(
            f"{source}, line {line_of(text, ('schema',))}: 'schema' is {version!r}, and this "
            f"version of agentjet reads schema {SCHEMA}. Write 'schema = {SCHEMA}' as first line."
        )
    try:
        study = Study.model_validate(content)
    except InvalidModelError as error:
        problems = [_problem(text, source, content, dict(one)) for one in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from error
    problems = [
        f"{source}, line {line_of(text, where)}: {what}" for where, what in _inconsistencies(study)
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return study


_Place = tuple[str | int, ...]


def _inconsistencies(study: Study) -> Iterator[tuple[_Place, str]]:
    """Yield what types cannot express, with the place in the file."""
    for name, factor in study.factors.items():
        if len({canonical(level) for level in factor.levels}) != len(factor.levels):
            yield ("factors", name, "levels"), f"the levels of {name!r} are not all different"
    if not study.factors and study.search is None:
        yield ("factors",), "a study has a factor, or a search"
    yield from _wrong_search(study)
    ids = [one.id for one in study.compare]
    for index, one in enumerate(study.compare):
        if one.id in ids[:index]:
            yield ("compare", index, "id"), f"two comparisons have the id {one.id!r}"
        yield from _wrong_arm(study.levels, ("compare", index, "arm"), one.arm)
        yield from _wrong_arm(study.levels, ("compare", index, "against"), one.against)
    for index, branch in enumerate(study.decide):
        if bool(branch.when) == branch.otherwise:
            yield ("decide", index), "a decision has either 'when' or 'otherwise = true'"
        for id_ in branch.when.keys() - set(ids):
            known = ", ".join(ids)
            yield ("decide", index, "when"), f"unknown comparison {id_!r}; known: {known}"
    seeds = [look.seeds for look in study.inference.looks]
    if seeds != sorted(set(seeds)):
        yield ("inference", "looks"), "each look needs more seeds than the one before it"
    yield from _wrong_questions(study)
    if study.budget.researcher_money is not None and not study.budget.researcher_prices:
        yield ("budget", "researcher_money"), "'researcher_money' needs 'researcher_prices'"


def _wrong_questions(study: Study) -> Iterator[tuple[_Place, str]]:
    looks = len(study.inference.looks)
    for index, question in enumerate(study.ask):
        before = study.ask[:index]
        if question.id in [one.id for one in before]:
            yield ("ask", index, "id"), f"two questions have the id {question.id!r}"
        if question.before_look in [one.before_look for one in before]:
            yield (
                ("ask", index, "before_look"),
                f"two questions are asked before look {question.before_look}",
            )
        if question.before_look > looks:
            yield (
                ("ask", index, "before_look"),
                f"'before_look' is {question.before_look}, and the study has {looks} looks",
            )


def _wrong_search(study: Study) -> Iterator[tuple[_Place, str]]:
    if (search := study.search) is None:
        return
    for where, what in wrong_search(search):
        yield (SEARCH, *where), what
    if SEARCH in study.factors:
        yield ("factors", SEARCH), "a factor is called 'search', as the search is: rename it"
    declared = {name: factor.levels for name, factor in study.factors.items()}
    yield from _wrong_arm(declared, (SEARCH, "arm"), search.arm)
    paths = {f"the factor {name!r}": factor.path for name, factor in study.factors.items()}
    paths |= {f"the setting {path!r} of search.set": path for path in search.set}
    for rung in search.rungs:
        paths |= {f"the setting {path!r} of a rung": path for path in rung.set}
    for name, parameter in search.parameters.items():
        for other, path in paths.items():
            if _overlap(path, parameter.path):
                yield (
                    (SEARCH, "parameters", name, "path"),
                    f"{name!r} searches {parameter.path!r}, which {other} sets: remove one of them",
                )
        paths[f"the parameter {name!r}"] = parameter.path
    sides = [(one.arm, one.against) for one in study.compare]
    if not any(study.is_chosen(arm) and not study.is_chosen(against) for arm, against in sides):
        what = (
            "no comparison confirms what the search chooses: write one with "
            f'arm = {{ search = "{chosen_level(1)}" }} and against = {{ search = "{BASELINE}" }}'
        )
        yield (SEARCH,), what


def _overlap(first: str, second: str) -> bool:
    """Return whether two settings are one, or one is a part of the other."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def _wrong_arm(
    known: Mapping[str, list[Scalar]], place: _Place, arm: Mapping[str, Scalar]
) -> Iterator[tuple[_Place, str]]:
    for name, levels_known in known.items():
        levels = ", ".join(map(canonical, levels_known))
        if name not in arm:
            yield place, f"{place[-1]!r} lacks a level of {name!r}; its levels: {levels}"
        elif canonical(arm[name]) not in map(canonical, levels_known):
            yield place, f"{canonical(arm[name])} is not a level of {name!r}: {levels}"
    for name in sorted(arm.keys() - known.keys()):
        yield place, f"unknown factor {name!r}; known: {', '.join(known)}"


def _problem(text: str, source: str, content: object, error: Mapping[str, Any]) -> str:
    """Return one line of a message: where, what, and the known names."""
    where = tuple(part for part in error["loc"] if _is_in(content, part, error["loc"]))
    keys = error["loc"]
    at = f"{source}, line {line_of(text, where)}"
    name = ".".join(str(key) for key in where) or "the file"
    if error["type"] == "extra_forbidden":
        known = _known_keys(keys[:-1])
        return f"{at}: unknown key {str(keys[-1])!r}; known: {known}"
    if error["type"] == "missing":
        inside = ".".join(str(key) for key in keys[:-1]) or "the file"
        return f"{at}: {inside} lacks {str(keys[-1])!r}; known keys: {_known_keys(keys[:-1])}"
    return f"{at}: {name}: {error['msg']}"


def _is_in(content: Any, part: object, keys: tuple[object, ...]) -> bool:
    """Return whether a part of a location is a key of the file, not a branch of a type."""
    for key in keys:
        inside = (isinstance(content, dict) and key in content) or (
            isinstance(content, list) and isinstance(key, int) and key < len(content)
        )
        if inside:
            if key is part:
                return True
            content = content[key]
    return False


def _known_keys(keys: tuple[object, ...]) -> str:
    """Return the keys of the part of a study at a place."""
    part: Any = Study
    tables = {
        "topic": Topic,
        "base": Base,
        "outcome": Measure,
        "guardrails": Guardrail,
        "inference": Inference,
        "looks": Look,
        "compare": Compare,
        "decide": Decide,
        "budget": Budget,
        "ask": StudyQuestion,
        "researcher_prices": ResearcherPrice,
        "factors": Factor,
        "search": Search,
        "parameters": Parameter,
        "rungs": Rung,
        "code": Code,
    }
    for key in keys:
        part = tables.get(str(key), part)
    return ", ".join(field.alias or name for name, field in part.model_fields.items())


def line_of(text: str, keys: tuple[str | int, ...]) -> int:
    """Return the line in a TOML file, from 1, of a key or of the nearest table around it."""
    best, depth = 1, 0
    table: list[str | int] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            names = [name.strip().strip("\"'") for name in header[2].split(".")]
            table = [*names]
            if header[1] == "[[":
                counts[header[2]] = counts.get(header[2], -1) + 1
                table.append(counts[header[2]])
            here = table
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            here = [*table, *(name.strip("\"'") for name in assignment[1].split("."))]
        else:
            continue
        if len(here) > depth and tuple(here) == keys[: len(here)]:
            best, depth = number, len(here)
    return best
