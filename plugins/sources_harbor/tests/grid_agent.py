"""An agent in the process of the trial, with one tool: it runs `move.sh` in the environment."""

from __future__ import annotations

import shlex
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from openai import AsyncOpenAI

from ajet_worlds.gridwalk import MAX_MOVES, SYSTEM_PROMPT, TOOLS, read_direction


class GridAgent(BaseAgent):
    """Walks until the goal is reached, or an answer has no valid move."""

    @staticmethod
    @override
    def name() -> str:
        return "grid-agent"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        """Need nothing in the environment."""

    @override
    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        messages: list[Any] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": instruction.strip()},
        ]
        llm = AsyncOpenAI(
            base_url=self.extra_env["OPENAI_BASE_URL"],
            api_key=self.extra_env["OPENAI_API_KEY"],
            timeout=None,
        )
        said, moves = "", 0
        async with llm:
            while said not in {"goal reached", "invalid move"} and moves < MAX_MOVES:
                tools: list[Any] = TOOLS
                reply = await llm.chat.completions.create(
                    model="tiny", messages=messages, tools=tools, max_tokens=32
                )
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    said = await self._move(environment, "none")
                for call in message.tool_calls or []:
                    function: Any = getattr(call, "function")  # noqa: B009 - only of such calls
                    direction = read_direction(function.name, function.arguments)
                    said = await self._move(environment, direction or "none")
                    moves += 1
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": said})

    async def _move(self, environment: BaseEnvironment, direction: str) -> str:
        """Return what the environment says; a move that is none ends the walk."""
        ran = await environment.exec(f"sh /app/move.sh {shlex.quote(direction)}")
        if ran.return_code:
            raise RuntimeError(f"move.sh failed: {ran.stderr}")
        return "invalid move" if direction == "none" else (ran.stdout or "").strip()
