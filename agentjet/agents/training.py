"""`train`: the loop over a dataset."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentjet.agents.curriculum import Curriculum
from agentjet.agents.decorator import trainable
from agentjet.agents.running.programs import AsyncClient, Client, Trainable
from agentjet.agents.running.programs_async import AsyncTrainable
from agentjet.agents.running.programs_sync import SyncTrainable
from agentjet.agents.running.training_async import AsyncTraining
from agentjet.agents.running.training_loop import OnResult, Report
from agentjet.agents.running.training_sync import SyncTraining
from agentjet.agents.threads import Threads
from agentjet.client import AsyncSwarm, AsyncSwarmClient, Swarm, SwarmClient
from agentjet.client._runner import Concurrency, check_concurrency
from ajet_core.protocol import RunConfig

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
    trained = _trainable(program)
    if isinstance(trained, AsyncTrainable):
        if isinstance(client, SwarmClient | Swarm):
            raise TypeError(_NEEDS_ASYNC)
        return _run(
            lambda: _with_threads(
                train_async(
                    trained,
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
    server = client if client is not None else trained.client
    if isinstance(server, AsyncSwarmClient | AsyncSwarm):
        raise TypeError("a function that is not async requires SwarmClient or Swarm")
    trained.prepare()
    training = SyncTraining(
        program=trained,
        tasks=tasks,
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
    )
    if server is not None:
        return training.run(server)
    with SwarmClient() as own:
        return training.run(own)


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
    trained = _trainable(program)
    if not isinstance(trained, AsyncTrainable):
        raise TypeError(
            "a function that is not async must be trained with `train`, which runs it in threads"
        )
    server = client if client is not None else trained.client
    if isinstance(server, SwarmClient | Swarm):
        raise TypeError(_NEEDS_ASYNC)
    trained.prepare()
    training = AsyncTraining(
        program=trained,
        tasks=tasks,
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
    )
    if server is not None:
        return await training.run(server)
    async with AsyncSwarmClient() as own:
        return await training.run(own)


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
