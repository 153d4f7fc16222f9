"""`train`: the loop over a dataset."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from agentjet.agents.curriculum import Curriculum, Measured
from agentjet.agents.decorator import trainable
from agentjet.agents.epochs import Asking, EpochPlan, plan
from agentjet.agents.programs import AsyncClient, AsyncTrainable, Client, SyncTrainable, Trainable
from agentjet.agents.progress import ProgressDisplay
from agentjet.agents.threads import Threads
from agentjet.client import (
    AsyncSwarm,
    AsyncSwarmClient,
    EpisodeFailure,
    EpisodeResult,
    Resumption,
    RunnerReport,
    Swarm,
    SwarmClient,
)
from agentjet.client._runner import Concurrency, check_concurrency
from ajet_core.errors import AjetError, ConfigError
from ajet_core.protocol import RunConfig, RunStatus, ServerState, ServerStatus

OnResult = Callable[[EpisodeResult[Any, Any] | EpisodeFailure], object]
Report = RunnerReport[Any, Any]

_log = logging.getLogger("ajet.agents")
_UNKNOWN_STEP = "the last step may not have been trained"
_NEEDS_ASYNC = "an async program requires AsyncSwarmClient or AsyncSwarm"


def train(
    program: Any,
    tasks: Sequence[Any],
    *,
    client: Client | None = None,
    config: RunConfig | Mapping[str, object] | None = None,
    epochs: int = 1,
    episodes_per_task: int | None = None,
    concurrency: Concurrency = "auto",
    retries: int = 1,
    episode_timeout: float | None = None,
    resume: bool = False,
    first_epoch: int | None = None,
    shuffle: int | None = None,
    curriculum: Curriculum | None = None,
    progress: bool | None = None,
    on_result: OnResult | None = None,
) -> Report:
    """Roll a program out on a dataset to train its model.

    ```python
    report = train(solve, tasks, epochs=3)
    ```

    An exception in the program aborts only its episode, which is retried up to `retries` times.
    Returns once the batches that its episodes have filled are trained. A batch that is not full, or
    whose run is paused, is not waited for, which is logged.

    This cannot be called while an event loop is running, except in a notebook; use `train_async`
    there.

    :param program: made by `trainable`, or anything that it accepts (a function, an agent);
        functions that are not async run in threads.
    :param tasks: whatever the program takes, or `Task` objects. Their ids (see `task_of`) must
        differ.
    :param client: by default the program's own, else one of the server that ``AJET_URL`` names.
    :param config: what to train and how, a `RunConfig` or its values by name; the run is started if
        there is none yet. Needs a control token. None if the run is started elsewhere.
    :param epochs: passes over the dataset. Episodes of different epochs are not compared with each
        other.
    :param episodes_per_task: how often each task is rolled out per epoch; these episodes are
        compared with each other. By default as many as the run's batches take.
    :param concurrency: the number of episodes that run at once; ``auto``: as many as the server
        wants.
    :param episode_timeout: seconds after which a program that has not finished is given up.
    :param resume: skip episodes that have already ended, also those of another process with the
        same arguments.
    :param first_epoch: number of the first epoch, which identifies it for `resume`; set it in a
        loop that calls this for each epoch. Default: 1 with `resume`, else the number after the
        epochs of these tasks in which episodes have ended.
    :param shuffle: seed of the order of the tasks in each epoch; None keeps them in order.
    :param curriculum: chooses the tasks of each epoch by their success rates; each epoch then ends
        before the next one begins.
    :param progress: whether to show progress on the terminal; by default if there is one.
    :param on_result: called after each episode that ended or was given up.
    :raises RequestError: two tasks have the same id, or an argument is out of range.
    :raises StateError: there is no run, and no `config`.
    """
    check_concurrency(concurrency)
    its = _trainable(program)
    if isinstance(its, AsyncTrainable):
        if isinstance(client, SwarmClient | Swarm):
            raise TypeError(_NEEDS_ASYNC)
        return _run(
            lambda: _with_threads(
                train_async(
                    its,
                    tasks,
                    client=client,
                    config=config,
                    epochs=epochs,
                    episodes_per_task=episodes_per_task,
                    concurrency=concurrency,
                    retries=retries,
                    episode_timeout=episode_timeout,
                    resume=resume,
                    first_epoch=first_epoch,
                    shuffle=shuffle,
                    curriculum=curriculum,
                    progress=progress,
                    on_result=on_result,
                ),
            )
        )
    server = client if client is not None else its.client
    if isinstance(server, AsyncSwarmClient | AsyncSwarm):
        raise TypeError("a function that is not async requires SwarmClient or Swarm")
    its.prepare()
    with _closing(server) as connected:
        status = _start(connected, config)
        through = its.through(connected)
        group_reward = its.group_outcomes if its.options.group_reward is not None else None
        agent = through.agent if group_reward is None else through.rollout
        reports: list[Report] = []
        measured = Measured()
        for count in _parts(epochs, curriculum):
            asking = plan(
                its,
                tasks,
                status,
                epochs=count,
                first=first_epoch,
                resume=resume,
                size=episodes_per_task,
                shuffle=shuffle,
                curriculum=curriculum,
                measured=measured,
            )
            todo = _planned(connected, asking)
            first_epoch = todo.last + 1
            left = connected.resume(todo.tasks, episodes_per_task=todo.size) if resume else None
            total = _total(todo, left)
            with ProgressDisplay(total, todo.last, show=progress, also=on_result) as shown:
                reports.append(
                    connected.run_episodes_until_all_complete(
                        todo.tasks,
                        agent,
                        episodes_per_task=todo.size,
                        concurrency=concurrency,
                        retries=retries,
                        episode_timeout=episode_timeout,
                        rules=its.options.rules,
                        group_reward=group_reward,
                        resume=resume,
                        on_result=shown.note,
                    )
                )
        for one in connected.clients.values() if isinstance(connected, Swarm) else [connected]:
            try:
                _tell_what_is_left(one.wait_for_training())
            except AjetError as error:
                _log.warning("%s: %s", _UNKNOWN_STEP, error.message)
        return _joined(reports)


async def train_async(
    program: Any,
    tasks: Sequence[Any],
    *,
    client: AsyncClient | None = None,
    config: RunConfig | Mapping[str, object] | None = None,
    epochs: int = 1,
    episodes_per_task: int | None = None,
    concurrency: Concurrency = "auto",
    retries: int = 1,
    episode_timeout: float | None = None,
    resume: bool = False,
    first_epoch: int | None = None,
    shuffle: int | None = None,
    curriculum: Curriculum | None = None,
    progress: bool | None = None,
    on_result: OnResult | None = None,
) -> Report:
    """Train an async program in the running event loop; see `train`."""
    its = _trainable(program)
    if not isinstance(its, AsyncTrainable):
        raise TypeError(
            "a function that is not async must be trained with `train`, which runs it in threads"
        )
    server = client if client is not None else its.client
    if isinstance(server, SwarmClient | Swarm):
        raise TypeError(_NEEDS_ASYNC)
    its.prepare()
    own = server is None
    connected = AsyncSwarmClient() if server is None else server
    try:
        status = await _start_async(connected, config)
        through = its.through(connected)
        group_reward = its.group_outcomes if its.options.group_reward is not None else None
        agent = through.agent if group_reward is None else through.rollout
        reports: list[Report] = []
        measured = Measured()
        for count in _parts(epochs, curriculum):
            asking = plan(
                its,
                tasks,
                status,
                epochs=count,
                first=first_epoch,
                resume=resume,
                size=episodes_per_task,
                shuffle=shuffle,
                curriculum=curriculum,
                measured=measured,
            )
            todo = await _planned_async(connected, asking)
            first_epoch = todo.last + 1
            left = (
                await connected.resume(todo.tasks, episodes_per_task=todo.size) if resume else None
            )
            total = _total(todo, left)
            with ProgressDisplay(total, todo.last, show=progress, also=on_result) as shown:
                reports.append(
                    await connected.run_episodes_until_all_complete(
                        todo.tasks,
                        agent,
                        episodes_per_task=todo.size,
                        concurrency=concurrency,
                        retries=retries,
                        episode_timeout=episode_timeout,
                        rules=its.options.rules,
                        group_reward=group_reward,
                        resume=resume,
                        on_result=shown.note,
                    )
                )
        each = connected.clients.values() if isinstance(connected, AsyncSwarm) else [connected]
        for one in each:
            try:
                _tell_what_is_left(await one.wait_for_training())
            except AjetError as error:
                _log.warning("%s: %s", _UNKNOWN_STEP, error.message)
        return _joined(reports)
    finally:
        if own:
            await connected.close()


def _parts(epochs: int, curriculum: Curriculum | None) -> list[int]:
    """Return the numbers of epochs that are planned at once: with a curriculum one at a time."""
    return [epochs] if curriculum is None or epochs < 1 else [1] * epochs


def _joined(reports: Sequence[Report]) -> Report:
    return RunnerReport(
        outcomes=[one for report in reports for one in report.outcomes],
        failures=[one for report in reports for one in report.failures],
        elapsed=sum(report.elapsed for report in reports),
    )


def _run(start: Callable[[], Coroutine[Any, Any, Report]]) -> Report:
    """Run a coroutine; in a notebook, whose own event loop is running, in a thread.

    :raises TypeError: another event loop is running.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        return _run_in_thread(start)
    # Not in the handler: each traceback of the run would begin with its RuntimeError.
    return asyncio.run(start())


def _run_in_thread(start: Callable[[], Coroutine[Any, Any, Report]]) -> Report:
    if "ipykernel" not in sys.modules:
        raise TypeError("an event loop is already running: use `await train_async(...)`")
    # While a cell runs, its notebook does nothing else, so its loop may be blocked.
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def work() -> Report:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await start()

    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "ajet-train") as thread:
        future = thread.submit(context.run, asyncio.run, work())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop, task in running:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)
            raise


async def _with_threads(loop_over: Coroutine[Any, Any, Report]) -> Report:
    """Give the event loop unlimited threads: synchronous frameworks need one for each episode."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(Threads())
    return await loop_over


def _trainable(program: Any) -> SyncTrainable[Any] | AsyncTrainable[Any]:
    wrapped = program if isinstance(program, Trainable) else trainable(program)
    assert isinstance(wrapped, SyncTrainable | AsyncTrainable)
    return wrapped


@contextmanager
def _closing(server: SwarmClient | Swarm | None) -> Iterator[SwarmClient | Swarm]:
    if server is not None:
        yield server
        return
    with SwarmClient() as own:
        yield own


def _start(
    server: SwarmClient | Swarm, config: RunConfig | Mapping[str, object] | None
) -> RunStatus:
    if isinstance(server, Swarm):
        _refuse(config)
        return server[server.arbiter].run_status()
    if config is not None:
        server.sync_train_config(config)
        server.start_engine()
    return server.run_status()


async def _start_async(
    server: AsyncClient, config: RunConfig | Mapping[str, object] | None
) -> RunStatus:
    if isinstance(server, AsyncSwarm):
        _refuse(config)
        return await server[server.arbiter].run_status()
    if config is not None:
        await server.sync_train_config(config)
        await server.start_engine()
    return await server.run_status()


def _planned(server: SwarmClient | Swarm, asking: Asking) -> EpochPlan:
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(server.resume(wanted))
    except StopIteration as done:
        planned: EpochPlan = done.value
        return planned


async def _planned_async(server: AsyncClient, asking: Asking) -> EpochPlan:
    try:
        wanted = next(asking)
        while True:
            wanted = asking.send(await server.resume(wanted))
    except StopIteration as done:
        planned: EpochPlan = done.value
        return planned


def _total(todo: EpochPlan, left: Resumption | None) -> int:
    """Return the number of episodes to roll out."""
    if left is None:
        return len(todo.tasks) * todo.size
    return sum(lacking for _, lacking in left.remaining)


def _tell_what_is_left(status: ServerStatus) -> None:
    """Log that the last episodes are not trained yet if the run is paused or they fill no batch."""
    batch = status.batch
    if status.state is ServerState.PAUSED:
        _log.warning("the run is paused: full batches are trained once it is resumed")
    if batch is None or batch.open_episodes or not 0 < batch.ready < batch.needed:
        return
    unit = "episodes" if batch.full_by == "episodes" else "tasks"
    _log.warning(
        "the open batch has %d of %d %s: it is trained once %d more are rolled out",
        batch.ready,
        batch.needed,
        unit,
        batch.needed - batch.ready,
    )


def _refuse(config: RunConfig | Mapping[str, object] | None) -> None:
    if config is not None:
        raise ConfigError(
            "config= cannot be used with several models; pass one configuration per role to "
            "Swarm.sync_train_config, then call Swarm.start_engine"
        )
