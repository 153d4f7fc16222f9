"""The checks of one trainer with one engine, by the interfaces that a server uses."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from ajet_core.errors import AjetError
from ajet_core.interfaces import SealReport, StepReport, WeightUpdate
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
from ajet_server.run.channels import DELTA, common_channels
from ajet_server.run.probing import probed
from ajet_server.run.run_setup import ResolvedRun, resolve_run
from ajet_server.run.run_workers import RunWorkers
from ajet_server.run.step import trainer_alone

Dtype = Literal["bfloat16", "float32"]

_LIMITS: dict[Dtype, float] = {
    "bfloat16": PreflightConfig().max_logprob_gap,
    # vLLM's attention multiplies with the precision of TF32: 0.00096 on an H100.
    "float32": 3e-3,
}
"""The largest accepted mean difference between the logprobs of engine and trainer, in nats."""
_NORM_LIMITS: dict[Dtype, float] = {"bfloat16": 1e-2, "float32": 1e-4}
"""The largest accepted relative difference between the gradient norms of two layouts."""
_STALE = 3.0
"""Weights are those after a step if the step changed the logprobs so many times more than engine
and trainer differ."""
_ENGINE_MEMORY = 0.3
"""Fraction of a GPU's memory for an engine that shares it with a trainer."""

_ALONE: Layout = "separate"
_TREES: Layout = "group_tree"
_COLLECTIVE = "collective"
_BOOT_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class PairSetup:
    """What all checks of a pair have in common.

    :param directory: for everything that the pair writes; emptied after each start.
    :param gpus: number of GPUs; above 0, components must use them.
    """

    settings: Settings
    plugins: PluginManager
    trainer: TrainerSpec
    engine: EngineSpec
    model: Path
    load: Load
    directory: Path
    gpus: int

    @property
    def pair(self) -> str:
        return f"{self.trainer.name}+{self.engine.name}"

    def resolve(self, dtype: Dtype, channel: str | None, *, sleeps: bool) -> ResolvedRun:
        """Check a configuration of the pair, as a server does.

        :raises ConfigError: the pair cannot run here.
        """
        chosen: dict[str, Any] = {}
        if sleeps and self.engine.sleep_setting:
            chosen[self.engine.sleep_setting] = True
        if self.gpus and self.engine.memory_setting:
            chosen[self.engine.memory_setting] = _ENGINE_MEMORY
        config = RunConfig(
            model=ModelConfig(path=str(self.model), dtype=dtype),
            engine=ComponentChoice(name=self.engine.name, settings=chosen),
            trainer=ComponentChoice(name=self.trainer.name),
            algorithm=AlgorithmConfig(learning_rate=self.load.learning_rate),
            rollout=RolloutConfig(engine_sleeps=sleeps),
            weight_channel=channel,
        )
        return resolve_run("gpu-check", config, self.settings, self.plugins)


@dataclass(slots=True)
class RunningPair:
    """A trainer and an engine that were started.

    :ivar version: the policy version of the weights that the engine serves.
    :ivar calls: the last sampled calls that were trained on.
    """

    setup: PairSetup
    run: ResolvedRun
    workers: RunWorkers
    version: int = 0
    calls: list[Call] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def started(
        cls, setup: PairSetup, dtype: Dtype, channel: str | None = None, *, sleeps: bool = False
    ) -> AsyncIterator[RunningPair]:
        """Start both for the length of the context.

        :raises ConfigError: they cannot run here.
        :raises WorkerBootError: one did not start; the message has the end of its log.
        """
        run = await asyncio.to_thread(setup.resolve, dtype, channel, sleeps=sleeps)
        try:
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
        finally:
            # Published weights take gigabytes.
            await asyncio.to_thread(shutil.rmtree, setup.directory, ignore_errors=True)

    async def sample(self, seed: int, *, temperature: float = 1.0) -> list[Call]:
        """Sample the completions of the setup's load."""
        engine, vocabulary = self.workers.engine, self.workers.engine_info.vocab_size
        return await sample(engine, self.setup.load, vocabulary, seed, temperature=temperature)

    async def train(self, calls: list[Call]) -> tuple[StepReport, Gap, WeightUpdate]:
        """Train a step on calls of the served weights, and publish, as a server does.

        :return: the report, the gap before the step, and the new weights, which are not served.
        """
        batch = make_batch(calls, _ALONE, self.version + 1)
        async with trainer_alone(self.run, self.workers):
            report = await self.workers.trainer.step(batch)
            update = await self.workers.trainer.publish(self.run.channel, self.version + 1)
            update = await probed(self.run, self.workers, update)
        self.calls = calls
        return report, _gap(report, calls), update

    async def serve(self, update: WeightUpdate) -> tuple[SealReport, float]:
        """Serve published weights; return the proof, and the seconds that it took."""
        began = time.perf_counter()
        if self.run.together:
            await self.workers.engine.pause()
        await self.workers.engine.update_weights(update)
        if self.run.together:
            await self.workers.engine.resume()
        seconds = time.perf_counter() - began
        self.version = update.policy_version
        seals = self.run.capabilities.seals
        return await self.workers.engine.seal() if seals else SealReport(self.version), seconds

    async def rehearse(self, calls: Sequence[Call], layout: Layout) -> StepReport:
        """Compute a batch of calls without training on it."""
        batch = make_batch(calls, layout, self.version + 1)
        async with trainer_alone(self.run, self.workers):
            return await self.workers.trainer.rehearse(batch)


class PairChecks:
    """The checks of a pair, in stages.

    After a check that broke, the state of engine and trainer is unknown, so that the rest of its
    stage is not made.
    """

    def __init__(self, checklist: Checklist, setup: PairSetup) -> None:
        self._checklist = checklist
        self._setup = setup
        self._channel: str | None = None

    async def of_dtype(self, dtype: Dtype) -> None:
        """Start the pair, and check everything that a step consists of."""
        async with AsyncExitStack() as stack:
            started: list[RunningPair] = []

            async def start() -> Finding:
                started.append(
                    await stack.enter_async_context(RunningPair.started(self._setup, dtype))
                )
                self._channel = started[0].run.channel
                return await _started(started[0])

            boot_seconds = self._setup.settings.server.boot_timeout_seconds + _BOOT_GRACE
            await self._check(f"start {dtype}", start, boot_seconds)
            for name, work in (
                ("generate", _generate),
                ("logprobs", _logprobs),
                ("weights", _weights),
                ("trees", _trees),
            ):
                if not started or not await self._check(
                    f"{name} {dtype}", partial(work, started[0], dtype)
                ):
                    return

    async def of_memory_and_channels(self) -> None:
        """Check sleep, and each weight channel that was not used so far."""
        trainer, engine = self._setup.trainer, self._setup.engine
        for channel in common_channels(trainer, engine, together=False):
            if channel != self._channel:
                await self._check(
                    f"channel {channel}", partial(_other_channel, self._setup, channel)
                )
        await self._check("sleep", partial(_sleep, self._setup))

    async def _check(
        self, name: str, work: Callable[[], Awaitable[Finding]], *limit: float
    ) -> bool:
        """Make a check; return whether others of the same pair can follow."""
        return not (await self._checklist.check(name, self._setup.pair, work, *limit)).broke


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
    if pair.setup.gpus and not trainer.device.startswith("cuda"):
        raise FailedCheckError(f"{finding}, although the machine has a GPU", figures)
    return finding, figures


async def _generate(pair: RunningPair, dtype: Dtype) -> Finding:
    del dtype
    load = pair.setup.load
    # The first requests compile kernels and fill allocators.
    await pair.sample(0)
    began = time.perf_counter()
    calls = await pair.sample(1)
    seconds = time.perf_counter() - began
    sampled = sum(len(call.sampled_ids) for call in calls)
    figures: Figures = {
        "requests": load.requests,
        "prompt_tokens": load.prompt_tokens,
        "new_tokens": load.new_tokens,
        "tokens_per_second": round(sampled / seconds, 1),
        "memory_gib": await memory_used(),
    }
    if sampled != load.tokens:
        raise FailedCheckError(f"{sampled} tokens instead of {load.tokens}", figures)
    return f"{sampled / seconds:,.0f} tokens/s with {load.requests} requests at a time", figures


async def _logprobs(pair: RunningPair, dtype: Dtype) -> Finding:
    calls = await pair.sample(2)
    report, gap, update = await pair.train(calls)
    await pair.serve(update)
    memory = await memory_used()
    rate = report.tokens_processed / report.seconds if report.seconds else 0.0
    figures: Figures = {
        **_gap_figures(gap),
        "limit": _LIMITS[dtype],
        "trainer_tokens_per_second": round(rate, 1),
        "loss": report.metrics.get("loss"),
        "grad_norm": report.metrics.get("grad_norm"),
        "memory_gib": memory,
    }
    finding = f"{gap}; the first step trained {rate:,.0f} tokens/s{_in_use(memory)}"
    return _within(gap, pair.setup.load, _LIMITS[dtype], finding, figures)


async def _weights(pair: RunningPair, dtype: Dtype) -> Finding:
    """Check that the engine serves the weights after a step, and not those before it."""
    load = pair.setup.load
    before = await pair.sample(3)
    began = time.perf_counter()
    report, _, update = await pair.train(before)
    trained = time.perf_counter() - began
    seal, loading = await pair.serve(update)
    rate = report.tokens_processed / report.seconds if report.seconds else 0.0
    # How far the step moved the trainer's logprobs, and how far the engine's are from those now.
    changed = None
    if pair.run.rehearses:
        changed = _gap(await pair.rehearse(before, _ALONE), before)
    after = await pair.sample(4)
    _, gap, update = await pair.train(after)
    await pair.serve(update)
    figures: Figures = {
        **_gap_figures(gap),
        "changed_mean": None if changed is None else changed.mean,
        "step_and_publish_seconds": round(trained, 3),
        "load_seconds": round(loading, 3),
        "trainer_tokens_per_second": round(rate, 1),
        "proof": seal.proof,
        "tensors": seal.tensors,
    }
    finding = (
        f"step and publish {trained:.2f} s, load {loading:.2f} s, proof: {seal.proof}; {gap}; "
        f"trained {rate:,.0f} tokens/s"
    )
    if changed is not None and not changed.mean > _STALE * gap.mean:
        raise FailedCheckError(
            f"the engine may still serve the weights before the step, which changed the logprobs "
            f"by {changed.mean:.2g} nats: {finding}",
            figures,
        )
    return _within(gap, load, _LIMITS[dtype], finding, figures)


async def _trees(pair: RunningPair, dtype: Dtype) -> Finding:
    """Compare a batch whose prompts are computed once for each group with the same one by one."""
    if not pair.setup.trainer.capabilities.trees:
        raise NotApplicableError("the trainer computes each call by itself")
    if not pair.run.rehearses:
        raise NotApplicableError("the trainer cannot compute a batch without training on it")
    if not pair.workers.trainer_info.trees:
        raise FailedCheckError(
            "the trainer supports trees, but refuses them for this model on this device: they "
            "were not exact when it started",
            {"trees": False},
        )
    calls = await pair.sample(5)
    reports, seconds = {}, {}
    for layout in (_ALONE, _TREES):
        # The second time counts: the first compiles kernels.
        for _ in range(2):
            began = time.perf_counter()
            reports[layout] = await pair.rehearse(calls, layout)
            seconds[layout] = time.perf_counter() - began
    alone, trees = reports[_ALONE], reports[_TREES]
    gap = Gap.of(trees.logprobs, alone.logprobs)
    norm, tree_norm = (one.metrics.get("grad_norm", 0.0) for one in (alone, trees))
    figures: Figures = {
        **_gap_figures(gap),
        "tokens": alone.tokens_processed,
        "tree_tokens": trees.tokens_processed,
        "seconds": round(seconds[_ALONE], 3),
        "tree_seconds": round(seconds[_TREES], 3),
        "grad_norm": norm,
        "tree_grad_norm": tree_norm,
    }
    finding = (
        f"{alone.tokens_processed / max(1, trees.tokens_processed):.1f} times fewer tokens, "
        f"{seconds[_ALONE] / seconds[_TREES]:.1f} times faster; {gap}"
    )
    if not abs(norm - tree_norm) <= _NORM_LIMITS[dtype] * norm:
        raise FailedCheckError(f"gradient norms {norm:g} and {tree_norm:g}: {finding}", figures)
    return _within(gap, pair.setup.load, _LIMITS[dtype], finding, figures)


async def _other_channel(setup: PairSetup, channel: str) -> Finding:
    if channel == _COLLECTIVE and setup.gpus == 1:
        raise NotApplicableError("NCCL needs a GPU for the engine and another for the trainer")
    try:
        async with RunningPair.started(setup, "bfloat16", channel) as pair:
            return await _weights(pair, "bfloat16")
    except AjetError as error:
        if channel == DELTA and "is not installed" in error.message:
            raise NotApplicableError(error.message) from None
        raise


async def _sleep(setup: PairSetup) -> Finding:
    """Check that a sleeping engine frees memory, and afterwards answers as before."""
    if not setup.engine.capabilities.sleep:
        raise NotApplicableError("the engine cannot free its memory while a step is trained")
    async with RunningPair.started(setup, "bfloat16", sleeps=True) as pair:
        return await slept(pair)


async def slept(pair: RunningPair) -> Finding:
    """Let a pair's engine sleep and wake, and then train and serve a step, asleep meanwhile."""
    before = await pair.sample(1, temperature=0.0)
    awake = await memory_used()
    await pair.workers.engine.sleep()
    asleep = await memory_used()
    await pair.workers.engine.wake()
    after = await pair.sample(1, temperature=0.0)
    # Later tokens may differ if the first ones do by rounding.
    first = Gap.of([c.logprobs[:1] for c in after], [c.logprobs[:1] for c in before])
    _, figures = trained = await _weights(pair, "bfloat16")
    figures = {"awake_gib": awake, "asleep_gib": asleep, "first_gap_max": first.largest, **figures}
    memory = "" if awake is None else f"{awake} GiB in use awake, {asleep} GiB asleep; "
    finding = f"{memory}first tokens after waking: {first}; after a step: {trained[0]}"
    if not first.mean <= _LIMITS["bfloat16"]:
        raise FailedCheckError(f"the engine answers otherwise after waking: {finding}", figures)
    if awake is not None and asleep is not None and pair.setup.gpus and asleep >= awake:
        raise FailedCheckError(f"sleeping frees no memory: {finding}", figures)
    return finding, figures


def _gap(report: StepReport, calls: Sequence[Call]) -> Gap:
    return Gap.of(report.logprobs, [call.logprobs for call in calls])


def _within(gap: Gap, load: Load, limit: float, finding: str, figures: Figures) -> Finding:
    """Return the finding if the mean gap is within the limit.

    :raises FailedCheckError: it is not, or not all tokens could be compared.
    """
    if gap.tokens != load.tokens:
        raise FailedCheckError(f"not all {load.tokens} tokens have logprobs: {finding}", figures)
    # A comparison with NaN is false.
    if not gap.mean <= limit:
        raise FailedCheckError(f"above the limit of {limit:g}: {finding}", figures)
    return finding, figures


def _gap_figures(gap: Gap) -> dict[str, float]:
    return {"gap_mean": gap.mean, "gap_max": gap.largest, "gap_tokens": gap.tokens}


def _in_use(memory: float | None) -> str:
    return "" if memory is None else f", {memory} GiB in use"
