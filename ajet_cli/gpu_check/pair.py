"""The checks of one trainer with one engine, by the interfaces that a server uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ajet_cli.gpu_check.checklist import (
    Checklist,
    FailedCheckError,
    Figures,
    Finding,
    NotApplicableError,
)
from ajet_cli.gpu_check.machine import memory_used
from ajet_cli.gpu_check.work import Gap, Load, make_batch, sample
from ajet_core.interfaces import SealReport, StepReport
from ajet_core.plugin import EngineSpec, PluginManager, TrainerSpec
from ajet_core.protocol import (
    AlgorithmConfig,
    ComponentChoice,
    ModelConfig,
    PreflightConfig,
    RolloutConfig,
    RunConfig,
)
from ajet_core.timeline import Call, Layout
from ajet_installation.settings import Settings
from ajet_server.run.probing import probed
from ajet_server.run.run_setup import ResolvedRun, resolve_run
from ajet_server.run.run_workers import RunWorkers
from ajet_server.run.step import trainer_alone

Dtype = Literal["bfloat16", "float32"]

_LIMITS: dict[Dtype, float] = {
    "bfloat16": PreflightConfig().max_logprob_gap,
    "float32": 1e-3,
}
"""The largest accepted mean difference between the logprobs of engine and trainer, in nats."""

_LEARNING_RATE = 1e-6
_ALONE: Layout = "separate"
_TREES: Layout = "group_tree"


@dataclass(frozen=True, slots=True)
class PairSetup:
    """What all checks of a pair have in common.

    :param directory: for everything that the pair writes.
    :param on_gpu: whether its components must use a GPU.
    """

    settings: Settings
    plugins: PluginManager
    trainer: TrainerSpec
    engine: EngineSpec
    model: Path
    load: Load
    directory: Path
    on_gpu: bool

    @property
    def pair(self) -> str:
        return f"{self.trainer.name}+{self.engine.name}"

    @property
    def channels(self) -> list[str]:
        """The weight channels that both sides have, best first."""
        accepted = self.engine.capabilities.weight_channels
        return [one for one in self.trainer.capabilities.weight_channels if one in accepted]

    def resolve(self, dtype: Dtype, channel: str | None, *, sleeps: bool) -> ResolvedRun:
        """Check a configuration of the pair, as a server does.

        :raises ConfigError: the pair cannot run here.
        """
        slept: dict[str, Any] = {}
        if sleeps and self.engine.sleep_setting:
            slept = {self.engine.sleep_setting: True}
        config = RunConfig(
            model=ModelConfig(path=str(self.model), dtype=dtype),
            engine=ComponentChoice(name=self.engine.name, settings=slept),
            trainer=ComponentChoice(name=self.trainer.name),
            algorithm=AlgorithmConfig(learning_rate=_LEARNING_RATE),
            rollout=RolloutConfig(engine_sleeps=sleeps),
            weight_channel=channel,
        )
        return resolve_run("gpu-check", config, self.settings, self.plugins)


@dataclass(slots=True)
class RunningPair:
    """A trainer and an engine that were started.

    :ivar version: the policy version of the weights that the engine serves.
    """

    setup: PairSetup
    run: ResolvedRun
    workers: RunWorkers
    version: int = 0
    calls: list[Call] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def started(cls, setup: PairSetup, run: ResolvedRun) -> AsyncIterator[RunningPair]:
        """Start both for the length of the context."""
        workers = await RunWorkers.boot(
            run,
            setup.directory,
            None,
            timeout=setup.settings.server.boot_timeout_seconds,
            orphan_seconds=0.0,
        )
        try:
            yield cls(setup, run, workers)
        finally:
            await workers.close()

    async def sample(self, seed: int, *, temperature: float = 1.0) -> list[Call]:
        """Sample the completions of the setup's load."""
        engine, vocabulary = self.workers.engine, self.workers.engine_info.vocab_size
        return await sample(engine, self.setup.load, vocabulary, seed, temperature=temperature)

    async def train(self, calls: Sequence[Call]) -> tuple[StepReport, Gap]:
        """Train a step on calls of the served weights; return it with the gap before it."""
        batch = make_batch(calls, _ALONE, self.version + 1)
        async with trainer_alone(self.run, self.workers):
            report = await self.workers.trainer.step(batch)
        return report, Gap.of(report.logprobs, [call.logprobs for call in calls])

    async def serve(self) -> tuple[SealReport, float, float]:
        """Serve the trainer's weights; return the proof, and seconds of publishing and loading."""
        began = time.perf_counter()
        update = await self.workers.trainer.publish(self.run.channel, self.version + 1)
        published = time.perf_counter()
        update = await probed(self.run, self.workers, update)
        loading = time.perf_counter()
        if self.run.together:
            await self.workers.engine.pause()
        await self.workers.engine.update_weights(update)
        if self.run.together:
            await self.workers.engine.resume()
        loaded = time.perf_counter()
        self.version += 1
        seals = self.run.capabilities.seals
        seal = await self.workers.engine.seal() if seals else SealReport(self.version)
        return seal, published - began, loaded - loading


async def check_pair(checklist: Checklist, setup: PairSetup) -> None:
    """Make all checks of a pair."""
    first, *others = setup.channels
    await _check_dtype(checklist, setup, "bfloat16", first)
    await _check_dtype(checklist, setup, "float32", first)
    for channel in others:
        await checklist.check(f"channel {channel}", setup.pair, partial(_channel, setup, channel))
    await checklist.check("sleep", setup.pair, partial(_sleep, setup, first))


async def _check_dtype(checklist: Checklist, setup: PairSetup, dtype: Dtype, channel: str) -> None:
    """Start a pair, and check everything that a step consists of."""
    limit = _LIMITS[dtype]
    async with AsyncExitStack() as stack:
        started: list[RunningPair] = []

        async def start() -> Finding:
            run = await asyncio.to_thread(setup.resolve, dtype, channel, sleeps=False)
            pair = await stack.enter_async_context(RunningPair.started(setup, run))
            started.append(pair)
            return await _started(pair)

        if not await checklist.check(f"start {dtype}", setup.pair, start):
            return
        (pair,) = started
        if await checklist.check(f"generate {dtype}", setup.pair, partial(_generate, pair)):
            await checklist.check(f"logprobs {dtype}", setup.pair, partial(_logprobs, pair, limit))
            await checklist.check(f"weights {channel}", setup.pair, partial(_weights, pair, limit))
            await checklist.check(f"trees {dtype}", setup.pair, partial(_trees, pair, limit))


async def _started(pair: RunningPair) -> Finding:
    trainer = pair.workers.trainer_info
    memory = await memory_used()
    figures: Figures = {
        "parameters": trainer.parameters,
        "device": trainer.device,
        "channel": pair.run.channel,
        "trees": trainer.trees,
        "token_budget": trainer.token_budget,
        "memory_gib": memory,
    }
    finding = f"{trainer.parameters / 1e6:.1f} M parameters on {trainer.device}{_in_use(memory)}"
    if pair.setup.on_gpu and not trainer.device.startswith("cuda"):
        raise FailedCheckError(f"{finding}, although the machine has a GPU", figures)
    return finding, figures


async def _generate(pair: RunningPair) -> Finding:
    load = pair.setup.load
    # The first requests compile kernels and fill allocators.
    await pair.sample(0)
    began = time.perf_counter()
    pair.calls = await pair.sample(1)
    seconds = time.perf_counter() - began
    sampled = sum(len(call.sampled_ids) for call in pair.calls)
    figures: Figures = {
        "requests": load.requests,
        "prompt_tokens": load.prompt_tokens,
        "new_tokens": load.new_tokens,
        "tokens_per_second": round(sampled / seconds, 1),
        "memory_gib": await memory_used(),
    }
    if sampled < load.requests:
        raise FailedCheckError(f"{load.requests} requests gave only {sampled} tokens", figures)
    return f"{sampled / seconds:,.0f} tokens/s with {load.requests} requests at a time", figures


async def _logprobs(pair: RunningPair, limit: float) -> Finding:
    report, gap = await pair.train(pair.calls)
    memory = await memory_used()
    rate = report.tokens_processed / report.seconds if report.seconds else 0.0
    figures: Figures = {
        **_gap_figures(gap),
        "limit": limit,
        "trainer_tokens_per_second": round(rate, 1),
        "loss": report.metrics.get("loss"),
        "grad_norm": report.metrics.get("grad_norm"),
        "memory_gib": memory,
    }
    finding = f"{gap}; trained {rate:,.0f} tokens/s{_in_use(memory)}"
    return _within(gap, limit, finding, figures)


async def _weights(pair: RunningPair, limit: float) -> Finding:
    """Check that the engine serves the weights after a step, and not those before it."""
    seal, publishing, loading = await pair.serve()
    _, gap = await pair.train(await pair.sample(2))
    figures: Figures = {
        **_gap_figures(gap),
        "publish_seconds": round(publishing, 3),
        "load_seconds": round(loading, 3),
        "proof": seal.proof,
        "tensors": seal.tensors,
    }
    finding = (
        f"published in {publishing:.2f} s, loaded in {loading:.2f} s, proof: {seal.proof}; {gap}"
    )
    return _within(gap, limit, finding, figures)


async def _trees(pair: RunningPair, limit: float) -> Finding:
    """Compare a batch whose prompts are computed once for each group with the same one by one."""
    if not pair.workers.trainer_info.trees:
        raise NotApplicableError("the trainer computes each call by itself")
    if not pair.run.rehearses:
        raise NotApplicableError("the trainer cannot compute a batch without training on it")
    calls = await pair.sample(3)
    reports, seconds = {}, {}
    async with trainer_alone(pair.run, pair.workers):
        for layout in (_ALONE, _TREES):
            batch = make_batch(calls, layout, pair.version + 1)
            # The second time counts: the first compiles kernels.
            for _ in range(2):
                began = time.perf_counter()
                reports[layout] = await pair.workers.trainer.rehearse(batch)
                seconds[layout] = time.perf_counter() - began
    alone, prefix = reports[_ALONE], reports[_TREES]
    gap = Gap.of(prefix.logprobs, alone.logprobs)
    figures: Figures = {
        **_gap_figures(gap),
        "tokens": alone.tokens_processed,
        "tree_tokens": prefix.tokens_processed,
        "seconds": round(seconds[_ALONE], 3),
        "tree_seconds": round(seconds[_TREES], 3),
        "grad_norm": alone.metrics.get("grad_norm"),
        "tree_grad_norm": prefix.metrics.get("grad_norm"),
    }
    finding = (
        f"{alone.tokens_processed / max(1, prefix.tokens_processed):.1f} times fewer tokens, "
        f"{seconds[_ALONE] / seconds[_TREES]:.1f} times faster; {gap}"
    )
    return _within(gap, limit, finding, figures)


async def _channel(setup: PairSetup, channel: str) -> Finding:
    run = await asyncio.to_thread(setup.resolve, "bfloat16", channel, sleeps=False)
    async with RunningPair.started(setup, run) as pair:
        await pair.train(await pair.sample(1))
        return await _weights(pair, _LIMITS["bfloat16"])


async def _sleep(setup: PairSetup, channel: str) -> Finding:
    """Check that a sleeping engine frees memory, and afterwards answers as before."""
    if not setup.engine.capabilities.sleep:
        raise NotApplicableError("the engine cannot free its memory while a step is trained")
    apart = next((one for one in setup.channels if one != "in_process"), channel)
    run = await asyncio.to_thread(setup.resolve, "bfloat16", apart, sleeps=True)
    async with RunningPair.started(setup, run) as pair:
        before = await pair.sample(1, temperature=0.0)
        awake = await memory_used()
        await pair.workers.engine.sleep()
        asleep = await memory_used()
        await pair.workers.engine.wake()
        after = await pair.sample(1, temperature=0.0)
        gap = Gap.of([c.logprobs[:1] for c in after], [c.logprobs[:1] for c in before])
        await pair.train(await pair.sample(2))
        await pair.serve()
        await pair.sample(3)
    figures: Figures = {"awake_gib": awake, "asleep_gib": asleep, **_gap_figures(gap)}
    memory = "" if awake is None else f"{awake} GiB in use awake, {asleep} GiB asleep; "
    finding = f"{memory}first tokens after waking: {gap}"
    if awake is not None and asleep is not None and setup.on_gpu and asleep >= awake:
        raise FailedCheckError(f"sleeping frees no memory: {finding}", figures)
    return _within(gap, _LIMITS["bfloat16"], finding, figures)


def _within(gap: Gap, limit: float, finding: str, figures: Figures) -> Finding:
    """Return the finding if the mean gap is within the limit.

    :raises FailedCheckError: it is not, or nothing could be compared.
    """
    if not gap.tokens:
        raise FailedCheckError(f"no logprobs to compare; {finding}", figures)
    # A comparison with NaN is false.
    if not gap.mean <= limit:
        raise FailedCheckError(f"above the limit of {limit:g}: {finding}", figures)
    return finding, figures


def _gap_figures(gap: Gap) -> dict[str, float]:
    return {"gap_mean": gap.mean, "gap_max": gap.largest, "gap_tokens": gap.tokens}


def _in_use(memory: float | None) -> str:
    return "" if memory is None else f", {memory} GiB in use"
