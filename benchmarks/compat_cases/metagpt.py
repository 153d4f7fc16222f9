"""Cases of MetaGPT with its recipe: actions parse answers, there are no tools and no formats."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "contrib" / "recipes" / "metagpt"))

# `program` is imported before MetaGPT, because it writes MetaGPT's configuration.
import program
import training
from metagpt.logs import set_llm_stream_logfunc

from compat_cases import contract

training.name_roles()
_heard: ContextVar[list[str]] = ContextVar("heard")


def _hear(piece: str) -> None:
    """Collect streamed pieces by context, because all episodes share one listener."""
    if (pieces := _heard.get(None)) is not None:
        pieces.append(piece)


set_llm_stream_logfunc(_hear)


class Look(program.Action):
    """Open a door, and report the result."""

    name: str = "Look"

    async def run(self, history: list[program.Message]) -> str:
        """Return the model's last answer."""
        task = history[-1].content
        said = await self._aask(f"{task}\nName the door to open: left, middle or right.")
        (door,) = (door for door in contract.DOORS if door in said)
        return await self._aask(f"{task}\n{contract.open_door(door)}\nSay what you found.")


class Worker(program.Planner):
    """Look behind a door."""

    name: str = contract.AGENT
    does: type[program.Action] = Look


async def two_turns(task: str) -> str:
    return (await Worker(context=program.Context()).run(task)).content


async def streaming(task: str) -> str:
    """Collect the pieces of the answers, which MetaGPT always streams."""
    pieces: list[str] = []
    _heard.set(pieces)
    text = await two_turns(task)
    assert len(pieces) > 1
    assert text in "".join(pieces)
    return text


rate_limited = two_turns
server_error = two_turns
parallel_calls = None
structured_output = None
structured_with_tools = None
bad_arguments = None
