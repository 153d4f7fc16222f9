"""The engine that refuses what the grammar of a request forbids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from agentjet.client import AsyncSwarmClient
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import tool_call

pytestmark = pytest.mark.torch

SCHEMA = {
    "type": "object",
    "properties": {"door": {"enum": ["left", "right"]}},
    "required": ["door"],
}
FORM: Any = {"type": "json_schema", "json_schema": {"name": "door", "schema": SCHEMA}}
TOOL: Any = {"type": "function", "function": {"name": "open_door", "parameters": SCHEMA}}
REPLIES = [
    ScriptedReply(prompt="Call.", says=(tool_call("open_door", '{"door": "left"}'),)),
    ScriptedReply(prompt="JSON.", says=('{"door": "left"}<|im_end|>',)),
    ScriptedReply(prompt="Wrong.", says=('{"door": "middle"}<|im_end|>',)),
    ScriptedReply(prompt="Text.", says=("It is the left one.<|im_end|>",)),
]


async def test_a_script_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with ScriptedSwarm(tmp_path, REPLIES, checks_grammar=True) as swarm:
        async with (
            AsyncSwarmClient(swarm.url, swarm.token) as client,
            client.episode("a") as episode,
            AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key) as llm,
        ):

            async def says(word: str, **options: Any) -> str:
                messages: Any = [{"role": "user", "content": word}]
                answer = await llm.chat.completions.create(
                    model="any", messages=messages, **options
                )
                return str(answer.choices[0].finish_reason)

            assert await says("Text.") == "stop"
            assert await says("JSON.", response_format=FORM) == "stop"
            assert await says("Call.", tools=[TOOL], tool_choice="required") == "tool_calls"
            for word in ("Call.", "JSON."):
                await says(word, tools=[TOOL], response_format=FORM)
            with pytest.raises(openai.BadRequestError, match="the grammar forbids"):
                await says("Wrong.", response_format=FORM)
            for options in ({"response_format": FORM}, {"tool_choice": "required"}):
                with pytest.raises(openai.BadRequestError, match="the grammar forbids"):
                    await says("Text.", tools=[TOOL], **options)
            episode.reward = 1.0
