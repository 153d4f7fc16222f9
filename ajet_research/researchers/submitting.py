"""Answers that a researcher brings without a request, such as a coding assistant."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError
from ajet_research.researchers.asking import RefusedError
from ajet_research.researchers.checking import StudyCheck, check_apart
from ajet_research.researchers.interface import (
    DeclinedError,
    Request,
    Researcher,
    ResearcherAnswer,
    checked_name,
)
from ajet_research.researchers.interpreting import interpret_study, prose_problems
from ajet_research.researchers.proposing import accepted_study, propose_study, read_topic


@dataclass(frozen=True, slots=True)
class Submission:
    """What became of an answer.

    :param problems: why it is refused, and nothing has changed; empty if it is accepted.
    :param read_as: the text whose lines the problems name; "" if they name none.
    """

    problems: list[str]
    read_as: str = ""


class _Bringer(Researcher):
    """Has one answer."""

    def __init__(self, name: str, answer: Mapping[str, Any]) -> None:
        self.name = checked_name(name)
        self._answer = json.dumps(answer)

    def worst_case(self, request: Request) -> tuple[int, float]:  # noqa: ARG002 - as all have it
        """Return that it takes no tokens of the study."""
        return 0, 0.0

    def answer(self, request: Request) -> ResearcherAnswer:  # noqa: ARG002 - it has no other
        """Return the answer."""
        return ResearcherAnswer(self._answer)


def submit_proposal(
    topic: Path,
    output: Path,
    study: str,
    files: Mapping[str, str],
    *,
    name: str,
    check: StudyCheck = check_apart,
) -> Submission:
    """Check the study of a topic, and write its file if it is accepted.

    :param study: TOML or JSON, without what the topic sets.
    :param files: by path, the code of its arms.
    :param name: of the researcher.
    :raises ConfigError: the topic is invalid, or there is such a file.
    """
    try:
        content = json.loads(study) if study.lstrip().startswith("{") else tomllib.loads(study)
    except (ValueError, RecursionError) as error:
        return Submission([f"the study cannot be decoded: {error}"])
    if files:
        content["files"] = dict(files)
    if output.exists():
        raise ConfigError(f"{output} exists. Name another file, or remove it.")
    try:
        bringer = _Bringer(name, {"study": content})
    except TypeError as error:
        return Submission([f"the study has a value that no study can have: {error}"])
    where = output.resolve().parent
    try:
        accepted_study(bringer.answer({}).text, read_topic(topic), where, check, name)
    except RefusedError as refused:
        return Submission(refused.problems, refused.read_as)
    except DeclinedError as declined:
        return Submission([f"it has the key 'declined': {declined}"])
    # It was checked just before.
    propose_study(topic, output, bringer, tries=1, check=lambda *_: [])
    return Submission([])


def submit_prose(directory: Path, prose: str, *, name: str) -> Submission:
    """Check words about a study, and print them in its report if they are accepted.

    :raises ConfigError: there is no study with a report.
    :raises BusyError: a leader has the directory.
    """
    if problems := prose_problems(directory, prose):
        return Submission(problems)
    interpret_study(directory, _Bringer(name, {"prose": prose}), tries=1)
    return Submission([])
