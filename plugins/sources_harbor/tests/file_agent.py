"""A small agent in the process of the trial: it writes the model's answer into a file."""

from __future__ import annotations

import shlex
from typing import Any, override

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from openai import AsyncOpenAI


class FileAgent(BaseAgent):
    """Asks once. With `commands` it runs the answer instead of writing it."""

    def __init__(self, *args: Any, commands: bool = False, fault: str = "", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._commands = commands
        self._fault = fault

    @staticmethod
    @override
    def name() -> str:
        return "file-agent"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        await environment.exec("test -d /app")

    @override
    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        variables = self.extra_env
        llm = AsyncOpenAI(
            base_url=variables["OPENAI_BASE_URL"],
            api_key=variables["OPENAI_API_KEY"],
            max_retries=0,
        )
        async with llm:
            reply = await llm.chat.completions.create(
                model="m", messages=[{"role": "user", "content": instruction}], max_tokens=64
            )
        answer = (reply.choices[0].message.content or "").strip()
        if self._commands:
            await environment.exec(answer)
            return
        await environment.exec(f"echo {shlex.quote(answer)} > /app/answer.txt")
        if self._fault == "bug":
            raise KeyError("a fault of the agent")
        if self._fault == "box":
            await environment.exec("kill -9 $PPID; sleep 5")
        if self._fault == "time":
            await environment.exec("sleep 600")
        if self._fault == "key":
            await environment.exec("env > /app/environ.txt")
