"""Helpers to send requests to engines in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from ajet_core.interfaces import (
    Engine,
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    SamplingParams,
)

_ids = count()


@dataclass
class Completion:
    """A complete completion."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    chunks: list[GenerateChunk] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        """The finish reason."""
        return self.chunks[-1].finish_reason

    def add(self, chunk: GenerateChunk) -> None:
        """Add the next chunk; only the last one has a finish reason."""
        assert not self.chunks or self.reason is None
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert chunk.token_ids or chunk.finish_reason is not None
        self.chunks.append(chunk)
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.policy_version] * len(chunk.token_ids)
        self.top += chunk.top_logprobs or []


def make_request(prompt: list[int], *, stream: bool = False, **sampling: object) -> GenerateRequest:
    """Create a request with a unique id, by default for 8 tokens."""
    options: dict[str, object] = {"max_tokens": 8, **sampling}
    return GenerateRequest(f"request-{next(_ids)}", prompt, SamplingParams(**options), stream)  # type: ignore[arg-type]


async def ask(engine: Engine, prompt: list[int], **options: object) -> Completion:
    """Sample a completion to its end."""
    answer = Completion()
    async for chunk in engine.generate(make_request(prompt, **options)):  # type: ignore[arg-type]
        answer.add(chunk)
    assert answer.reason is not None
    return answer


async def begin(
    engine: Engine, prompts: list[list[int]], *, stream: bool, **sampling: object
) -> list[asyncio.Task[Completion]]:
    """Start long completions; return when all have sampled something and none is almost done."""
    first = [asyncio.Event() for _ in prompts]

    async def follow(prompt: list[int], seen: asyncio.Event) -> Completion:
        answer = Completion()
        async for chunk in engine.generate(make_request(prompt, stream=stream, **sampling)):
            answer.add(chunk)
            seen.set()
        return answer

    before = (await engine.stats()).sampled_tokens
    tasks = [
        asyncio.create_task(follow(prompt, seen))
        for prompt, seen in zip(prompts, first, strict=True)
    ]
    if stream:
        await asyncio.gather(*(_seen(seen, task) for seen, task in zip(first, tasks, strict=True)))
    else:
        # All its tokens may arrive at the end.
        await until(engine, lambda stats: stats.sampled_tokens - before >= 4 * len(prompts))
    return tasks


async def _seen(seen: asyncio.Event, task: asyncio.Task[Completion]) -> None:
    """Wait for an event of a task, raising the task's error if it fails."""
    waiting = asyncio.create_task(seen.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()


async def until(engine: Engine, condition: Callable[[EngineStats], bool]) -> None:
    """Yield to other tasks until the engine's counters meet a condition."""
    while not condition(await engine.stats()):  # noqa: ASYNC110
        await asyncio.sleep(0)
