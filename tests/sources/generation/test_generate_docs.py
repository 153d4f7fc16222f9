"""`docs/generate.md` is true."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from ajet_cli.commands.sources.generate import generate as command
from ajet_sources.generation.documents import SUFFIXES
from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.sources.conftest import ajet
from tests.sources.generation.conftest import rows, written

TEXT = (Path(__file__).parents[3] / "docs" / "generate.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
(COMMANDS,) = (block.replace("\\\n", " ").splitlines() for kind, block in BLOCKS if not kind)
(ROW,) = (json.loads(block) for kind, block in BLOCKS if kind == "json")


@pytest.mark.processes
@pytest.mark.usefixtures("here")
def test_the_commands_work_and_write_such_rows(swarm: ScriptedSwarm) -> None:
    attempts = 0

    def answer(call: EndpointCall) -> str:
        nonlocal attempts
        if call.model == "large":
            return written(("What is 1 + 1 = ?", "2"))
        attempts += 1
        return "2" if attempts % 4 else "7"

    with PlainEndpoint(answer) as endpoint:
        for text in COMMANDS:
            words = shlex.split(text.replace("http://localhost:8000/v1", endpoint.base_url))
            result = ajet(
                *words[1:], AJET_URL=swarm.url, AJET_TOKEN=swarm.token, OPENAI_API_KEY="k"
            )
            assert result.exit_code == 0, result.output
    (row,) = rows()
    assert (row.keys(), row["provenance"].keys()) == (ROW.keys(), ROW["provenance"].keys())
    assert (row["solve_rate"], row["difficulty"]) == (ROW["solve_rate"], ROW["difficulty"])


def test_the_options_exist_with_these_defaults() -> None:
    options = {name: option for option in command.params for name in option.opts}
    named = set(re.findall(r"`(--[a-z-]+)", TEXT))
    options |= {name: option for option in command.params for name in option.secondary_opts}
    # Of `ajet train`.
    assert named - options.keys() == {"--curriculum"}
    stated = {
        "--shots": 4,
        "--chunk": 6000,
        "--tasks": 4,
        "--near": 0.8,
        "--attempts": 8,
        "--concurrency": 8,
        "--retries": 3,
    }
    assert {name: options[name].default for name in stated} == stated
    for name, default in stated.items():
        assert re.search(rf"`{name}[^`]*`[^.|]*?\({default}", TEXT), name


def test_the_page_names_what_is_read() -> None:
    assert all(f"`{suffix}`" in TEXT for suffix in SUFFIXES)
