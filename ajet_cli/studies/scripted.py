"""What the researcher of the suite ``drivers`` does in each way: its texts and its calls."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from ajet_core.errors import ConfigError
from ajet_research.suites.researching import GOOD_PROSE

TOPIC, OUTPUT, STUDY = "topic.md", "topic.toml", "topic.study"
QUESTION = "Is method b worth its cost?\n"
_SEEDS = "{ seeds = 2, alpha = 0.5 }"
PROPOSAL = f"""\
[base]
arena = "synthetic"
set = {{ world = "clear", steps = 2 }}

[factors.method]
path = "method"
levels = ["a", "b"]

[outcome]
metric = "score"
smallest = 0.2

[inference]
alpha = 0.5
looks = [{_SEEDS}]

[[compare]]
id = "b-vs-a"
arm = {{ method = "b" }}
against = {{ method = "a" }}

[[decide]]
otherwise = true
conclude = "See the verdict."

[budget]
trials = 5
"""
HOPELESS = PROPOSAL.replace(_SEEDS, "{ seeds = 1, alpha = 0.5 }")
"""Its look can never show anything, so that it is refused."""
LIE = "It is better by 2."
HOPELESS_ACCEPTED = "a study that can show nothing was accepted"
LIE_ACCEPTED = "prose with a number was accepted"
_URL = "http://127.0.0.1:9"
"""No server is there: the tools of studies need none."""

ToolCall = tuple[str, dict[str, Any]]
"""A tool of ``ajet mcp``, and its arguments."""


def propose(study: str) -> ToolCall:
    """Return the call that proposes a study of the topic."""
    return "research_propose", {"topic": TOPIC, "output": OUTPUT, "study": study}


def start() -> ToolCall:
    """Return the call that starts the study."""
    return "research_start", {"study": OUTPUT}


def wait() -> ToolCall:
    """Return the call that waits for news of the study."""
    return "research_wait", {"directory": STUDY}


def interpret(prose: str) -> ToolCall:
    """Return the call that writes about the report."""
    return "research_interpret", {"directory": STUDY, "prose": prose}


def verify() -> ToolCall:
    """Return the call that verifies the study."""
    return "research_verify", {"directory": STUDY}


def tool_calls() -> Generator[ToolCall, dict[str, Any], list[str]]:
    """Yield the calls of the researcher, each for the data of its answer.

    :return: what went wrong.
    :raises ConfigError: the study is not led, or is in another directory.
    """
    problems: list[str] = []
    if (yield propose(HOPELESS))["accepted"]:
        problems.append(HOPELESS_ACCEPTED)
    if refused := (yield propose(PROPOSAL))["problems"]:
        return [*problems, *refused]
    if (where := (yield start())["directory"]) != STUDY:
        raise ConfigError(f"the study is in {where}, and not in {STUDY}")
    phase = ""
    while phase != "finished":
        status = (yield wait())["status"]
        phase = status["phase"]
        if phase != "finished" and not status["leader"]:
            raise ConfigError(f"the study is {phase}, and its leader has ended")
    if (yield interpret(LIE))["accepted"]:
        problems.append(LIE_ACCEPTED)
    problems += (yield interpret(GOOD_PROSE))["problems"]
    return [*problems, *(yield verify())["problems"]]


def tools_environ(token: str) -> dict[str, str]:
    """Return the environment of `ajet mcp`: as small as that which assistants pass."""
    passed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**passed, "AJET_URL": _URL, "AJET_TOKEN": token}
