"""The index of tasks: in which steps each was trained, and how its reward changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ajet_server.averages import mean
from ajet_server.observe.timeline_view import finite
from ajet_server.page.episode_rows import selected_episodes
from ajet_server.page.history import StepHistory
from ajet_server.page.models import EpisodesQuery, TaskRow, TaskRows, TasksQuery
from ajet_server.store.run_store import RunStore

_TRAINED = EpisodesQuery(state="ended", kind="train")


@dataclass(slots=True)
class _Task:
    episodes: int = 0
    rewards: dict[int, list[float]] = field(default_factory=dict)

    def row(self, task_id: str) -> TaskRow:
        steps = sorted(self.rewards)
        return TaskRow(
            task_id=task_id,
            episodes=self.episodes,
            steps=len(steps),
            first_step=steps[0],
            last_step=steps[-1],
            first_reward=mean(self.rewards[steps[0]]),
            last_reward=mean(self.rewards[steps[-1]]),
        )


async def task_rows(store: RunStore, history: StepHistory, query: TasksQuery) -> TaskRows:
    """Return the tasks that were trained, of the newest 20,000 training episodes."""
    wanted: list[tuple[str, str, float]] = []
    async for record in selected_episodes(store, history, _TRAINED):
        reward = finite(record.reward)
        if record.batch_id and reward is not None and query.find in record.task_id:
            wanted.append((record.task_id, record.batch_id, reward))
    steps = await history.steps_of({batch_id for _, batch_id, _ in wanted})
    tasks: dict[str, _Task] = {}
    for task_id, batch_id, reward in wanted:
        if (step := steps.get(batch_id)) is not None:
            task = tasks.setdefault(task_id, _Task())
            task.episodes += 1
            task.rewards.setdefault(step, []).append(reward)
    rows = _ordered([task.row(task_id) for task_id, task in tasks.items()], query)
    last = query.skip + query.limit
    return TaskRows(tasks=rows[query.skip : last], more=len(rows) > last, total=len(rows))


def _ordered(rows: Sequence[TaskRow], query: TasksQuery) -> list[TaskRow]:
    if query.order == "newest":
        return sorted(rows, key=lambda row: (-row.last_step, row.task_id))
    if query.order == "lowest":
        return sorted(rows, key=lambda row: (row.last_reward, row.task_id))
    sign = -1 if query.order == "improved" else 1
    return sorted(rows, key=lambda row: (sign * (row.last_reward - row.first_reward), row.task_id))
