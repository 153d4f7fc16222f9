"""``ajet demo --two-models``: two tiny models on two servers learn to walk together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from agentjet.client import AsyncSwarm, RunnerReport, SwarmEpisode, SwarmOutcome
from agentjet.local import LocalServer
from ajet_core.errors import AjetError, ConfigError
from ajet_core.files import read_json
from ajet_core.protocol import ServerState, ServerStatus
from ajet_demo.display import Display
from ajet_demo.orchestrate import (
    METRICS_FILE,
    MODEL_DIR,
    PLOT_FILE,
    TRAINED_DIR,
    DemoOptions,
    adopt,
    check_packages,
    terminate_as_interrupt,
)
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    eval_task_ids,
    relay_config,
    train_task_ids,
)
from ajet_demo.relay import EXECUTOR, PLANNER, RelayAgent
from ajet_demo.report import History, Record, draw, write_json
from ajet_demo.run_state import SUMMARY_FILE, RunState, open_run

WIDTHS: Mapping[str, int] = {PLANNER: 64, EXECUTOR: 96}
"""The hidden size of each model."""

LEASE_SECONDS = 20.0
ROUNDS = 4
EVAL_MARGIN = 0.03
POLL_SECONDS = 0.1


class TwoModelsSummary(BaseModel):
    """The result; times in seconds, summed over all sessions of a resumed run.

    :param success_before: success on the held-out tasks before the first step.
    :param success_after: success on the held-out tasks with the final weights.
    :param reached: whether `success_after` is at least `target`.
    :param steps: training steps of each model.
    :param episodes: number of ended joint episodes by role: the same for both.
    :param parameters: number of parameters of each model.
    :param model_dirs: the trained models, Hugging Face directories.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int
    target: float
    reached: bool
    success_before: float
    success_after: float
    steps: int
    episodes: dict[str, int]
    parameters: dict[str, int]
    seconds: float
    run_dir: str
    model_dirs: dict[str, str]


def run_two_models(
    options: DemoOptions, console: Console, clock: Callable[[], float] = time.monotonic
) -> TwoModelsSummary:
    """Run the demo, continue an interrupted run, or show the result of a finished one.

    :raises ConfigError: packages are missing, or the directory has another run.
    :raises KeyboardInterrupt: after everything has been stopped cleanly.
    """
    began = clock()
    check_packages()
    chosen = options.run_dir or Path("runs") / f"demo-two-models-seed{options.seed}"
    run_dir, state = open_run(chosen.resolve(), options.seed, fresh=options.fresh)
    display = Display(console, target=options.target, max_steps=options.steps)
    if state.finished:
        earlier = _read(run_dir)
        if earlier.reached or earlier.steps >= options.steps:
            _show(earlier, console)
            return earlier
    before = state.seconds
    try:
        with terminate_as_interrupt(), display:
            summary = _train(options, run_dir, state, display)
            title = "agentjet demo: a planner and an executor learn to walk to the goal"
            draw(History(run_dir / METRICS_FILE), options.target, run_dir / PLOT_FILE, title)
    except KeyboardInterrupt:
        console.print(f"Stopped. Run the same command again to resume (run directory {run_dir}).")
        raise
    finally:
        state.seconds = before + clock() - began
        state.save(run_dir)
    summary = summary.model_copy(update={"seconds": round(state.seconds, 3)})
    write_json(run_dir / SUMMARY_FILE, summary.model_dump())
    state.finished = True
    state.save(run_dir)
    _show(summary, console)
    return summary


def _train(
    options: DemoOptions, run_dir: Path, state: RunState, display: Display
) -> TwoModelsSummary:
    history = History(run_dir / METRICS_FILE)
    for record in sorted([*history.steps(), *history.evals()], key=lambda r: r.step):
        display.record(record)
    with contextlib.ExitStack() as stack:
        servers: dict[str, LocalServer] = {}
        for role in WIDTHS:
            (run_dir / role).mkdir(exist_ok=True)
            servers[role] = stack.enter_context(LocalServer(run_dir / role))
        parameters = {role: _make_model(run_dir / role, role, options, display) for role in WIDTHS}
        for role, server in servers.items():
            display.phase(f"starting the server of the {role}")
            server.start_run(relay_config(run_dir / role / MODEL_DIR, options.seed))
            if options.browser:
                display.note(f"{role}: {server.open_page()}")
        display.phase("training")
        walkers = TwoModels(servers, history, display, state, run_dir=run_dir, options=options)
        step, success = asyncio.run(walkers.run())
        display.phase("exporting the trained models")
        ended = {
            role: int(server.client.status().counters["joint_ended"])
            for role, server in servers.items()
        }
        for role, server in servers.items():
            adopt(server.stop_run(), run_dir / role / TRAINED_DIR)
    return TwoModelsSummary(
        seed=options.seed,
        target=options.target,
        reached=success >= options.target,
        success_before=success if state.success_before is None else state.success_before,
        success_after=success,
        steps=step,
        episodes=ended,
        parameters=parameters,
        seconds=state.seconds,
        run_dir=str(run_dir),
        model_dirs={role: str(run_dir / role / TRAINED_DIR) for role in WIDTHS},
    )


class TwoModels:
    """Evaluates, and rolls out batches of joint episodes until the target is reached."""

    def __init__(
        self,
        servers: Mapping[str, LocalServer],
        history: History,
        display: Display,
        state: RunState,
        *,
        run_dir: Path,
        options: DemoOptions,
    ) -> None:
        self._servers = servers
        self._history = history
        self._display = display
        self._state = state
        self._run_dir = run_dir
        self._options = options

    async def run(self) -> tuple[int, float]:
        """Train up to the given total steps; return the last step and its success."""
        urls = {role: server.client.url for role, server in self._servers.items()}
        tokens = {role: server.client_token for role, server in self._servers.items()}
        agent = RelayAgent(TEMPERATURE)
        try:
            async with AsyncSwarm(urls, tokens) as swarm:
                return await self._run(swarm, agent)
        finally:
            await agent.close()

    async def _run(self, swarm: AsyncSwarm, agent: RelayAgent) -> tuple[int, float]:
        target, steps = self._options.target, self._options.steps
        step = min(status.step for status in (await swarm.status()).values())
        success = await self._evaluate(swarm, agent, step)
        recent: list[float] = []
        while step < steps and not (success >= target and step > 0):
            recent = [*recent[-1:], await self._step(swarm, agent, step + 1)]
            step += 1
            near = sum(recent) / len(recent) >= target - EVAL_MARGIN
            if near or step == steps:
                success = await self._evaluate(swarm, agent, step)
        return step, success

    async def _evaluate(self, swarm: AsyncSwarm, agent: RelayAgent, step: int) -> float:
        report = await swarm.run_episodes_until_all_complete(
            eval_task_ids(self._options.seed), agent, kind="eval", lease_seconds=LEASE_SECONDS
        )
        success = _success(report)
        if step == 0 and self._state.success_before is None:
            self._state.success_before = success
            self._state.save(self._run_dir)
        self._record(Record(kind="eval", step=step, success=success, reward=_mean_reward(report)))
        return success

    async def _step(self, swarm: AsyncSwarm, agent: RelayAgent, step: int) -> float:
        """Roll out the batch of `step`, wait until both models are trained; return its success."""
        for _ in range(ROUNDS):
            # Episodes of the batch that ended in an earlier session count.
            report = await swarm.run_episodes_until_all_complete(
                train_task_ids(self._options.seed, step),
                agent,
                episodes_per_task=ROLLOUTS_PER_TASK,
                concurrency=EPISODES_PER_STEP,
                lease_seconds=LEASE_SECONDS,
                resume=True,
            )
            if not report.failures:
                break
        else:
            raise AjetError(f"joint episodes failed:\n{report.failures[0].traceback}")
        metrics: dict[str, float] = {}
        for role in swarm.roles:
            status = await self._trained(swarm, role, step)
            if status.last_step is not None:
                metrics |= {f"{role}/{k}": v for k, v in status.last_step.metrics.items()}
                for name in ("tokens_raw", "tokens_trained", "rollout_seconds", "update_seconds"):
                    value = status.last_step.metrics.get(name, 0.0)
                    metrics[name] = metrics.get(name, 0.0) + value
        success = _success(report)
        reward = _mean_reward(report)
        self._record(
            Record(kind="step", step=step, success=success, reward=reward, metrics=metrics)
        )
        return success

    async def _trained(self, swarm: AsyncSwarm, role: str, step: int) -> ServerStatus:
        """Wait until a server has trained a step, and return its status.

        :raises AjetError: the server does not train the step.
        """
        while True:
            status = await swarm[role].status()
            if status.step >= step:
                return status
            self._servers[role].child.check()
            waits = status.batch is None or status.batch.ready < status.batch.needed
            if status.state is ServerState.PAUSED or (
                status.state is ServerState.ROLLING and waits
            ):
                raise AjetError(
                    f"the {role}'s server did not train step {step}: "
                    f"{status.paused or status.state}"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _record(self, record: Record) -> None:
        self._history.add(record)
        self._display.record(record)


def _success(report: RunnerReport[SwarmEpisode, SwarmOutcome]) -> float:
    values = [r.outcome.parts[PLANNER].components["success"] for r in report.outcomes]
    return sum(values) / len(values) if values else 0.0


def _mean_reward(report: RunnerReport[SwarmEpisode, SwarmOutcome]) -> float:
    return report.reward_mean or 0.0


def _make_model(directory: Path, role: str, options: DemoOptions, display: Display) -> int:
    """Create a model if there is none, and return the number of its parameters."""
    from safetensors import safe_open

    from ajet_demo.tiny_model import create_tiny_model

    if not (directory / MODEL_DIR).exists():
        display.phase(f"creating the {role}, {WIDTHS[role]} wide")
        create_tiny_model(
            directory / MODEL_DIR,
            seed=options.seed,
            hidden=WIDTHS[role],
            progress=lambda p: display.warming_up(p.step, p.steps, p.loss),
        )
    weights = directory / MODEL_DIR / "model.safetensors"
    with safe_open(weights, "np") as tensors:
        names = tensors.keys()
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)


def _read(run_dir: Path) -> TwoModelsSummary:
    try:
        return TwoModelsSummary.model_validate(read_json(run_dir / SUMMARY_FILE))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{run_dir} contains no finished run of two models: start a new run with --fresh"
        ) from error


def _show(summary: TwoModelsSummary, console: Console) -> None:
    verdict = "reached" if summary.reached else "not reached"
    sizes = ", ".join(f"{role} {count}" for role, count in summary.parameters.items())
    console.print(
        f"success {summary.success_before:.0%} before, {summary.success_after:.0%} after "
        f"{summary.steps} steps (target {summary.target:.0%} {verdict}); parameters: {sizes}; "
        f"{summary.seconds:.1f} s; run directory {summary.run_dir}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
