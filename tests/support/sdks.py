"""An open episode that the official SDKs ask, and what its model says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI

from ajet_core.timeline import Call
from ajet_testing.servers import Running

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from google.genai import Client


SPOKEN = "I looked around."
CALLED = '<tool_call>\n{"name": "move", "arguments": {"direction": "up", "steps": 2}}\n</tool_call>'
ENDED = "<|im_end|>"
SCHEMA = {
    "type": "object",
    "properties": {"direction": {"type": "string"}, "steps": {"type": "integer"}},
}


@dataclass
class Agent:
    """An open episode of a server, and clients with its key."""

    server: Running
    grant: dict[str, Any]

    @property
    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.grant["base_url"], api_key=self.grant["api_key"])

    @property
    def anthropic(self) -> AsyncAnthropic:
        # Not where OpenAI's SDK is tested in an older version.
        from anthropic import AsyncAnthropic

        base = self.grant["base_url"].removesuffix("/v1")
        return AsyncAnthropic(base_url=base, api_key=self.grant["api_key"])

    @property
    def google(self) -> Client:
        from google.genai import Client

        base = self.grant["base_url"].removesuffix("/v1")
        return Client(api_key=self.grant["api_key"], http_options={"base_url": base})

    async def calls(self) -> list[Call]:
        """What is recorded."""
        episode_id = self.grant["episode_id"]
        found = await self.server.service.store.calls([episode_id])
        return sorted(found[episode_id], key=lambda call: call.index)
