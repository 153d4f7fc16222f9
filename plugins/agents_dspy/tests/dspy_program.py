"""A planner and a worker that know nothing of training."""

from __future__ import annotations

import os

import dspy

lm = dspy.LM(
    "openai/any-model",
    api_base=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9/v1"),
    api_key="none",
)
dspy.configure(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False))


def open_door(door: str) -> str:
    """Open one of the doors: left, middle or right."""
    if door == "trapdoor":
        raise ValueError("the floor gives way")
    return f"Behind the {door} door: {'gold' if door == 'left' else 'nothing'}."


class Expedition(dspy.Module):
    """Plans, then looks behind a door."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = dspy.Predict(
            dspy.Signature("task -> plan", "Say which door to take: left, middle or right.")
        )
        self.worker = dspy.ReAct(
            dspy.Signature("task -> answer", "Open a door.", signature_name="worker"),
            tools=[open_door],
            max_iters=1,
        )

    def forward(self, task: str) -> dspy.Prediction:
        plan = self.planner(task=task).plan
        return self.worker(task=f"{task}\nThe plan: {plan}")

    async def aforward(self, task: str) -> dspy.Prediction:
        plan = (await self.planner.acall(task=task)).plan
        return await self.worker.acall(task=f"{task}\nThe plan: {plan}")


expedition = Expedition()


def doors(result: dspy.Prediction) -> list[str]:
    return [
        arguments.get("door", "")
        for name, arguments in result.trajectory.items()
        if name.startswith("tool_args")
    ]


async def play(task: str) -> list[str]:
    return doors(await expedition.acall(task=task))


def play_sync(task: str) -> list[str]:
    return doors(expedition(task=task))
