"""An engine with a model of a cache of keys and values, in real time, and an idle trainer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from ajet_core.interfaces import (
    EngineCapabilities,
    EngineInfo,
    EngineStats,
    GenerateChunk,
    GenerateRequest,
    TrainerCapabilities,
    TrainerInfo,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.plugin.components import EngineSpec, TrainerSpec
from ajet_core.plugin.spec import hookimpl
from ajet_core.protocol import AlgorithmConfig, ModelConfig
from ajet_testing.scripted_engine import WEIGHT_CHANNELS, ScriptedEngine, ScriptedEngineSettings
from ajet_testing.scripted_trainer import ScriptedTrainer

BLOCK = 16


@hookimpl
def ajet_register_engines() -> Sequence[EngineSpec]:
    """Register the engine ``kv_model``."""
    return (
        EngineSpec(
            name="kv_model",
            target="kv_engine:KvEngine",
            settings="kv_engine:KvEngineSettings",
            summary="Takes the time of an engine with a cache; for a benchmark",
            capabilities=EngineCapabilities(weight_channels=WEIGHT_CHANNELS, seals=True),
        ),
    )


@hookimpl
def ajet_register_trainers() -> Sequence[TrainerSpec]:
    """Register the trainer ``idle``."""
    return (
        TrainerSpec(
            name="idle",
            target="kv_engine:IdleTrainer",
            settings="ajet_testing.scripted_trainer:ScriptedTrainerSettings",
            summary="Publishes the model unchanged; for a benchmark",
            capabilities=TrainerCapabilities(
                weight_channels=("safetensors_dir",), algorithm_fields=frozenset()
            ),
        ),
    )


class IdleTrainer(ScriptedTrainer):
    """The scripted trainer, which publishes the directory of the model, for real engines."""

    def start(self, model: ModelConfig, algorithm: AlgorithmConfig) -> TrainerInfo:
        """Keep the path of the model."""
        self._path = model.path
        return super().start(model, algorithm)

    def publish(self, channel: str, policy_version: int) -> WeightUpdate:
        """Publish the model's own weights as a new version."""
        return WeightUpdate(channel, policy_version, self._path)


class KvEngineSettings(ScriptedEngineSettings):
    """Settings of the engine ``kv_model``.

    :param cache_tokens: tokens whose keys and values one replica holds.
    :param step_seconds: duration of a forward pass, for each of its requests, and for a token of a
        prompt.
    :param lost_at: the second replica is lost when the weights of this version are loaded.
    """

    cache_tokens: int = 24_000
    step_seconds: tuple[float, float, float] = (0.002, 0.000_05, 0.000_05)
    replicas: Annotated[int, Field(ge=1)] = 1
    lost_at: int | None = None


@dataclass(eq=False)
class Running:
    """A request on a replica.

    :param blocks: keys of its prompt's whole blocks; each covers all tokens up to its end.
    """

    request: GenerateRequest
    blocks: list[int]
    left: int
    done: asyncio.Future[int]
    cached: int = 0
    grown: int = 0


@dataclass
class Replica:
    """A server that samples one token of each running request in a pass.

    Blocks that no request uses stay in the cache until their place is needed; the one that was used
    least recently goes first.
    """

    capacity: int
    pass_seconds: tuple[float, float, float]
    waiting: deque[Running] = field(default_factory=deque)
    running: list[Running] = field(default_factory=list)
    used: dict[int, int] = field(default_factory=dict)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    reserved: int = 0

    def found(self, blocks: list[int]) -> int:
        """Return how many of a prompt's blocks are in the cache, from its beginning on."""
        for count, block in enumerate(blocks):
            if block not in self.used and block not in self.idle:
                return count
        return len(blocks)

    def forget(self) -> None:
        """Empty the cache."""
        self.idle.clear()

    def advance(self) -> float:
        """Start what fits, sample a token of each request, and return how long that takes."""
        prompt_tokens = 0
        while self.waiting:
            one = self.waiting[0]
            extra = -(-one.left // BLOCK) + 1
            found = self.found(one.blocks)
            new = [block for block in one.blocks if block not in self.used]
            if len(self.used) + self.reserved + len(new) + extra > self.capacity:
                break
            self.waiting.popleft()
            for block in one.blocks:
                self.idle.pop(block, None)
                self.used[block] = self.used.get(block, 0) + 1
            self.reserved += extra
            one.grown = extra
            while len(self.used) + self.reserved + len(self.idle) > self.capacity:
                self.idle.popitem(last=False)
            one.cached = min(found * BLOCK, len(one.request.prompt_ids) - 1)
            prompt_tokens += len(one.request.prompt_ids) - one.cached
            self.running.append(one)
        busy = len(self.running)
        for one in list(self.running):
            one.left -= 1
            if one.left <= 0 or one.done.done():
                self.end(one)
        each_pass, each_request, each_token = self.pass_seconds
        return each_pass + each_request * busy + each_token * prompt_tokens

    def end(self, one: Running) -> None:
        """Take a request off, and leave its blocks in the cache."""
        self.running.remove(one)
        self.reserved -= one.grown
        # The blocks at the end of a prompt go first, as in vLLM.
        for block in reversed(one.blocks):
            self.used[block] -= 1
            if not self.used[block]:
                del self.used[block]
                self.idle[block] = None
        if not one.done.done():
            one.done.set_result(one.cached)

    def keep(self, blocks: list[int]) -> None:
        """Put the blocks of an answer into the cache."""
        for block in blocks:
            if block not in self.used and block not in self.idle:
                self.idle[block] = None


class KvEngine(ScriptedEngine):
    """The scripted engine; its answers take the time of real replicas with caches."""

    def __init__(self, settings: KvEngineSettings, context: WorkerContext) -> None:
        super().__init__(settings, context)
        self._options = settings
        capacity = settings.cache_tokens // BLOCK
        self._replicas = [
            Replica(capacity, settings.step_seconds) for _ in range(settings.replicas)
        ]
        self._loops: list[asyncio.Task[None]] = []
        self._lost: set[int] = set()
        self._cached = 0
        self._epoch = 0

    async def start(self, model: ModelConfig) -> EngineInfo:
        """Start the replicas."""
        self._loops = [asyncio.create_task(self._run(one)) for one in self._replicas]
        return await super().start(model)

    async def _run(self, replica: Replica) -> None:
        clock = asyncio.get_running_loop().time
        free_at = clock()
        while True:
            await self._going.wait()
            if not (replica.running or replica.waiting):
                await asyncio.sleep(0.001)
                free_at = clock()
                continue
            # Sleeps are late; the next one is shorter then.
            free_at = max(free_at + replica.advance(), clock() - 0.05)
            await asyncio.sleep(max(0.0, free_at - clock()))

    def _blocks(self, ids: list[int]) -> list[int]:
        keys, key = [], self._epoch
        for start in range(0, len(ids) - len(ids) % BLOCK, BLOCK):
            key = hash((key, *ids[start : start + BLOCK]))
            keys.append(key)
        return keys

    async def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Answer when a replica has sampled the answer."""
        ids = list(request.prompt_ids)
        blocks = self._blocks(ids)
        answer = [chunk async for chunk in super().generate(request)]
        count = sum(len(chunk.token_ids) for chunk in answer)
        while True:
            up = [one for i, one in enumerate(self._replicas) if i not in self._lost]
            replica = max(up, key=lambda one: (one.found(blocks), -len(one.running)))
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            replica.waiting.append(Running(request, blocks, count, done))
            try:
                cached = await done
                break
            except ConnectionError:
                continue
        sampled = [token for chunk in answer for token in chunk.token_ids]
        replica.keep(self._blocks([*ids, *sampled[:-1]]))
        self._cached += cached
        for chunk in answer[:-1]:
            yield chunk
        yield replace(answer[-1], cached_tokens=cached)

    async def update_weights(self, update: WeightUpdate) -> None:
        """Take over a version, empty the caches, and lose a replica if it is time."""
        await super().update_weights(update)
        self._epoch = update.policy_version
        for replica in self._replicas:
            replica.forget()
        if self._options.lost_at is not None and update.policy_version >= self._options.lost_at:
            self._lose(len(self._replicas) - 1)

    def _lose(self, number: int) -> None:
        if number in self._lost or not number:
            return
        self._lost.add(number)
        replica = self._replicas[number]
        self._loops[number].cancel()
        for one in [*replica.running, *replica.waiting]:
            if not one.done.done():
                one.done.set_exception(ConnectionError("the replica is lost"))

    async def stats(self) -> EngineStats:
        """Return counters."""
        return replace(await super().stats(), cached_tokens=self._cached)
