"""A server with a scripted model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

REPLIES = (
    ScriptedReply(prompt="word0", says=("word0<|im_end|>", "no<|im_end|>")),
    ScriptedReply(prompt="", says=("hello<|im_end|>", "well, word1<|im_end|>")),
)


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedSwarm]:
    directory = tmp_path_factory.mktemp("swarm")
    with ScriptedSwarm(directory, REPLIES, batch={"tasks": 4, "episodes_per_task": 2}) as server:
        yield server
