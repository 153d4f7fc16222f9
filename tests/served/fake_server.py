"""A model server without a model, in this process: it samples by its weights, and can fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ajet_core.errors import EngineError
from ajet_core.interfaces import (
    ComponentSettings,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    WeightUpdate,
    WorkerContext,
)
from ajet_core.protocol.run import ModelConfig
from ajet_engines.served import (
    Launched,
    ModelServer,
    Piece,
    Replica,
    ServedEngine,
    ServerGoneError,
)

VOCAB, CONTEXT = 100, 400


@dataclass
class FakeServer(ModelServer):
    """Samples one token in each turn of the event loop: the number of its weights.

    :ivar begins: requests sample nothing before it is set.
    :ivar hangs: it samples nothing more, and says that it is not well.
    :ivar refuses: it ends requests before their first token.
    :ivar loads: what to do at the next loads: ``""`` takes the weights, ``"refuse"``, ``"die"``,
        ``"last"`` until it is given up, ``"stale"``, ``"swapped"`` and ``"half_loaded"`` take none,
        others and half of them, and say nothing of it.
    :ivar tells: it tells checksums.
    :ivar scores: it tells logprobs of a probe.
    """

    weights: int = 0
    dead: bool = False
    hangs: bool = False
    refuses: bool = False
    halted: bool = False
    running: int = 0
    sampled: int = 0
    requests: list[GenerateRequest] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    closed: bool = False
    tells: bool = True
    scores: bool = False
    halves: tuple[int, int] = (0, 0)
    begins: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.begins.set()

    async def healthy(self) -> bool:
        return not (self.dead or self.hangs)

    async def prepare(self) -> EngineInfo:
        self.check()
        return EngineInfo(CONTEXT, VOCAB)

    async def sample(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        self.requests.append(request)
        self.running += 1
        try:
            await self.begins.wait()
            for left in range(request.sampling.max_tokens, 0, -1):
                await asyncio.sleep(0)
                self.check()
                if self.halted or self.refuses:
                    return
                if self.hangs:
                    await self.ended.wait()
                    self.check()
                self.sampled += 1
                yield Piece([self.weights], [-1.0], "length" if left == 1 else None)
        finally:
            self.running -= 1

    async def halt(self) -> None:
        self.check()
        self.halted = True
        if self.hangs:
            await self.ended.wait()
            self.check()
        await asyncio.sleep(0)

    async def go_on(self) -> None:
        self.check()
        self.halted = False

    async def load(self, update: WeightUpdate) -> None:
        assert self.halted
        assert self.running == 0
        match self.loads.pop(0) if self.loads else "":
            case "refuse":
                raise EngineError("refused")
            case "die":
                self.dead = True
            case "last":
                await self.ended.wait()
                raise EngineError("cut off")
            case "stale":
                return
            case "swapped":
                self.halves = (-1, -1)
                return
            case "half_loaded":
                self.halves = (int(update.location), self.weights)
                return
        self.check()
        self.weights = int(update.location)
        self.halves = (self.weights, self.weights)

    async def checksums(self) -> dict[str, str] | None:
        self.check()
        return {"weights": str(self.weights)} if self.tells else None

    async def score(self, token_ids: list[int]) -> list[float] | None:
        assert self.halted
        self.check()
        return said_of_probe(*self.halves, len(token_ids) - 1) if self.scores else None

    async def stats(self) -> EngineStats:
        self.check()
        return EngineStats(running=self.running, sampled_tokens=self.sampled)

    async def metrics(self) -> str:
        self.check()
        return (
            "# HELP fake_sampled Tokens.\n# TYPE fake_sampled counter\n"
            f'fake_sampled_total{{model="m"}} {self.sampled}\n'
        )

    async def sleep(self) -> None:
        self.check()

    async def wake(self) -> None:
        self.check()

    async def close(self) -> None:
        self.closed = True
        self.dead |= self.hangs
        self.ended.set()

    def check(self) -> None:
        if self.dead:
            raise ServerGoneError("it is dead")


class FakeEngine(ServedEngine):
    """Its weights are numbers, which are the names of their directories.

    :ivar plan: what becomes of the next launches: an error's text, or "" for a server.
    """

    name = "fake"
    weight_channels: ClassVar[tuple[str, ...]] = ("safetensors_dir",)
    max_top_logprobs = 0

    def __init__(
        self, directory: Path, replicas: int, *, tells: bool = True, scores: bool = False
    ) -> None:
        super().__init__(
            ComponentSettings(),
            WorkerContext(directory),
        )
        self._started = replicas
        self.servers: list[FakeServer] = []
        self.plan: list[str] = []
        self._tells, self._scores = tells, scores

    def replicas(self) -> int:
        return self._started

    async def launch(self, replica: Replica, model: ModelConfig) -> Launched:
        if self.plan and (problem := self.plan.pop(0)):
            raise EngineError(problem)
        server = FakeServer(tells=self._tells, scores=self._scores)
        self.servers.append(server)
        return Launched(server, None)

    async def check_update(self, update: WeightUpdate) -> None:
        if not update.location.isdigit():
            raise EngineError("there are no weights")


def said_of_probe(first: int, second: int, count: int) -> list[float]:
    """[count] logprobs by a model of two halves, each of some weights."""
    rngs = [random.Random(half) for half in (first, second)]
    return [-5 + sum(rng.gauss(0, 0.1) for rng in rngs) for _ in range(count)]


async def started(
    directory: Path, replicas: int = 1, *, tells: bool = True, scores: bool = False
) -> FakeEngine:
    engine = FakeEngine(directory, replicas, tells=tells, scores=scores)
    await engine.start(ModelConfig(path="0"))
    return engine
