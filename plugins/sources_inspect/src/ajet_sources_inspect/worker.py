"""The process that runs Inspect. Requests come on its input, replies go out, as lines of JSON.

Inspect runs one eval at a time in a process, and changes the process's directory, logging and
variables. The eval takes its samples from a `SampleSource`: each request adds one sample to the
eval that is running, as its next epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from inspect_ai import SampleSource, Task, enqueue_sample, eval_async, task_with
from inspect_ai._eval.loader import load_tasks
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.log._samples import active_samples

from agentjet.agents import Route, instrument
from ajet_core.interfaces import ModelEndpoint
from ajet_sources_inspect.episodes import MODEL, SampleEpisode, running
from ajet_sources_inspect.scores import parts_of, reward_of
from ajet_sources_inspect.settings import InspectSettings

Reply = Callable[[Mapping[str, Any]], None]
_LINE_LIMIT = 2**28
_SHOWN = 2000


class RequestedSamples(SampleSource):
    """The samples of an eval: those that are requested, until it has enough of them."""

    def __init__(self, evals: Evals) -> None:
        self.evals = evals

    async def next_samples(self) -> list[Sample] | None:
        """Wait for requests; None ends the eval, and its log."""
        return [] if await self.evals.wait() else None

    async def sample_complete(self, sample: EvalSample) -> None:
        """Reply with the outcome."""
        self.evals.complete(sample)

    async def sample_abandoned(self, sample: Sample, epoch: int) -> None:
        """Reply that there is none."""
        self.evals.fail((str(sample.id), epoch), "Inspect has cancelled the sample")


class Evals:
    """The evals of one task, one after the other.

    :param reply: sends a reply.
    """

    def __init__(self, task: Task, settings: InspectSettings, reply: Reply) -> None:
        self.task = task
        self.settings = settings
        self.reply = reply
        self.samples = _samples_by_id(task)
        self.waiting: list[tuple[str, SampleEpisode]] = []
        self.closing = False
        self._epochs: Counter[str] = Counter()
        self._context: Context | None = None
        self._wake = asyncio.Event()

    def roll_out(self, task: str, episode: SampleEpisode) -> None:
        """Run a sample in an episode."""
        self.waiting.append((task, episode))
        self._add()

    def cancel(self, number: int) -> None:
        """End a sample without an outcome; the reply follows when it has ended."""
        for key, episode in running.by_key.items():
            if episode.number == number:
                episode.cancelled = True
                for sample in active_samples():
                    if (str(sample.sample.id), sample.epoch) == key:
                        sample.interrupt("error")

    def close(self) -> None:
        """End after the samples that are running, which are cancelled."""
        self.closing = True
        for episode in list(running.by_key.values()):
            self.cancel(episode.number)
        self._wake.set()

    async def run(self) -> None:
        """Run evals until `close`."""
        settings = self.settings
        limits = {"message_limit": settings.message_limit, "time_limit": settings.time_limit}
        evals = 0
        while not self.closing:
            if not self.waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._epochs.clear()
            # Epochs are in the keys of Inspect's cache, and begin again at 1: answers that other
            # weights gave must not be used.
            evals += 1
            os.environ["INSPECT_CACHE_DIR"] = f"{os.environ['AJET_INSPECT_CACHE']}/{evals}"
            problem = ""
            try:
                (log,) = await eval_async(
                    task_with(copy.copy(self.task), dataset=RequestedSamples(self)),
                    model=MODEL,
                    model_roles=dict(settings.model_roles) or None,
                    epochs=1,
                    fail_on_error=False,
                    retry_on_error=0,
                    score_on_error=False,
                    max_samples=settings.max_samples,
                    max_connections=settings.max_samples,
                    max_retries=settings.max_retries,
                    log_dir=settings.log_dir,
                    log_realtime=False,
                    log_header_only=True,
                    log_level="warning",
                    ctl_server=False,
                    acp_server=False,
                    metadata={"agentjet": True},
                    **{name: limit for name, limit in limits.items() if limit is not None},
                )
                if log.error:
                    problem = log.error.message
            except Exception as error:  # noqa: BLE001  # whatever it is, the episodes must hear of it
                problem = f"{type(error).__name__}: {error}"
            self._context = None
            for key in list(running.by_key):
                self.fail(key, problem or "the eval has ended")
            if problem:
                while self.waiting:
                    self._reply_failed(self.waiting.pop()[1], problem)

    async def wait(self) -> bool:
        """Wait until samples were added to the running eval; False if it shall end."""
        self._context = copy_context()
        while not self.closing and sum(self._epochs.values()) < self.settings.samples_per_log:
            if self._add():
                return True
            self._wake.clear()
            before = sum(self._epochs.values())
            await self._wake.wait()
            if sum(self._epochs.values()) > before:
                return True
        self._context = None
        return False

    def complete(self, sample: EvalSample) -> None:
        """Reply with the outcome of a sample."""
        key = (str(sample.id), sample.epoch)
        if sample.error is not None:
            self.fail(key, sample.error.message)
            return
        try:
            parts = parts_of({name: one.value for name, one in (sample.scores or {}).items()})
            reward = reward_of(parts, self.settings.reward)
        except ValueError as error:
            self.fail(key, str(error))
            return
        episode = running.by_key.pop(key, None)
        if episode is not None:
            _leave(episode)
            metadata = {"inspect_sample": sample.uuid or "", "inspect_epoch": str(sample.epoch)}
            if sample.limit is not None:
                metadata["inspect_limit"] = sample.limit.type
            self.reply(
                {
                    "number": episode.number,
                    "reward": reward,
                    "components": parts,
                    "answer": sample.output.completion,
                    "metadata": metadata,
                    "uses_tools": episode.uses_tools,
                }
            )

    def fail(self, key: tuple[str, int], why: str) -> None:
        """Reply that a sample has no outcome."""
        episode = running.by_key.pop(key, None)
        if episode is not None:
            _leave(episode)
            self._reply_failed(episode, why)

    def _reply_failed(self, episode: SampleEpisode, why: str) -> None:
        self.reply({"number": episode.number, "error": why[:_SHOWN]})

    def _add(self) -> bool:
        added = False
        while self._context is not None and self.waiting:
            task, episode = self.waiting.pop(0)
            self._epochs[task] += 1
            running.by_key[task, self._epochs[task]] = episode
            sample = copy.deepcopy(self.samples[task])
            self._context.run(enqueue_sample, sample, epoch=self._epochs[task])
            added = True
        self._wake.set()
        return added


def _leave(episode: SampleEpisode) -> None:
    if episode.route is not None:
        episode.route.finished = True


def _samples_by_id(task: Task) -> dict[str, Sample]:
    """:raises ValueError: the samples are not fixed, or an id is used twice."""
    if task.sample_source is not None:
        raise ValueError("the task makes its samples while it runs; agentjet needs fixed samples")
    samples: dict[str, Sample] = {}
    for sample in task.dataset:
        if sample.id is None:
            content = sample.model_dump_json(include={"input", "target", "choices", "metadata"})
            sample.id = hashlib.sha256(content.encode()).hexdigest()[:16]
        if str(sample.id) in samples:
            raise ValueError(f"the dataset has two samples with the id {sample.id}")
        samples[str(sample.id)] = sample
    return samples


def load(text: str, settings: InspectSettings) -> Task:
    """Load a task: ``FILE.py``, ``FILE.py@TASK``, or the name of one in a package.

    :raises ValueError: there is none, or there are several.
    """
    path, at, name = text.partition("@")
    if path.endswith(".py"):
        # Inspect searches for files without a task's name relative to the directory alone.
        text = os.path.relpath(path) + at + name
    tasks = load_tasks([text], settings.args)
    if len(tasks) != 1:
        names = ", ".join(f"{path}@{task.name}" for task in tasks)
        raise ValueError(
            f"{text} has several tasks: choose {names}" if tasks else f"{text} has no task"
        )
    return tasks[0]


def describe(sample: Sample) -> dict[str, Any]:
    """Return what is known of a sample without running it."""
    question = sample.input if isinstance(sample.input, str) else sample.input[-1].text
    target = sample.target if isinstance(sample.target, str) else "".join(sample.target[:1])
    if sample.choices and target:
        # The form that Inspect's `multiple_choice` asks for.
        target = f"ANSWER: {target}"
    return {"id": str(sample.id), "question": question, "reference": target}


async def serve(requests: asyncio.StreamReader, reply: Reply) -> None:
    """Load the task of the first request, and then answer the others until the input ends."""
    first = json.loads(await requests.readline())
    try:
        settings = InspectSettings.model_validate(first["settings"])
        evals = Evals(load(first["task"], settings), settings, reply)
    except Exception as error:  # noqa: BLE001  # loading runs the code of the task
        reply({"failed": f"{type(error).__name__}: {error}"[:_SHOWN]})
        return
    instrument()
    reply({"samples": [describe(sample) for sample in evals.samples.values()]})
    running_evals = asyncio.create_task(evals.run())
    with contextlib.suppress(asyncio.IncompleteReadError):
        while line := await requests.readline():
            request = json.loads(line)
            if "cancel" in request:
                evals.cancel(request["cancel"])
            else:
                evals.roll_out(request["task"], _episode(request))
    evals.close()
    await running_evals


def _episode(request: Mapping[str, Any]) -> SampleEpisode:
    if "endpoint" not in request:
        return SampleEpisode(request["number"], None, answer=request["answer"])
    endpoint = ModelEndpoint(**request["endpoint"])
    route = Route({"": endpoint}, sampling=endpoint.sampling)
    return SampleEpisode(request["number"], route, episode=endpoint.episode_id)


async def main() -> None:
    """Keep input and output for requests and replies; what tasks print goes to the errors."""
    sys.stdout.flush()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ["INSPECT_DISPLAY"] = "none"

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    requests = asyncio.StreamReader(limit=_LINE_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), source
    )
    await serve(requests, reply)


if __name__ == "__main__":
    asyncio.run(main())
