"""Environments in the style of verifiers 0.1: with a tool, with several turns, with a group."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: first
        b: second
    """
    return a + b


def _last(completion: Any) -> str:
    message = completion[-1]
    return str(message["content"] if isinstance(message, dict) else message.content)


def right(completion: Any, answer: str, **_: Any) -> float:
    if "explode" in _last(completion):
        raise RuntimeError("the reward exploded")
    return float(answer in _last(completion))


def length(completion: Any, **_: Any) -> float:
    return float(len(_last(completion)))


def longest(completions: list[Any], **_: Any) -> list[float]:
    lengths = [len(_last(completion)) for completion in completions]
    return [float(one == max(lengths)) for one in lengths]


class Asking(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        return [{"role": "user", "content": "Are you sure?"}]

    @vf.stop
    async def asked(self, state: Any) -> bool:
        return len(state["trajectory"]) >= 2


def load_environment(kind: str = "tool") -> vf.Environment:
    rows = [{"question": f"What is {i}+{42 - i}?", "answer": "42"} for i in range(4)]
    dataset = Dataset.from_list(rows)
    rubric = vf.Rubric(funcs=[right, length], weights=[1.0, 0.0])
    if kind == "tool":
        return vf.ToolEnv(dataset=dataset, tools=[add], rubric=rubric, max_turns=4)
    if kind == "turns":
        return Asking(dataset=dataset, rubric=rubric)
    return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[longest], weights=[1.0]))
