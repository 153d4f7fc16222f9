"""GridWalk as an environment of verifiers 0.1. Nothing here is agentjet's but the walk itself."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

from ajet_worlds.gridwalk import TOOLS, GridWalk


class Walking(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State) -> Any:
        await super().setup_state(state)
        state["walk"] = GridWalk(state["info"]["walk"])
        return state

    async def env_response(self, messages: Any, state: vf.State, **_: Any) -> Any:
        walk: GridWalk = state["walk"]
        calls = messages[-1].tool_calls or []
        if not calls:
            walk.reject()
        answers = [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": walk.call(call.name, call.arguments),
            }
            for call in calls
        ]
        if walk.done:
            state["final_env_response"] = answers
        return answers


async def reward(state: vf.State, **_: Any) -> float:
    return float(state["walk"].outcome().reward)


async def success(state: vf.State, **_: Any) -> float:
    return float(state["walk"].outcome().success)


def load_environment(count: int = 8, seed: int = 0) -> vf.Environment:
    names = [f"train-{seed}-{number}" for number in range(count)]
    rows = [
        {"id": name, "info": {"walk": name}, "prompt": GridWalk(name).messages()} for name in names
    ]
    return Walking(
        dataset=Dataset.from_list(rows),
        tool_defs=[tool["function"] for tool in TOOLS],
        rubric=vf.Rubric(funcs=[reward, success], weights=[1.0, 0.0]),
    )
