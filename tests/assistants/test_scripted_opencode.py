"""opencode as a driver of the suite `drivers`: its script, and what is concluded from answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")
pytest.importorskip("scipy")

from ajet_cli.studies import opencode
from ajet_cli.studies.opencode import judged, replies, why_absent
from ajet_cli.studies.scripted import HOPELESS_ACCEPTED, LIE_ACCEPTED, STUDY, tool_calls
from ajet_core.errors import ConfigError
from ajet_testing.suites.agent_suite import tool_call

REFUSED = {"accepted": False, "problems": ["it can show nothing"]}
ACCEPTED = {"accepted": True, "problems": []}
STARTED = {"directory": STUDY, "status": {"phase": "running", "leader": "41"}}
RUNNING = {"news": False, "status": {"phase": "running", "leader": "41"}}
FINISHED = {"news": True, "status": {"phase": "finished", "leader": ""}}
PAUSED = {"news": True, "status": {"phase": "paused", "leader": ""}}
VERIFIED = {"rows": 20, "problems": []}
STUDIED: list[dict[str, Any]] = [
    *(REFUSED, ACCEPTED, STARTED, RUNNING, RUNNING, FINISHED),
    *(REFUSED, ACCEPTED, VERIFIED),
]
BEGIN = """\
<|im_start|>system
# Tools
<tools>
{"name": "agentjet_research_wait", "description": "`phase` is finished, or no `leader`"}
</tools><|im_end|>
<|im_start|>user
Study the topic.<|im_end|>
<|im_start|>assistant
"""


def texts(answers: Sequence[dict[str, Any]]) -> list[str]:
    """The answers as tools give them."""
    return [json.dumps({"data": data, "cursor": ""}) for data in answers]


def reply_to(prompt: str) -> str:
    """What the model says to a prompt: the first reply that matches, as in the scripted engine."""
    return next(
        one.says[0] for one in replies() if re.search(one.prompt, prompt, re.DOTALL) is not None
    )


def said(answers: Sequence[str]) -> list[str]:
    """What the model says, in turn, if tools answer this."""
    prompt, spoken = BEGIN, list[str]()
    for answer in [*answers, ""]:
        spoken.append(reply_to(prompt))
        shown = f"<tool_response>\n{answer}\n</tool_response>"
        prompt += f"{spoken[-1]}\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"
    return spoken


def test_the_model_makes_the_calls_of_the_researcher() -> None:
    researcher = tool_calls()
    due = [next(researcher), *(researcher.send(data) for data in STUDIED[:-1])]
    calls = [tool_call(f"agentjet_{name}", json.dumps(given)) for name, given in due]
    assert said(texts(STUDIED)) == [*calls, "The study is done.<|im_end|>"]


def test_the_model_gives_a_conversation_without_tools_a_title() -> None:
    prompt = "<|im_start|>user\nGenerate a title for: Study the topic.<|im_end|>\n"
    assert reply_to(prompt) == "A title<|im_end|>"


@pytest.mark.parametrize(
    "answers",
    [
        [*texts([REFUSED, ACCEPTED]), "The leader has not begun"],
        texts([REFUSED, ACCEPTED, STARTED, RUNNING, PAUSED]),
        [*texts([REFUSED, ACCEPTED, STARTED]), "There is no study"],
    ],
    ids=["not started", "not led", "an error"],
)
def test_the_model_ends_where_the_study_cannot_continue(answers: list[str]) -> None:
    assert said(answers)[-1] == "The study cannot continue.<|im_end|>"


def test_a_whole_study_has_no_problem() -> None:
    assert judged(texts(STUDIED)) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({0: ACCEPTED}, HOPELESS_ACCEPTED),
        ({6: ACCEPTED}, LIE_ACCEPTED),
        ({7: REFUSED}, "it can show nothing"),
        ({8: {"problems": ["row 3 differs"]}}, "row 3 differs"),
    ],
)
def test_each_wrong_answer_is_a_problem(changed: dict[int, dict[str, Any]], problem: str) -> None:
    answers = [changed.get(i, data) for i, data in enumerate(STUDIED)]
    assert judged(texts(answers)) == [problem]


def test_an_error_of_a_tool_is_a_problem() -> None:
    answers = [*texts(STUDIED[:2]), "topic.toml does not exist"]
    assert judged(answers) == ["research_start: topic.toml does not exist"]


def test_the_answer_of_another_tool_is_a_problem() -> None:
    (problem,) = judged(texts([*STUDIED[:2], VERIFIED]))
    assert problem.startswith('research_start: {"data": {"rows": 20')


def test_an_early_end_is_a_problem() -> None:
    assert judged(texts(STUDIED[:6])) == ["the model ended where research_interpret is due"]
    assert judged([]) == ["the model ended where research_propose is due"]


def test_a_study_that_is_not_led_is_an_error() -> None:
    with pytest.raises(ConfigError, match="the study is paused, and its leader has ended"):
        judged(texts([REFUSED, ACCEPTED, STARTED, PAUSED]))


def test_a_study_elsewhere_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"the study is in other\.study"):
        judged(texts([REFUSED, ACCEPTED, STARTED | {"directory": "other.study"}]))


def test_it_is_absent_where_it_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_absent() == "opencode is not on PATH"
    program = tmp_path / "opencode"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert why_absent() == ""


@pytest.mark.processes
def test_an_assistant_that_fails_or_does_not_end_is_an_error(tmp_path: Path) -> None:
    def run(code: str, seconds: float) -> None:
        opencode._end_well([sys.executable, "-c", code], tmp_path, {}, seconds)

    run("print('well')", 60)
    with pytest.raises(ConfigError, match="ended with 3: no model"):
        run("print('no model'); raise SystemExit(3)", 60)
    with pytest.raises(ConfigError, match="has not ended within 0 s"):
        run("import signal; signal.pause()", 0)
