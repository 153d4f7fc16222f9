"""Compare a swarm with a centralised loop in one process: `centralised.py --seeds 5`.

The centralised loop has the same agent, model, engine, rendering, merging, losses and tasks, but no
server, network, store or second process: it plays the episodes of a batch, trains on them, and
begins the next. The swarm is a real server with real sockets and one client. Each seed runs both,
one after the other, from the same weights.

Lists are in the order of the seeds. `after_*` is the success on held-out tasks with the last
weights, `curve_*` the mean success of all training episodes, and `reward_std_*` the mean standard
deviation of the rewards of a batch. `after_difference`, `curve_difference` and
`reward_std_difference` are swarm less centralised. `staleness_*` is the mean staleness of trained
tokens, in steps, and `staleness_max_*` the highest of a batch.

`cpu_ratio` is the CPU time of the swarm (server, worker and client) divided by that of the
centralised loop, for the same number of episodes, evaluations included and boots excluded;
`wall_ratio` the same for the time on the clock, on this machine. `cpu_ms_*` and `wall_ms_*` are
milliseconds per episode. `connections_centralised` is the number of sockets that the centralised
loop connected.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from ajet_backend_torch.engine import TorchEngine
from ajet_backend_torch.settings import TorchEngineSettings, TorchTrainerSettings
from ajet_backend_torch.trainer import TorchTrainer
from kept import KeptResults
from options import at_least
from recorded import recorded_episodes
from reporting import report

from agentjet import LocalServer
from agentjet.client import AsyncSwarmClient
from ajet_core.interfaces import (
    Chat,
    Engine,
    EpisodeRecord,
    Trainer,
    TrainerInfo,
    WorkerContext,
    World,
    WorldAnswer,
    WorldCall,
    WorldOutcome,
    WorldPrompt,
)
from ajet_core.plugin import PluginManager
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call
from ajet_demo.orchestrate import terminate_as_interrupt
from ajet_installation.settings import Settings
from ajet_server.batches.training_data import training_data
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.completing import CompletionService
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.run.run_setup import ResolvedRun, resolve_run
from ajet_worlds import load_world
from ajet_worlds.agent import WorldAgent
from ajet_worlds.learning import EVAL_TASKS, learn
from ajet_worlds.recipe import run_config
from ajet_worlds.tiny_model import create_tiny_model

ROOT = Path(__file__).resolve().parents[1]
IN_PROCESS = "in_process"
AVERAGED = ("reward_std", "staleness_mean", "staleness_max")


@dataclass(frozen=True, slots=True)
class Options:
    """What all runs have in common."""

    world: str
    steps: int
    eval_tasks: int


@dataclass(frozen=True, slots=True)
class Run:
    """What a run was like.

    :param curve: mean success of the training episodes, by step.
    :param steps: the metrics `AVERAGED` of each step.
    :param cpu_seconds: of all its processes, without boots.
    :param episodes: number of episodes, evaluations included.
    """

    after: float
    curve: Sequence[float]
    steps: Sequence[dict[str, float]]
    cpu_seconds: float
    wall_seconds: float
    episodes: int
    connections: int = 0


class DirectChat(Chat):
    """The model of one episode, called in this process."""

    def __init__(self, service: CompletionService, episode_id: str, temperature: float) -> None:
        self._service = service
        self._session = Session(episode_id, ConversationIndex())
        self._temperature = temperature
        self.calls: list[Call] = []

    async def ask(self, prompt: WorldPrompt) -> WorldAnswer:
        body = {
            "model": "default",
            "messages": list(prompt.messages),
            "temperature": self._temperature,
            "max_tokens": prompt.max_tokens,
            **({"tools": list(prompt.tools)} if prompt.tools else {}),
        }
        request = read_chat_request(json.dumps(body).encode(), self._session.index.latest_messages)
        exchange = await self._service.begin(self._session, request, self._record, prompt.agent)
        (choice,) = await self._service.complete(exchange)
        calls = tuple(
            WorldCall(call.name, call.arguments, call.id) for call in choice.answer.tool_calls
        )
        return WorldAnswer(choice.answer.content, calls, exchange.completion_id)

    async def _record(self, call: Call) -> None:
        self.calls.append(call)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class Loop:
    """The centralised loop."""

    world: World[Any]
    run: ResolvedRun
    service: CompletionService
    engine: Engine[Any]
    trainer: Trainer[Any]
    info: TrainerInfo
    seed: int
    episodes: int = 0
    curve: list[float] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)

    async def play(self, task_id: str) -> tuple[WorldOutcome, list[Call]]:
        """Play an episode, whose id is its number."""
        self.episodes += 1
        chat = DirectChat(self.service, str(self.episodes), temperature=1.0)
        return await self.world.play(task_id, chat), chat.calls

    async def evaluate(self, tasks: int) -> float:
        """Return the mean success on held-out tasks."""
        played = await asyncio.gather(
            *(self.play(task) for task in self.world.task_ids("eval", self.seed, tasks))
        )
        return statistics.mean(outcome.success for outcome, _ in played)

    async def train(self, steps: int) -> None:
        """Roll out and train, by turns."""
        batch = self.world.recipe.batch
        tasks = self.world.task_ids("train", self.seed, steps * batch.tasks)
        for step in range(1, steps + 1):
            own = tasks[(step - 1) * batch.tasks : step * batch.tasks]
            rollouts = [task for task in own for _ in range(batch.episodes_per_task)]
            played = await asyncio.gather(*map(self.play, rollouts))
            await self._update(step, rollouts, played)
            self.curve.append(statistics.mean(outcome.success for outcome, _ in played))

    async def _update(
        self,
        step: int,
        tasks: Sequence[str],
        played: Sequence[tuple[WorldOutcome, list[Call]]],
    ) -> None:
        records = [
            EpisodeRecord(
                episode_id=calls[0].episode_id,
                key_hash="",
                task_id=task,
                group=task,
                kind="train",
                tag="default",
                client_id="",
                claim_version=step - 1,
                lease_seconds=0,
                created_at=0,
                state="ended",
                reward=outcome.reward,
                components=dict(outcome.components),
                call_rewards=dict(outcome.call_rewards),
                agent_rewards=dict(outcome.agent_rewards),
            )
            for task, (outcome, calls) in zip(tasks, played, strict=True)
        ]
        data = training_data(
            f"batch-{step}",
            step,
            records,
            {record.episode_id: calls for record, (_, calls) in zip(records, played, strict=True)},
            config=self.run.config,
            merger=self.run.merger,
            estimator=self.run.estimator,
            trainer=self.info,
        )
        metrics = data.metrics()
        self.steps.append({name: metrics[name] for name in AVERAGED})
        await self.engine.pause()
        self.trainer.step(data.batch)
        await self.engine.update_weights(self.trainer.publish(IN_PROCESS, step))
        await self.engine.resume()


async def centralised(options: Options, directory: Path, config: RunConfig) -> Run:
    """Train in this process."""
    plugins = PluginManager()
    settings = Settings(server={"run_dir": directory / "run", "model_roots": [directory]})
    run = resolve_run("centralised", config, settings, plugins)
    world = load_world(options.world)
    context = WorkerContext(run_dir=directory, seed=config.seed)
    trainer = TorchTrainer(TorchTrainerSettings(**run.trainer.settings), context)
    engine = TorchEngine(TorchEngineSettings(**run.engine.settings), context)
    info = trainer.start(run.config.model, run.config.algorithm)
    update = trainer.publish(IN_PROCESS, 0)
    engine_info = await engine.start(run.config.model)
    await engine.update_weights(update)
    service = CompletionService(
        run.renderer, engine, run.config.model.name, engine_info, run.capabilities, time.time
    )
    connections: list[object] = []
    sys.addaudithook(
        lambda event, args: connections.append(args[1]) if event == "socket.connect" else None
    )
    loop = Loop(world, run, service, engine, trainer, info, config.seed)
    cpu, began = time.process_time(), time.monotonic()
    await loop.evaluate(options.eval_tasks)
    await loop.train(options.steps)
    after = await loop.evaluate(options.eval_tasks)
    spent, elapsed = time.process_time() - cpu, time.monotonic() - began
    await engine.close()
    trainer.close()
    return Run(after, loop.curve, loop.steps, spent, elapsed, loop.episodes, len(connections))


async def swarm(options: Options, directory: Path, config: RunConfig) -> Run:
    """Train on a server, as a client of it."""
    with LocalServer(directory) as server:
        server.start_run(config)
        # The imports of the agent's SDK belong to the boot.
        await WorldAgent(load_world(options.world)).close()
        family = psutil.Process(server.child.pid)
        cpu, began = _cpu_seconds(family), time.monotonic()
        async with AsyncSwarmClient(server.client.url, server.client_token) as client:
            learned = await learn(
                load_world(options.world),
                client,
                server.client,
                seed=config.seed,
                steps=options.steps,
                eval_tasks=options.eval_tasks,
            )
        spent, elapsed = _cpu_seconds(family) - cpu, time.monotonic() - began
        server.stop_run()
    lines = (directory / "server" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    episodes = len(await asyncio.to_thread(recorded_episodes, directory / "server"))
    averaged = [{name: step[name] for name in AVERAGED} for step in steps]
    return Run(learned.after, learned.curve, averaged, spent, elapsed, episodes)


def _cpu_seconds(server: psutil.Process) -> float:
    """Return the CPU seconds of this process, a server, and the server's workers so far."""
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return time.process_time() + sum(each.user + each.system for each in times)


def train(kind: str, options: Options, seed: int) -> Run:
    """Make a model, and train it in one of the two ways."""
    world = load_world(options.world)
    # Environments of engines and trainers are searched for above the run directory.
    (ROOT / "runs").mkdir(exist_ok=True)
    with (
        terminate_as_interrupt(),
        tempfile.TemporaryDirectory(prefix=f"{kind}-{seed}-", dir=ROOT / "runs") as root,
    ):
        directory = Path(root)
        create_tiny_model(directory / "model", worlds=[world], seed=seed)
        config = run_config(world, directory / "model", seed=seed)
        return asyncio.run(KINDS[kind](options, directory, config))


KINDS = {"centralised": centralised, "swarm": swarm}


def summary(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Return the figures of all seeds."""
    figures: dict[str, Any] = {}
    for kind, own in runs.items():
        figures |= {
            f"after_{kind}": [round(run.after, 4) for run in own],
            f"curve_{kind}": [round(statistics.mean(run.curve), 4) for run in own],
            f"reward_std_{kind}": [round(_mean(run, "reward_std"), 4) for run in own],
            f"staleness_{kind}": [round(_mean(run, "staleness_mean"), 4) for run in own],
            f"staleness_max_{kind}": [max(s["staleness_max"] for s in run.steps) for run in own],
            f"cpu_ms_{kind}": [round(1000 * run.cpu_seconds / run.episodes, 2) for run in own],
            f"wall_ms_{kind}": [round(1000 * run.wall_seconds / run.episodes, 2) for run in own],
            f"steps_{kind}": [[round(x, 4) for x in run.curve] for run in own],
        }
    for name in ("after", "curve", "reward_std"):
        pairs = zip(figures[f"{name}_swarm"], figures[f"{name}_centralised"], strict=True)
        figures[f"{name}_difference"] = [round(a - b, 4) for a, b in pairs]
    for name in ("cpu", "wall"):
        pairs = zip(figures[f"{name}_ms_swarm"], figures[f"{name}_ms_centralised"], strict=True)
        figures[f"{name}_ratio"] = [round(a / b, 3) for a, b in pairs]
    figures["connections_centralised"] = sum(run.connections for run in runs["centralised"])
    return figures


def _mean(run: Run, metric: str) -> float:
    return statistics.mean(step[metric] for step in run.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", default="grid")
    parser.add_argument("--seeds", type=at_least(1), default=5, help="number of seeds, from 0 on")
    parser.add_argument("--steps", type=at_least(1), help="instead of those of the world's recipe")
    parser.add_argument("--eval-tasks", type=at_least(1), default=EVAL_TASKS)
    parser.add_argument("--runs", type=Path, help="file of the results of single runs")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    steps = options.steps or load_world(options.world).recipe.steps
    common = Options(options.world, steps, options.eval_tasks)
    kept = KeptResults(options.runs)
    runs: dict[str, list[Run]] = {kind: [] for kind in KINDS}
    with terminate_as_interrupt():
        for seed in range(options.seeds):
            # Each begins every other time, in case the load of the machine changes meanwhile.
            for kind in list(KINDS)[:: 1 if seed % 2 else -1]:
                name = json.dumps({**asdict(common), "kind": kind, "seed": seed})
                result = Run(
                    **kept.of(name, lambda k=kind, s=seed: in_process_of_its_own(k, common, s))
                )
                print(f"{kind} seed {seed}: {result.after:.2f}", file=sys.stderr)
                runs[kind].append(result)
    report(
        {"benchmark": "centralised", **asdict(common), "seeds": options.seeds, **summary(runs)},
        options.output,
    )


def in_process_of_its_own(kind: str, options: Options, seed: int) -> dict[str, Any]:
    """Return the result of a run, as plain data."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return asdict(pool.submit(train, kind, options, seed).result())


if __name__ == "__main__":
    main()
