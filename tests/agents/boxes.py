"""The framework of the example in docs/agent-adapters.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.agents import plain


@dataclass
class Tracer:
    exporters: list[Callable[[str], None]] = field(default_factory=list)

    def export(self, span: str) -> None:
        for exporter in self.exporters:
            exporter(span)


tracer = Tracer()


class Agent(plain.Agent):
    """Remembers all that was said to it."""

    def clone(self, history: list[Any]) -> Agent:
        return replace(self, messages=history)

    async def run(self, text: str, max_turns: int = 10) -> str:
        tracer.export(f"{self.name}: {text}")
        self.messages.append({"role": "user", "content": text})
        for _ in range(max_turns):
            answer = await self.client.chat.completions.create(**self.request)
            if not self.take(answer.choices[0].message):
                break
        return str(self.messages[-1]["content"])
