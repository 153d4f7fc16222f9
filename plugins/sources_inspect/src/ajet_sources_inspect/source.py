"""The task source `inspect`: it starts the process that runs Inspect, and asks it for outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ajet_core.errors import ConfigError, EnvironmentFailedError
from ajet_core.interfaces import EpisodeOutcome, ModelEndpoint, Task, TaskProbe, TaskSource
from ajet_sources_inspect.settings import InspectSettings

_SHARES = 2**32
_LINE_LIMIT = 2**28
_END_SECONDS = 60.0
_CANCEL_SECONDS = 30.0
_LINES = 20
_log = logging.getLogger("ajet.sources.inspect")


class InspectSource(TaskSource[InspectSettings]):
    """An eval of Inspect. Each sample is a task, and each epoch of it an episode."""

    def __init__(self, settings: InspectSettings, argument: str = "") -> None:
        super().__init__(settings, argument)
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._replies: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._errors: deque[str] = deque(maxlen=_LINES)
        self._samples: dict[str, Mapping[str, str]] = {}
        self._splits: dict[str, list[Task]] = {}
        self._cache = contextlib.ExitStack()

    async def open(self) -> None:
        """Start Inspect, and load the task."""
        if not self.argument:
            raise ConfigError("the source 'inspect' needs a task: inspect:FILE.py", param="source")
        cache = self._cache.enter_context(tempfile.TemporaryDirectory(prefix="ajet-inspect-"))
        # Tokens of agentjet are none of the task's business.
        variables = {name: text for name, text in os.environ.items() if name[:5] != "AJET_"}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ajet_sources_inspect.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**variables, "AJET_INSPECT_CACHE": cache},
            start_new_session=True,
            limit=_LINE_LIMIT,
        )
        loaded = self._replies[0] = asyncio.get_running_loop().create_future()
        self._readers = [
            asyncio.create_task(self._read_errors(self._process)),
            asyncio.create_task(self._read_replies(self._process)),
        ]
        settings = self.settings.model_dump()
        settings["log_dir"] = os.path.abspath(self.settings.log_dir)  # noqa: PTH100, ASYNC240
        self._send({"task": self.argument, "settings": settings})
        try:
            async with asyncio.timeout(self.settings.start_seconds):
                reply = await loaded
        except TimeoutError as error:
            raise EnvironmentFailedError(
                f"loading {self.argument} took more than {self.settings.start_seconds:g} s "
                "(sources.inspect.start_seconds)"
            ) from error
        if "failed" in reply:
            raise ConfigError(f"Inspect cannot load {self.argument}: {reply['failed']}")
        if not reply["samples"]:
            raise ConfigError(f"the task {self.argument} has no samples", param="source")
        self._samples = {sample["id"]: sample for sample in reply["samples"]}
        self._splits = {split: [] for split in self.splits()}
        for name in self._samples:
            self._splits[self._split(name)].append(Task(name, payload=self._samples[name]))

    async def close(self) -> None:
        """End Inspect, which cancels its samples, cleans up sandboxes and completes the log."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                _log.warning("Inspect did not end within %g s and was killed", _END_SECONDS)
            finally:
                # Also what it has started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                await asyncio.gather(*self._readers, return_exceptions=True)
        self._cache.close()

    def splits(self) -> Sequence[str]:
        """``train``, and ``eval`` if it has a share."""
        return ("train", "eval") if self.settings.eval_share else ("train",)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the samples of a split."""
        return self._splits[split]

    def capacity(self) -> int | None:
        """Return how many samples run at a time."""
        return self.settings.max_samples

    async def roll_out(self, task: Task, episode: ModelEndpoint) -> EpisodeOutcome:
        """Run the sample with the model of the episode, and return its scores."""
        endpoint = {**asdict(episode), "sampling": dict(episode.sampling)}
        return _outcome(task, await self._ask(task, {"endpoint": endpoint}))

    def question(self, task: Task) -> str:
        """Return the input of the sample."""
        return self._samples[task.id]["question"]

    def reference(self, task: Task) -> str | None:
        """Return the target of the sample."""
        return self._samples[task.id]["reference"] or None

    async def score(self, task: Task, answer: str) -> EpisodeOutcome | None:
        """Run the sample with a model that always gives this answer."""
        return _outcome(task, await self._ask(task, {"answer": answer}))

    async def probe(self, task: Task, probe: TaskProbe) -> EpisodeOutcome | None:
        """Score an answer; no target if it may be reached with tools alone."""
        if probe != "reference":
            return await super().probe(task, probe)
        target = self.reference(task)
        reply = await self._ask(task, {"answer": target}) if target else {"uses_tools": True}
        return None if reply.get("uses_tools") else _outcome(task, reply)

    async def _ask(self, task: Task, request: Mapping[str, Any]) -> Mapping[str, Any]:
        number = next(self._numbers)
        reply = asyncio.get_running_loop().create_future()
        if self._process is None or self._process.returncode is not None:
            raise EnvironmentFailedError(f"Inspect does not run: {self._last_errors()}")
        self._replies[number] = reply
        try:
            self._send({"number": number, "task": task.id, **request})
            return await asyncio.shield(reply)
        except asyncio.CancelledError:
            self._send({"cancel": number})
            await asyncio.wait((reply,), timeout=_CANCEL_SECONDS)
            raise
        finally:
            self._replies.pop(number, None)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            # Requests are small, and Inspect reads them at once: none are kept back.
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _read_replies(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            reply = json.loads(line)
            waiting = self._replies.get(reply.get("number", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
        await process.wait()
        why = f"Inspect has ended with exit code {process.returncode}: {self._last_errors()}"
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_result({"error": why, "failed": why})

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._errors.append(text)
            _log.info("%s", text)

    def _last_errors(self) -> str:
        return "\n".join(self._errors) or "it printed no error"

    def _split(self, name: str) -> str:
        # By the id, so that a sample keeps its split when others are added.
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        return "eval" if number < self.settings.eval_share * _SHARES else "train"


def _outcome(task: Task, reply: Mapping[str, Any]) -> EpisodeOutcome:
    """:raises EnvironmentFailedError: the sample has no outcome."""
    if "error" in reply:
        raise EnvironmentFailedError(f"sample {task.id!r}: {reply['error']}")
    return EpisodeOutcome(
        reward=reply["reward"],
        components=reply["components"],
        metadata=reply["metadata"],
        answer=reply["answer"],
    )
