"""Tasks as authors of evals write them: nothing in this file knows of agentjet."""

from __future__ import annotations

import asyncio

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, get_model
from inspect_ai.scorer import (
    Score,
    Scorer,
    Target,
    accuracy,
    includes,
    mean,
    model_graded_qa,
    scorer,
)
from inspect_ai.solver import Generate, Solver, TaskState, basic_agent, generate, solver
from inspect_ai.tool import Tool, tool


def samples(*names: str) -> list[Sample]:
    return [Sample(id=name, input=f"Say {name}.", target=name) for name in names]


@task
def words(count: int = 8) -> Task:
    """Eight words to repeat."""
    names = [f"word{number}" for number in range(count)]
    return Task(dataset=samples(*names), solver=generate(), scorer=includes())


@task
def numbered(count: int = 8) -> Task:
    """Eight words that the questions do not contain."""
    data = [
        Sample(id=str(number), input=f"Which word has number {number}?", target=f"word{number}")
        for number in range(count)
    ]
    return Task(dataset=data, solver=generate(), scorer=includes())


@tool
def lookup() -> Tool:
    async def execute(key: str) -> str:
        """Look up a key.

        Args:
            key: What to look up.
        """
        if key == "broken":
            raise RuntimeError("the database is gone")
        return f"value of {key}"

    return execute


@task
def agentic() -> Task:
    """An agent that looks things up and submits an answer."""
    return Task(
        dataset=samples("word0", "word1"),
        solver=basic_agent(tools=[lookup()], message_limit=8),
        scorer=includes(),
    )


@solver
def crashing() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        if state.sample_id == "solver":
            raise ValueError("the solver has a bug")
        if state.sample_id == "hangs":
            await asyncio.Event().wait()
        return state

    return solve


@scorer(metrics=[accuracy()])
def fragile() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        match state.sample_id:
            case "scorer":
                raise ValueError("the scorer has a bug")
            case "strange":
                return Score(value="rather good")
            case "endless":
                return Score(value=float("nan"))
            case "judge":
                await get_model().generate([ChatMessageUser(content="Is it good?")])
        return Score(value="C")

    return score


@task
def failing() -> Task:
    """One sample of each kind of failure, and a good one."""
    names = ("solver", "scorer", "strange", "endless", "judge", "hangs", "good")
    return Task(dataset=samples(*names), solver=crashing(), scorer=fragile())


@task
def no_sandbox() -> Task:
    """Its sandbox cannot be started."""
    return Task(
        dataset=samples("word0"),
        solver=generate(),
        scorer=includes(),
        sandbox=("docker", "there-is-no-such-file.yaml"),
    )


@scorer(metrics={"*": [mean()]})
def two_parts() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        found = target.text in state.output.completion
        return Score(value={"found": float(found), "short": 0.25})

    return score


@task
def in_parts() -> Task:
    """Its score has two parts."""
    return Task(dataset=samples("word0", "word1"), solver=generate(), scorer=two_parts())


@task
def graded() -> Task:
    """A model grades the answers."""
    return Task(
        dataset=samples("word0"), solver=generate(), scorer=model_graded_qa(partial_credit=True)
    )
