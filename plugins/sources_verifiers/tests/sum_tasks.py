"""A taskset in the style of verifiers 0.4."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=1.0)
    async def correct(self, trace: Any) -> float:
        if "explode" in trace.last_reply:
            raise RuntimeError("the reward exploded")
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def length(self, trace: Any) -> float:
        return float(len(trace.last_reply))


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Any:
        for a in range(4):
            data = SumData(prompt=f"What is {a}+{42 - a}?", answer="42", name=f"sum{a}")
            yield SumTask(data, self.config.task)


__all__ = ["SumTaskset"]
