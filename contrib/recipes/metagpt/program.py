"""A planner and a worker of MetaGPT, without any code for training."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

# MetaGPT reads its configuration on import, and fails without one.
if "METAGPT_PROJECT_ROOT" not in os.environ:
    os.environ["METAGPT_PROJECT_ROOT"] = tempfile.mkdtemp(prefix="metagpt-")
_config = Path(os.environ["METAGPT_PROJECT_ROOT"]) / "config" / "config2.yaml"
if not _config.exists():
    _config.parent.mkdir(parents=True, exist_ok=True)
    _config.write_text(
        "llm:\n"
        "  api_type: openai\n"
        "  model: gpt-5-mini\n"
        "  api_key: not used in training\n"
        "  base_url: http://127.0.0.1:9/v1\n"
    )

from metagpt.actions import Action, UserRequirement  # noqa: E402
from metagpt.context import Context  # noqa: E402
from metagpt.logs import define_log_level, set_llm_stream_logfunc  # noqa: E402
from metagpt.roles import Role  # noqa: E402
from metagpt.schema import Message  # noqa: E402

# Otherwise every role logs its actions to the terminal, and every model its answers.
define_log_level("ERROR")
set_llm_stream_logfunc(lambda _text: None)


def open_door(door: str) -> str:
    """What is behind one of the doors: left, middle or right."""
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


class Plan(Action):
    """Say what to do."""

    name: str = "Plan"

    async def run(self, history: list[Message]) -> str:
        """Return the model's sentence."""
        return str(await self._aask(history[-1].content))


class Open(Action):
    """Open the door that the model names."""

    name: str = "Open"

    async def run(self, history: list[Message]) -> str:
        """Return what is behind the door."""
        asked = f"{history[-1].content}\nName the door to open: left, middle or right."
        named = re.findall("left|middle|right", await self._aask(asked))
        return open_door(named[-1]) if named else "No door was opened."


class Planner(Role):
    """Do one action, and report its result."""

    name: str = "planner"
    profile: str = "Planner"
    goal: str = "Say in one sentence which door to take: left, middle or right."
    does: type[Action] = Plan

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)
        self.set_actions([self.does])
        self._watch([UserRequirement])

    async def _act(self) -> Message:
        text = await self.rc.todo.run(self.rc.history)
        message = Message(content=text, role=self.profile, cause_by=type(self.rc.todo))
        self.rc.memory.add(message)
        return message


class Worker(Planner):
    """Open doors."""

    name: str = "worker"
    profile: str = "Worker"
    goal: str = "Follow the plan."
    does: type[Action] = Open


async def play(task: str) -> list[str]:
    """Return the doors that were opened."""
    # Roles keep their memory and contexts keep the model, so each play creates its own.
    plan = await Planner(context=Context()).run(task)
    found = await Worker(context=Context()).run(f"{task}\nThe plan: {plan.content}")
    return re.findall(r"Behind the (\w+) door", found.content)
