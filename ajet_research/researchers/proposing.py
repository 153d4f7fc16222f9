"""``ajet research propose``: a topic becomes a study file that registration accepts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError as InvalidModelError

from ajet_core.errors import AjetError, ConfigError, StoreError, UnreadableFileError
from ajet_core.files import read_bytes, write_whole
from ajet_research.arenas import CODE, MOST_CODE, CodeFiles, arena_names, load_arena
from ajet_research.events import ResearcherAnswered, ResearcherAsked
from ajet_research.leader import MachineClock, StudyClock
from ajet_research.ledger import StudyLedger
from ajet_research.researchers.accounts import RequestAccount
from ajet_research.researchers.asking import RefusedError, ResearcherDialogue
from ajet_research.researchers.checking import SOURCE, StudyCheck, check_apart
from ajet_research.researchers.interface import Request, Researcher, read_answer
from ajet_research.researchers.writing import study_toml
from ajet_research.spending import ResearcherLimits, ResearcherSpending
from ajet_research.steering import held
from ajet_research.study import SCHEMA, Budget, Study, canonical, parse_study

PROPOSAL = "proposal.sqlite"
CEILINGS: dict[str, float] = {
    "trials": 100,
    "trial_seconds": 1800,
    "compute_hours": 12,
    "wall_hours": 24,
    "disk_mib": 1024,
    "attempts": 3,
}
"""The most that a proposed study may spend if its topic says nothing else."""
_OF_RESEARCHERS = ("researcher_tokens", "researcher_money", "researcher_prices")
_MOST_QUESTION = 2000
_MOST = {"compare": 20, "decide": 40, "factors": 8}
_MOST_FILES = 8
# No name that a tool would run by itself where a person calls it, such as those of tests.
_FILE = re.compile(r"arms/(?!conftest)[a-z][a-z0-9-]{0,39}\.py")
_INSTRUCTIONS = """\
You design a registered study. A program runs it: it trains or runs each arm with several seeds,
computes verdicts from paired seeds, and writes the report. You see no results, and nothing you say
is a result. Answer with {"study": STUDY}, where STUDY has the keys of `schema`, as in `example`; or
with {"declined": "reason"} if no arena can answer the question.

- Vary what the question asks about, and nothing else. `factors` name a setting of the arena.
- A question about the best of many values is a `search`; its `first_seed` is not a seed of
  `inference`. Comparisons then have the levels "chosen" and "baseline" of `search`.
- n seeds reach a p value of 2/2^n at best. Each look needs one that is at most its alpha divided by
  the number of comparisons. The alphas of all looks add up to at most `inference.alpha`.
- `smallest` is the smallest effect of interest, in the unit of the metric.
- The budget has to cover all trials: arms x seeds + repeats. Ask for no more than `budget_at_most`.
- Values in `fixed` are set; leave them out. Leave out `topic` and `schema` too.
- The decisions cover every case: end with "otherwise": true. Conclusions say what to do. They have
  no numbers, number words or words that compare, such as better, worse, equal or improves.
- Where an arena has a setting for programs, a level, or a choice of a search's parameter, is
  "code:arms/NAME.py", and `files` of STUDY has its text by path. Names have small letters, digits
  and hyphens.
- `problems` lists why your previous answer was refused, with lines of `previous`, which is your
  answer as a file. Remove all of them.
"""
_EXAMPLE: dict[str, Any] = {
    "base": {"arena": "synthetic", "set": {"world": "plateau"}},
    "factors": {"method": {"path": "method", "levels": ["a", "b"]}},
    "outcome": {"metric": "score", "smallest": 0.5},
    "inference": {"looks": [{"seeds": 8, "alpha": 0.0125}, {"seeds": 12, "alpha": 0.0375}]},
    "compare": [
        {"id": "b-vs-a", "arm": {"method": "b"}, "against": {"method": "a"}, "expect": "better"}
    ],
    "decide": [
        {"when": {"b-vs-a": "better"}, "conclude": "Use method b."},
        {"otherwise": True, "conclude": "Keep method a."},
    ],
    "budget": {"trials": 25, "trial_seconds": 30, "compute_hours": 1},
}


@dataclass(frozen=True, slots=True)
class TopicFile:
    """What a person asks, and what no researcher may change.

    :param text: of the file, below its head.
    :param fixed: parts of the study that its head sets.
    :param ceilings: the most that the study's budget may have.
    :param researchers: the budget's keys for researchers, which its head may set.
    :param researcher: its head's table of who writes the study, as options of `ajet research
        propose`; empty without one.
    """

    question: str
    text: str
    fixed: Mapping[str, Any]
    ceilings: Mapping[str, float]
    researchers: Mapping[str, Any]
    researcher: Mapping[str, Any] = field(default_factory=dict)

    @property
    def limits(self) -> ResearcherLimits:
        """What the researcher of the proposal may spend."""
        tokens, money = (self.researchers.get(name) for name in _OF_RESEARCHERS[:2])
        return ResearcherLimits(tokens, money)


def read_topic(path: Path) -> TopicFile:
    """Read a topic: Markdown, with a head of TOML between ``+++`` lines if it sets anything.

    :raises ConfigError: it cannot be read, or its head has something that a study cannot have.
    """
    try:
        text = read_bytes(path, limit=256 * 1024).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"There is no topic {path}.") from None
    except (UnreadableFileError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read the topic {path}: {error}") from error
    head, body = _head_and_body(text)
    try:
        fixed = tomllib.loads(head)
    except ValueError as error:
        raise ConfigError(f"The head of {path} cannot be decoded: {error}") from error
    researcher = fixed.pop("researcher", {})
    if not isinstance(researcher, dict):
        raise ConfigError(f"The head of {path}: 'researcher' is a table.")
    known = {one.alias or name: one for name, one in Study.model_fields.items()}
    for name, part in fixed.items():
        if name not in known or name in ("compare", "decide") or not isinstance(part, dict):
            tables = ", ".join(sorted({*known, "researcher"} - {"schema", "compare", "decide"}))
            raise ConfigError(f"The head of {path} has {name!r}; it may have the tables: {tables}.")
    budget = fixed.pop("budget", {})
    if unknown := budget.keys() - Budget.model_fields.keys():
        raise ConfigError(f"The head of {path} has an unknown budget: {', '.join(unknown)}.")
    question = fixed.pop("topic", {}).get("question") or body.strip()
    if not question or len(question) > _MOST_QUESTION:
        raise ConfigError(
            f"The topic {path} needs a question of at most {_MOST_QUESTION} characters: below its "
            "head, or in it as 'question' of the table 'topic'."
        )
    ceilings = {**CEILINGS, **{k: v for k, v in budget.items() if k not in _OF_RESEARCHERS}}
    try:
        Budget.model_validate({**ceilings, **budget})
    except InvalidModelError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"The head of {path}: budget.{where}: {first['msg']}") from error
    return TopicFile(
        question=question,
        text=body.strip(),
        fixed=fixed,
        ceilings=ceilings,
        researchers={name: budget[name] for name in _OF_RESEARCHERS if name in budget},
        researcher=researcher,
    )


def is_topic(path: Path) -> bool:
    """Whether a file is a topic without a study: Markdown whose head compares nothing."""
    if path.suffix != ".md" or not path.is_file():
        return False
    try:
        text = read_bytes(path, limit=256 * 1024).decode("utf-8")
        return "compare" not in tomllib.loads(_head_and_body(text)[0])
    except (UnreadableFileError, ValueError):
        # Reading it as a study names the problem.
        return False


def _head_and_body(text: str) -> tuple[str, str]:
    match = re.match(r"\+\+\+\n(.*?)^\+\+\+$(.*)", text, re.DOTALL | re.MULTILINE)
    return (match[1], match[2]) if match else ("", text)


@dataclass(frozen=True, slots=True)
class ProposedStudy:
    """A study file that registration accepts.

    :param requests: to the researcher, those of earlier calls included.
    """

    path: Path
    study: Study
    requests: int
    tokens: int
    money: float


def propose_study(
    source: Path,
    output: Path,
    researcher: Researcher,
    *,
    tries: int = 5,
    limits: ResearcherLimits | None = None,
    wait_seconds: float = 300.0,
    clock: StudyClock | None = None,
    check: StudyCheck = check_apart,
    on_problem: Callable[[str], object] | None = None,
) -> ProposedStudy:
    """Let a researcher write the study of a topic.

    Requests, answers and what they took are kept in the directory ``OUTPUT.proposal``, so that the
    same command continues with what is left of the limits.

    :param output: the study file to write; it must not exist.
    :param tries: answers that may be refused.
    :param limits: of all requests for this file; the topic's are applied as well.
    :raises ConfigError: the topic is invalid, or there is such a file.
    :raises ResearcherFailedError: no answer was accepted. The message lists the last problems.
    """
    topic = read_topic(source)
    if output.exists():
        raise ConfigError(f"{output} exists. Choose another file with --output, or remove it.")
    directory = output.with_name(f"{output.name}.proposal")
    request = proposal_request(topic)

    def accept(text: str) -> ReadProposal:
        return accepted_study(text, topic, output.resolve().parent, check, researcher.name)

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with held(directory), closing(StudyLedger(directory / PROPOSAL)) as ledger:
            spending = ResearcherSpending()
            for row in ledger.rows:
                if isinstance(row.event, ResearcherAsked | ResearcherAnswered):
                    spending.apply(row.event)
            account = RequestAccount(
                researcher=researcher.name,
                purpose="proposal",
                ledger=ledger,
                spending=spending,
                directory=directory,
                limits=tighter(limits, topic.limits),
                clock=clock or MachineClock(),
            )
            dialogue = ResearcherDialogue(researcher, account, tries, wait_seconds, on_problem)
            accepted = dialogue.accepted(request, accept)
            for name, text in accepted.files.items():
                (output.parent / name).parent.mkdir(exist_ok=True)
                write_whole(output.parent / name, text.encode(), mode=0o644)
            write_whole(output, accepted.toml.encode(), mode=0o644)
    except OSError as error:
        raise StoreError(f"Cannot write {output}: {error.strerror}") from error
    spent = spending
    return ProposedStudy(output, accepted.study, spent.requests, spent.tokens, spent.money)


def tighter(first: ResearcherLimits | None, second: ResearcherLimits) -> ResearcherLimits:
    """Return the smaller one of each limit."""
    if first is None:
        return second
    tokens = [one.tokens for one in (first, second) if one.tokens is not None]
    money = [one.money for one in (first, second) if one.money is not None]
    return ResearcherLimits(min(tokens, default=None), min(money, default=None))


def proposal_request(topic: TopicFile) -> Request:
    """Return what a researcher is asked."""
    fixed = topic.fixed.get("base", {}).get("arena")
    return {
        "task": "propose",
        "instructions": _INSTRUCTIONS,
        "question": topic.question,
        "topic": topic.text,
        "fixed": topic.fixed,
        "budget_at_most": topic.ceilings,
        "arenas": dict(_arenas([fixed] if isinstance(fixed, str) else arena_names())),
        "schema": Study.model_json_schema(),
        "example": _EXAMPLE,
    }


def _arenas(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in names:
        arena = load_arena(name)
        try:
            settings = arena.resolve({})
        except AjetError as error:
            settings = {"error": error.message}
        hidden = tuple(f"{one}." for one in arena.reserved)
        yield (
            name,
            {
                "summary": arena.summary,
                "metrics": {
                    metric: {
                        "direction": spec.direction,
                        "worst": spec.worst,
                        "summary": spec.summary,
                    }
                    for metric, spec in arena.metrics.items()
                },
                "settings": {
                    key: value
                    for key, value in settings.items()
                    if key not in arena.reserved and not key.startswith(hidden)
                },
            },
        )


@dataclass(frozen=True, slots=True)
class ReadProposal:
    """An accepted answer.

    :param toml: the text of the study file.
    :param files: by path, the code that the researcher wrote for its arms.
    """

    toml: str
    study: Study
    files: Mapping[str, str]


def accepted_study(
    answer: str, topic: TopicFile, directory: Path, check: StudyCheck, researcher: str = ""
) -> ReadProposal:
    """Return the study of an answer.

    :param directory: relative paths of the study start here.
    :raises RefusedError: it is not accepted.
    :raises DeclinedError: the researcher cannot propose one.
    """
    try:
        proposed = _without_nulls(read_answer(answer, "study"), 0)
        if not isinstance(proposed, dict):
            raise ValueError("'study' is not an object")
        files = proposed.pop("files", {})
        problems = [*_wrong_files(files, directory), *_completed(proposed, topic, researcher)]
        # In the order in which others are written.
        names = [field.alias or name for name, field in Study.model_fields.items()]
        ordered = dict.fromkeys(name for name in (*names, *proposed) if name in proposed)
        toml = study_toml({name: proposed[name] for name in ordered})
    except ValueError as error:
        raise RefusedError(str(error)) from None
    try:
        known = {**_fixed_files(topic.fixed, CodeFiles(directory)), **files} if not problems else {}
    except ConfigError as error:
        raise RefusedError(error.message) from None
    if problems := problems or check(toml, directory, known):
        raise RefusedError(*problems, read_as=toml)
    return ReadProposal(toml, parse_study(toml, SOURCE), files)


def _wrong_files(files: object, directory: Path) -> Iterator[str]:
    if not isinstance(files, dict) or not all(isinstance(one, str) for one in files.values()):
        yield "'files' is not an object of texts"
        return
    if len(files) > _MOST_FILES:
        yield f"the study has {len(files)} files; a proposal has at most {_MOST_FILES}"
    for name, text in files.items():
        if not _FILE.fullmatch(name):
            yield f"the file {name[:80]!r} needs a name such as arms/first.py"
        elif len(text.encode(errors="replace")) > MOST_CODE:
            yield f"the file {name} has more than {MOST_CODE} bytes"
        elif _holds_other(directory / name, text):
            yield f"the file {name} exists, with another content; use another name"


def _holds_other(path: Path, text: str) -> bool:
    try:
        return read_bytes(path, limit=MOST_CODE) != text.encode(errors="replace")
    except FileNotFoundError:
        return False
    except UnreadableFileError:
        return True


def _fixed_files(value: object, files: CodeFiles) -> Mapping[str, str]:
    """Return the code that the topic itself names: a researcher cannot choose another file.

    :raises ConfigError: it cannot be read.
    """
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _fixed_files(one, files)
    elif isinstance(value, str) and value.startswith(CODE):
        files.text(value.removeprefix(CODE))
    return files.texts


def _without_nulls(value: Any, depth: int) -> Any:
    if depth > 8:
        raise ValueError("the study is nested too deeply")
    if isinstance(value, dict):
        return {k: _without_nulls(v, depth + 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(one, depth + 1) for one in value]
    return value


def _completed(proposed: dict[str, Any], topic: TopicFile, researcher: str) -> Iterator[str]:
    """Complete a proposal with what the topic sets, and yield what it must not have."""
    for name, most in _MOST.items():
        if isinstance(values := proposed.get(name), list | dict) and len(values) > most:
            yield f"the study has {len(values)} {name}; a proposal has at most {most}"
    if "code" in proposed and "code" not in topic.fixed:
        yield "'code' is not a researcher's to set; only the topic's head may have it"
    budget = proposed.setdefault("budget", {})
    if not isinstance(budget, dict):
        yield "'budget' is not an object"
        return
    for name in _OF_RESEARCHERS:
        if name in budget:
            yield f"budget.{name} is not a researcher's to set"
    for name, ceiling in topic.ceilings.items():
        value = budget.setdefault(name, ceiling)
        if isinstance(value, int | float) and value > ceiling:
            yield f"budget.{name} is {_short(value)}, and this topic allows at most {ceiling:g}"
    budget.update(topic.researchers)
    subject = {"question": topic.question, "proposed_by": researcher}
    fixed = {**topic.fixed, "topic": subject}
    yield from _fixed(proposed, fixed, "")
    proposed["schema"] = SCHEMA
    yield from _reserved(proposed, topic)


def _fixed(part: dict[str, Any], fixed: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in fixed.items():
        section = part.setdefault(name, {} if isinstance(value, dict) else value)
        if isinstance(value, dict) and isinstance(section, dict):
            yield from _fixed(section, value, f"{above}{name}.")
        elif section != value:
            yield f"{above}{name} is {_short(section)}, and this topic sets {_short(value)}"


def _reserved(proposed: Mapping[str, Any], topic: TopicFile) -> Iterator[str]:
    """Yield settings that only a person may set."""
    base, factors = proposed.get("base"), proposed.get("factors")
    if not isinstance(base, dict) or not isinstance(base.get("arena"), str):
        return
    try:
        reserved = load_arena(base["arena"]).reserved
    except AjetError:
        # Registration says which arenas there are.
        return
    own = base.get("set")
    paths = set(own) if isinstance(own, dict) else set()
    if isinstance(factors, dict):
        paths |= {str(one.get("path")) for one in factors.values() if isinstance(one, dict)}
    paths |= _searched_settings(proposed.get("search"))
    allowed = topic.fixed.get("base", {}).get("set", {}).keys()
    allowed |= _searched_settings(topic.fixed.get("search"))
    for path in sorted(paths - allowed):
        if path.split(".")[0] in reserved:
            yield f"the setting {path[:80]!r} is not a researcher's to set"


def _searched_settings(search: object) -> set[str]:
    """Return the settings that a search varies or sets, whatever else is wrong with it."""
    if not isinstance(search, dict):
        return set()
    parameters, rungs = search.get("parameters"), search.get("rungs")
    varied = parameters.values() if isinstance(parameters, dict) else ()
    rounds = rungs if isinstance(rungs, list) else []
    sets = [one.get("set") for one in (search, *rounds) if isinstance(one, dict)]
    named = {str(path) for group in sets if isinstance(group, dict) for path in group}
    return named | {str(one.get("path")) for one in varied if isinstance(one, dict)}


def _short(value: object) -> str:
    try:
        return canonical(value)[:80]
    except (TypeError, ValueError):
        return "another value"
