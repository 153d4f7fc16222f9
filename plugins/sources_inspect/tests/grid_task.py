"""GridWalk as an eval of Inspect. Nothing in this file knows of agentjet's training."""

from __future__ import annotations

import json

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo, ToolParams
from inspect_ai.util import JSONSchema

from ajet_worlds.gridwalk import DIRECTIONS, GridWalk

DIRECTION = JSONSchema(type="string", enum=list(DIRECTIONS))
MOVE = ToolInfo(
    name="move",
    description="Move one cell.",
    parameters=ToolParams(properties={"direction": DIRECTION}, required=["direction"]),
)


@solver
def walk() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        world = GridWalk(str(state.sample_id))
        while not world.done:
            output = await get_model().generate(state.messages, tools=[MOVE])
            state.output = output
            state.messages.append(output.message)
            if not output.message.tool_calls:
                world.reject()
            for call in output.message.tool_calls or []:
                name, arguments = call.function, json.dumps(call.arguments)
                said = world.call(name, "" if call.parse_error else arguments)
                state.messages.append(
                    ChatMessageTool(content=said, tool_call_id=call.id, function=name)
                )
        state.metadata["outcome"] = world.outcome()
        return state

    return solve


@scorer(metrics={"*": [mean()]})
def outcome() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        its = state.metadata.pop("outcome")
        return Score(value={"reward": its.reward, "success": float(its.success)})

    return score


@task
def gridwalk(count: int = 8, seed: int = 0) -> Task:
    """Walks on a grid."""
    samples = []
    for number in range(count):
        name = f"train-{seed}-{number}"
        system, user = (message["content"] for message in GridWalk(name).messages())
        asked = [ChatMessageSystem(content=system), ChatMessageUser(content=user)]
        samples.append(Sample(id=name, input=asked))
    config = GenerateConfig(max_tokens=32, temperature=1.0)
    return Task(dataset=samples, solver=walk(), scorer=outcome(), config=config)
