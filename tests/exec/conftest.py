"""A server whose model knows one answer, and a sandbox."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_core.interfaces import Sandbox
from ajet_exec import load_sandbox
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from tests.exec.usable import no_bubblewrap

REPLIES = (
    ScriptedReply(prompt="breaks-", says=("42<|im_end|>",), error="engine"),
    ScriptedReply(prompt="", says=("42<|im_end|>",)),
)
ASK = """
import json, os, urllib.request
body = {"model": os.environ["AJET_MODEL"], "max_tokens": 8, "messages": MESSAGES}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
open("answer.txt", "w").write(text)
""".replace("MESSAGES", '[{"role": "user", "content": open(".ajet/prompt.txt").read()}]')
"""A program that asks the model once, and writes its answer into a file."""


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    if why := no_bubblewrap():
        pytest.skip(why)
    return load_sandbox("bubblewrap")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
    batch = {"tasks": 64, "episodes_per_task": 2}
    with ScriptedSwarm(tmp_path_factory.mktemp("swarm"), REPLIES, batch=batch) as swarm:
        yield swarm


@pytest.fixture
def base() -> Iterator[Path]:
    """Where working copies are made, to see that none is left."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "copies"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A directory with the program ``ask.py``."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files/ask.py").write_text(ASK)
    return tmp_path / "files"
