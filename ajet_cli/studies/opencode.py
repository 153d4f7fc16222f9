"""The driver ``opencode`` of the suite ``drivers``: a real assistant whose model is scripted.

It starts ``ajet mcp`` over stdio, by what ``ajet assist install`` writes into its configuration.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ajet_cli.assist.hosts import NAME
from ajet_cli.studies.scripted import (
    HOPELESS,
    LIE,
    PROPOSAL,
    ToolCall,
    interpret,
    propose,
    start,
    tool_calls,
    tools_environ,
    verify,
    wait,
)
from ajet_core.errors import ConfigError
from ajet_research.suites.researching import GOOD_PROSE

if TYPE_CHECKING:
    from ajet_testing.scripted_engine import ScriptedReply

PROGRAM = "opencode"
_PROMPT = "Study the topic in topic.md, and write about the report."
_CONTEXT = 1_000_000
_END = "<|im_end|>"
_ANSWER = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_OTHER = "(?:(?!<tool_response>).)*"
"""What is not the beginning of another answer of a tool."""
_SHOWN = 300


def why_absent() -> str:
    """Return why opencode cannot be driven here, "" if it can."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not on PATH"
    if any(importlib.util.find_spec(name) is None for name in ("pytest", "tokenizers", "uvicorn")):
        return "its scripted model needs the package agentjet[testing]"
    return ""


def drive_opencode(project: Path, seconds: float) -> list[str]:
    """Let opencode do the study of a project's topic, and return what went wrong.

    :param seconds: after which it is killed.
    :raises ConfigError: opencode or `ajet assist install` fails, or the study is not led.
    """
    from agentjet.client import SwarmClient
    from ajet_testing.scripted_swarm import ScriptedSwarm

    install = [sys.executable, "-P", "-m", "ajet_cli.main", "assist", "install", "--for", PROGRAM]
    _end_well(install, project, tools_environ("none"), seconds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder) / "home"
        with (
            ScriptedSwarm(Path(folder) / "model", replies(), max_context=_CONTEXT) as model,
            SwarmClient(model.url, model.token) as client,
        ):
            episode = client.begin_episode("drive a study")
            _write_profile(home, episode.base_url, episode.api_key)
            environ = {
                **tools_environ("none"),
                "HOME": str(home),
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
            }
            _end_well([PROGRAM, "run", "-m", "ajet/default", _PROMPT], project, environ, seconds)
            texts = [model.text(call) for call in model.calls(episode.episode_id)]
    # Titles are requested outside the conversation, whose last prompt has all answers.
    return judged(_ANSWER.findall(max(texts, key=len, default="")))


def replies() -> list[ScriptedReply]:
    """Return the answers of the model: the calls of `tool_calls`, by what tools have answered."""
    from ajet_testing.scripted_engine import ScriptedReply
    from ajet_testing.suites.agent_suite import tool_call

    def after(answers: int) -> str:
        return f"{_OTHER}<tool_response>" * answers

    def calls(one: ToolCall) -> str:
        name, arguments = one
        return tool_call(f"{NAME}_{name}", json.dumps(arguments))

    # A study is started by the third call, and waited for by those after it.
    started = rf'<tools>{after(3)}{_OTHER}"directory":{_OTHER}$'
    waited = f"<tools>{after(3)}.*<tool_response>{_OTHER}"
    led = rf'{waited}"leader":\s*"[^"]{_OTHER}$'
    finished = rf'{waited}"phase":\s*"finished"'
    # The first that matches counts, so that what comes later in the conversation is first.
    says = [
        (finished + after(3), f"The study is done.{_END}"),
        (finished + after(2), calls(verify())),
        (finished + after(1), calls(interpret(GOOD_PROSE))),
        (finished, calls(interpret(LIE))),
        (f"{started}|{led}", calls(wait())),
        (f"<tools>{after(3)}", f"The study cannot continue.{_END}"),
        (f"<tools>{after(2)}", calls(start())),
        (f"<tools>{after(1)}", calls(propose(PROPOSAL))),
        ("<tools>", calls(propose(HOPELESS))),
        ("", f"A title{_END}"),
    ]
    return [ScriptedReply(prompt=prompt, says=(text,)) for prompt, text in says]


def judged(answers: Sequence[str]) -> list[str]:
    """Return what went wrong, by what tools answered to the calls of `tool_calls`.

    :param answers: JSON, or the text of an error.
    :raises ConfigError: the study is not led, or is in another directory.
    """
    researcher = tool_calls()
    tool, _ = next(researcher)
    for answer in answers:
        wrong = [f"{tool}: {answer[:_SHOWN]}"]
        try:
            data = json.loads(answer)["data"]
        except (ValueError, KeyError, TypeError):
            return wrong
        try:
            tool, _ = researcher.send(data)
        except StopIteration as done:
            problems: list[str] = done.value
            return problems
        except (KeyError, TypeError):
            # It is the answer of another tool.
            return wrong
    return [f"the model ended where {tool} is due"]


def _write_profile(home: Path, base_url: str, api_key: str) -> None:
    """Write the user's configuration of opencode: a provider with one model."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base_url, "apiKey": api_key},
        "models": {"default": {}},
    }
    path = home / ".config" / "opencode" / "opencode.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"provider": {"ajet": provider}}), encoding="utf-8")


def _end_well(
    command: Sequence[str], project: Path, environ: dict[str, str], seconds: float
) -> None:
    """Run a program to its end.

    :raises ConfigError: it fails, or takes longer; then it is killed, with what it has started.
    """
    # A pipe would stay open as long as anything that the program has started.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(  # noqa: S603 - this program, or opencode
            command,
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"{command[0]} has not ended within {seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status:
            log.seek(0)
            text = log.read().decode(errors="replace").strip()
            raise ConfigError(f"{command[0]} ended with {status}: {text[-_SHOWN:]}")
