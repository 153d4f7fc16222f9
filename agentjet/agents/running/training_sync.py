# Generated from training_async.py by scripts/unasync.py. Edit that, and run `make generate`.
"""The loop of `train` with a synchronous client."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentjet.agents.curriculum import Curriculum, Measured
from agentjet.agents.epochs import Asking, EpochPlan, plan
from agentjet.agents.progress import ProgressDisplay
from agentjet.agents.running.programs import SyncClient
from agentjet.agents.running.programs_sync import SyncTrainable
from agentjet.agents.running.training_loop import (
    OnResult,
    Report,
    epoch_counts,
    joined_report,
    log_what_is_left,
    refuse_config,
    total_episodes,
)
from agentjet.client import Swarm
from agentjet.client._runner import Concurrency
from ajet_core.errors import AjetError
from ajet_core.protocol import RunConfig, RunStatus

_log = logging.getLogger("ajet.agents")


@dataclass(frozen=True, kw_only=True)
class SyncTraining:
    """One call of `train`, whose parameters the fields are."""

    program: SyncTrainable[Any]
    tasks: Sequence[Any]
    config: RunConfig | Mapping[str, object] | None
    epochs: int
    episodes_per_task: int | None
    concurrency: Concurrency
    retries: int
    episode_timeout: float | None
    resume: bool
    first_epoch: int | None
    shuffle: int | None
    curriculum: Curriculum | None
    progress: bool | None
    on_result: OnResult | None

    def run(self, server: SyncClient) -> Report:
        """Roll out the program on the tasks, and wait until the last full batch is trained.

        :raises AjetError: as for `train`.
        """
        status = self._start(server)
        reports: list[Report] = []
        measured = Measured()
        first = self.first_epoch
        for count in epoch_counts(self.epochs, self.curriculum):
            asking = plan(
                self.program,
                self.tasks,
                status,
                epochs=count,
                first=first,
                resume=self.resume,
                size=self.episodes_per_task,
                shuffle=self.shuffle,
                curriculum=self.curriculum,
                measured=measured,
            )
            todo = _planned(server, asking)
            first = todo.last + 1
            reports.append(self._roll_out(server, todo))
        for one in server.clients.values() if isinstance(server, Swarm) else [server]:
            try:
                log_what_is_left(one.wait_for_training())
            except AjetError as error:
                _log.warning("the last step may not have been trained: %s", error.message)
        return joined_report(reports)

    def _start(self, server: SyncClient) -> RunStatus:
        if isinstance(server, Swarm):
            refuse_config(self.config)
            return server[server.arbiter].run_status()
        if self.config is not None:
            server.sync_train_config(self.config)
            server.start_engine()
        return server.run_status()

    def _roll_out(self, server: SyncClient, todo: EpochPlan) -> Report:
        left = None
        if self.resume:
            left = server.resume(todo.tasks, episodes_per_task=todo.size)
        program = self.program.through(server)
        options = program.options
        in_groups = options.group_reward is not None
        with ProgressDisplay(
            total_episodes(todo, left), todo.last, show=self.progress, also=self.on_result
        ) as shown:
            return server.run_episodes_until_all_complete(
                todo.tasks,
                program.rollout if in_groups else program.agent,
                episodes_per_task=todo.size,
                concurrency=self.concurrency,
                retries=self.retries,
                episode_timeout=self.episode_timeout,
                rules=options.rules,
                group_reward=program.group_outcomes if in_groups else None,
                resume=self.resume,
                on_result=shown.note,
            )


def _planned(server: SyncClient, asking: Asking) -> EpochPlan:
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(server.resume(wanted))
    except StopIteration as done:
        planned: EpochPlan = done.value
        return planned
