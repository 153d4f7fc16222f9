"""The engine that fails as it is told to, and SDKs that try again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI

from agentjet.client import AsyncSwarmClient
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm

pytestmark = pytest.mark.processes

STATUS: dict[Literal["busy", "engine", "bug"], int] = {"busy": 429, "engine": 503, "bug": 500}


@pytest.mark.parametrize("error", STATUS)
async def test_a_call_fails_once_with_its_status_and_is_recorded_once(
    tmp_path: Path, error: Literal["busy", "engine", "bug"]
) -> None:
    replies = [ScriptedReply(prompt="", says=("Here.<|im_end|>",), error=error)]
    asked: Any = {"model": "any", "messages": [{"role": "user", "content": "Where?"}]}
    with ScriptedSwarm(tmp_path, replies) as swarm:
        async with AsyncSwarmClient(swarm.url, swarm.token) as client:
            async with client.episode("a") as episode:
                llm = AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key)
                async with llm:
                    with pytest.raises(openai.APIStatusError) as failed:
                        await llm.with_options(max_retries=0).chat.completions.create(**asked)
                    answer = await llm.chat.completions.create(**asked)
                episode.reward = 1.0
        assert failed.value.status_code == STATUS[error]
        assert answer.choices[0].message.content == "Here."
        assert len(swarm.calls(episode.episode_id)) == 1
