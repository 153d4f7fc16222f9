"""`docs/worlds.md` is true: its examples run, and it lists every world."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from ajet_core.interfaces import ComponentSettings
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_worlds import world_specs
from ajet_worlds.rehearsal import rehearse

TEXT = (Path(__file__).parents[2] / "docs" / "worlds.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def test_every_world_is_listed() -> None:
    listed = re.findall(r"^\| `([\w-]+)` \|", TEXT, re.MULTILINE)
    assert listed == [spec.name for spec in world_specs()]


@pytest.mark.processes
async def test_the_example_plays_a_world_on_a_server(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    scope: dict[str, Any] = {}
    exec(compile(EXAMPLES[0], "worlds.md", "exec"), scope)
    said = [ScriptedReply(prompt="", says=("I stay here.<|im_end|>",))]
    with ScriptedSwarm(tmp_path, said, batch={"tasks": 8, "episodes_per_task": 8}) as swarm:
        assert await scope["train"](swarm.url, swarm.token) == 0.0
        assert len(swarm.episodes()) == 8 * 8 + 64


def test_the_world_that_is_written_there_works() -> None:
    scope: dict[str, Any] = {}
    exec(compile(EXAMPLES[1], "worlds.md", "exec"), scope)
    (spec,) = scope["ajet_register_worlds"]()
    world = scope[spec.target.partition(":")[2]](ComponentSettings())
    played = rehearse(world, "t", world.expert, random.Random(0))
    assert played.outcome.success == 1.0
