"""Check that a run reports faults in its training, and that healthy runs have no findings.

Each of `FAULTS` is planted into a run of the demo after some healthy steps: a real server with its
own limits, the tiny model, agents over HTTP. A fault is found if one of the findings that name it
starts within `--within` steps. If that finding pauses runs by default, the run must also be paused
for it within these steps, and the message of the pause must name a checkpoint from before the
fault. Healthy runs, half of them asynchronous, must end without findings.

The JSON line comes last: `planted` and `found` count faults, `false_alarms` healthy runs with
findings. `--histories` writes the metrics of each step, for the tests of the checks. With `--runs
FILE` each run appends its result to FILE when it ends, and runs whose results are there are not
repeated: an interrupted benchmark continues.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from altered_plugin import environment_with_plugin
from kept import KeptResults
from options import at_least
from reporting import report

from agentjet.client import AsyncSwarmClient, Episode, EpisodeOutcome, SwarmClient, Task
from agentjet.local import LocalServer
from ajet_core.protocol import (
    ComponentChoice,
    FailureConfig,
    RolloutConfig,
    RunConfig,
    ServerStatus,
)
from ajet_demo.agent import GridWalkAgent
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    TEMPERATURE,
    run_config,
    train_task_ids,
)
from ajet_demo.tiny_model import create_tiny_model
from ajet_worlds.gridwalk import TOOLS, GridWalk

FROM_STEP = 9
POLL_SECONDS = 0.1
RUN_SECONDS = 900.0
# After a pause the run continues for this many steps, so that its history shows what was prevented.
AFTER_PAUSE = 1


@dataclass(frozen=True)
class Fault:
    """A fault from step `FROM_STEP` on, or from the first step with `start`.

    :param kinds: the findings that name it.
    :param call: changes to the agent's requests.
    :param reward: change of an episode's reward, as the name of a method of `FaultyAgent`.
    :param broken: the tool does not work any longer.
    :param rambling: each walk that fails ends with a very long answer.
    :param trainer: settings of the trainer ``faulty``.
    :param engine: settings of the engine ``faulty``.
    :param config: changes to the run's configuration.
    :param start: the fault is present from the first step on.
    """

    name: str
    kinds: tuple[str, ...]
    call: dict[str, Any] = field(default_factory=dict)
    reward: str = "as_it_is"
    broken: bool = False
    rambling: bool = False
    trainer: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    start: bool = False

    @property
    def from_step(self) -> int:
        """The first step whose batch has the fault."""
        return 1 if self.start else FROM_STEP

    @property
    def pausing(self) -> set[str]:
        """The findings that name the fault and pause a run by default."""
        return set(self.kinds) & set(FailureConfig().pause_on)


# A walk samples about 35.
RAMBLING_TOKENS = 600

# A trainer without a limit of updates, such as DeepSpeed's. The limit would undo some of these
# faults.
UNLIMITED = {"max_update_kl": 0.0}

FAULTS: Sequence[Fault] = (
    Fault("constant rewards", ("zero_signal",), reward="constant"),
    Fault("rewards by task alone", ("zero_signal",), reward="by_task"),
    Fault("constant rewards from the start", ("zero_signal",), reward="constant", start=True),
    Fault("most tasks without signal", ("equal_rewards",), reward="of_one_task", start=True),
    Fault("answers cut off", ("cut_off",), call={"max_tokens": 4}),
    Fault("malformed calls", ("malformed",), call={"temperature": 2.0}),
    Fault("answers that do not end", ("length",), call={"end_of_turn": -100}),
    Fault("answers that end at once", ("length",), call={"end_of_turn": 100}),
    Fault("stale share", ("stale",), engine={"lag": 5, "share": 0.3}),
    Fault("greedy sampling", ("entropy", "zero_signal"), call={"temperature": 0.01}),
    Fault("logprob gap", ("logprob_gap",), trainer={"noise": 0.5}),
    Fault("small logprob gap", ("logprob_gap",), trainer={"noise": 0.2}),
    Fault("logprob gap that grows below its limit", ("logprob_gap",), trainer={"noise": 0.12}),
    Fault("sampling that is too hot", ("entropy",), call={"temperature": 1.5}),
    Fault(
        "weights that are lost",
        ("kl",),
        trainer={"reset": True},
        config={"algorithm": {**UNLIMITED, "kl_coef": 1e-3}},
    ),
    Fault("learning rate x100", ("shortened",), trainer={"rate": 100.0}),
    Fault(
        "learning rate x100, updates of any size",
        ("entropy", "malformed", "reward_drop"),
        trainer={"rate": 100.0},
        config={"algorithm": UNLIMITED},
    ),
    Fault(
        "learning rate x100, updates of any size, KL",
        ("kl",),
        # The loss grows beyond the trainer's limit, too.
        trainer={"rate": 100.0, "loss_limit": None},
        config={"algorithm": {**UNLIMITED, "kl_coef": 1e-3}},
    ),
    Fault(
        "rewards x1000",
        ("grad_norm",),
        reward="large",
        config={"algorithm": {"advantage": "group_mean"}},
    ),
    Fault(
        "entropy trained away",
        ("entropy",),
        reward="noise",
        trainer={"sharpen": 300.0},
        config={"algorithm": UNLIMITED},
    ),
    Fault("a broken tool", ("reward_drop",), broken=True),
    Fault(
        "long episodes left out",
        ("trimmed", "advantage_bias"),
        config={"timelines": {"max_tokens": 185, "over_long": "drop"}},
        start=True,
    ),
    Fault("failures that are much longer", ("advantage_bias",), reward="of_success", rambling=True),
    Fault(
        "late turns trimmed", ("trimmed",), config={"timelines": {"max_tokens": 150}}, start=True
    ),
)


class FaultyAgent(GridWalkAgent):
    """The demo's agent, with a fault from some step on."""

    def __init__(self, fault: Fault | None, end_of_turn: int) -> None:
        super().__init__(TEMPERATURE)
        self._fault = fault
        self._end_of_turn = end_of_turn
        self._numbers = itertools.count()
        self._random = random.Random(0)

    async def __call__(self, task: Task, episode: Episode) -> EpisodeOutcome:
        outcome = await super().__call__(task, episode)
        if (fault := self._planted(task.id)) is None:
            return outcome
        reward = getattr(self, fault.reward)(task, outcome.reward)
        return dataclasses.replace(outcome, reward=reward)

    def _planted(self, task_id: str) -> Fault | None:
        """Return the fault if the task belongs to a step that has it."""
        _, _, step, _ = task_id.split("-")
        fault = self._fault
        return fault if fault is not None and int(step) >= fault.from_step else None

    async def use_tool(self, walk: GridWalk, name: str, arguments: str) -> str:
        fault = self._planted(walk.task_id)
        if fault is not None and fault.broken and next(self._numbers) % 16:
            # The tool moves only now and then.
            walk.moves += 1
            walk.done = walk.moves >= 3
            return walk.observation()
        return await super().use_tool(walk, name, arguments)

    async def walk(self, walk: GridWalk, episode: Episode) -> None:
        fault = self._planted(walk.task_id)
        changes = dict(fault.call) if fault is not None else {}
        client = self._openai.with_options(base_url=episode.base_url, api_key=episode.api_key)
        if not changes:
            await super().walk(walk, episode)
            if fault is not None and fault.rambling and not walk.outcome().success:
                await client.chat.completions.create(
                    model=episode.model,
                    messages=list(walk.messages()),
                    max_tokens=RAMBLING_TOKENS,
                    logit_bias={str(self._end_of_turn): -100},
                )
            return
        # The same loop as the agent's, with changed requests.
        bias = changes.pop("end_of_turn", None)
        messages: list[Any] = list(walk.messages())
        asked = {"temperature": TEMPERATURE, "max_tokens": 32, **changes}
        if bias is not None:
            asked["logit_bias"] = {str(self._end_of_turn): bias}
        while not walk.done:
            completion = await client.chat.completions.create(
                model=episode.model, messages=messages, tools=TOOLS, **asked
            )
            message = completion.choices[0].message
            calls = [call for call in message.tool_calls or [] if call.type == "function"]
            if not calls:
                walk.reject()
                return
            messages.append(message)
            for call in calls:
                reply = await self.use_tool(walk, call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": reply})

    def as_it_is(self, _task: Task, reward: float) -> float:
        return reward

    def constant(self, _task: Task, _reward: float) -> float:
        return 0.25

    def by_task(self, task: Task, _reward: float) -> float:
        return float(len(task.id) + sum(map(ord, task.id))) % 7

    def of_one_task(self, task: Task, reward: float) -> float:
        return reward if task.id.endswith("-0") else 0.0

    def of_success(self, _task: Task, reward: float) -> float:
        return float(reward >= 1)

    def noise(self, _task: Task, _reward: float) -> float:
        # Leave some signal in every task, so that the entropy is checked.
        return self._random.random()

    def large(self, _task: Task, reward: float) -> float:
        return 1000 * reward


@dataclass(frozen=True)
class Pause:
    """A pause of a run.

    :param step: the last step trained before it.
    :param kinds: the findings that it names; none if something else paused the run, such as batches
        that the trainer refused.
    :param good: the checkpoint that it names as good, if it names one.
    """

    step: int
    kinds: tuple[str, ...]
    good: int | None

    @classmethod
    def of(cls, status: ServerStatus) -> Pause:
        """Parse the message of the pause."""
        words = status.paused or ""
        kinds = tuple(f.code for f in status.findings if f.message in words)
        named = re.search(r"resume --from-step (\d+)", words)
        return cls(status.step, kinds, None if named is None else int(named[1]))


@dataclass
class Seen:
    """Observations of a run.

    :param found: by kind, the first step whose status showed it.
    """

    name: str
    steps: list[dict[str, float]] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)

    @classmethod
    def from_kept(cls, name: str, kept: Mapping[str, Any]) -> Seen:
        """Read what `run` kept."""
        pauses = [Pause(p["step"], tuple(p["kinds"]), p["good"]) for p in kept["pauses"]]
        return cls(name, kept["steps"], kept["found"], pauses)


def configured(model: Path, seed: int, fault: Fault | None, *, asynchronous: bool) -> RunConfig:
    """Return the demo's configuration with the fault's settings."""
    config = run_config(model, seed)
    body = config.model_dump(mode="json")
    body["checkpoint_every"] = 2
    if asynchronous:
        body["rollout"] = RolloutConfig(mode="async", max_staleness=2).model_dump(mode="json")
    if fault is not None:
        for section, changes in fault.config.items():
            body[section] |= changes
        if fault.trainer:
            settings = {"from_step": FROM_STEP, **fault.trainer}
            body["trainer"] = ComponentChoice(name="faulty", settings=settings).model_dump()
        if fault.engine:
            settings = {"from_version": FROM_STEP - 1, **fault.engine}
            body["engine"] = ComponentChoice(name="faulty", settings=settings).model_dump()
    return RunConfig.model_validate(body)


async def roll_out(
    url: str, token: str, agent: FaultyAgent, seed: int, ahead: int, done: asyncio.Event
) -> None:
    """Roll out the tasks of all steps, as many at once as there are slots, until the end."""
    async with AsyncSwarmClient(url, token) as client:
        for step in itertools.count(1, ahead):
            tasks = [task for i in range(ahead) for task in train_task_ids(seed, step + i)]
            await client.run_episodes_until_all_complete(
                tasks,
                agent,
                episodes_per_task=ROLLOUTS_PER_TASK,
                concurrency=EPISODES_PER_STEP * ahead,
            )
            if done.is_set():
                return


async def watch(observer: SwarmClient, seen: Seen, steps: int, fault: Fault | None) -> None:
    """Watch the run for `steps` steps, or until shortly after a pause for its fault."""
    last, until = 0, steps
    while last < until:
        status = await asyncio.to_thread(observer.status)
        for finding in status.findings:
            if finding.since_step is not None:
                seen.found.setdefault(finding.code, status.step)
        if status.last_step is not None and status.last_step.step > last:
            last = status.last_step.step
        if status.paused:
            seen.pauses.append(Pause.of(status))
            if fault is not None and fault.pausing & set(seen.pauses[-1].kinds):
                until = min(until, last + AFTER_PAUSE)
            # Another finding may pause it again.
            await asyncio.to_thread(observer.resume_engine)
        if status.error is not None:
            raise RuntimeError(f"{seen.name}: {status.error.message}")
        await asyncio.sleep(POLL_SECONDS)


async def train(
    server: LocalServer,
    seen: Seen,
    agent: FaultyAgent,
    *,
    seed: int,
    steps: int,
    fault: Fault | None,
    ahead: int,
) -> None:
    """Roll out until the run has been watched to its end."""
    done = asyncio.Event()
    rolling = asyncio.create_task(
        roll_out(server.client.url, server.client_token, agent, seed, ahead, done)
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            await watch(server.client, seen, steps, fault)
    finally:
        done.set()
        rolling.cancel()
        await asyncio.gather(rolling, return_exceptions=True)
        await agent.close()


def run(
    name: str,
    models: Mapping[int, Path],
    kept: KeptResults,
    *,
    seed: int,
    steps: int,
    fault: Fault | None,
    asynchronous: bool,
) -> Seen:
    """Run on a new server, unless the result of an earlier run is kept."""
    key = f"{name}, {steps} steps"
    if (known := kept.get(key)) is not None:
        return Seen.from_kept(name, known)
    seen = Seen(name)
    with tempfile.TemporaryDirectory(prefix="ajet-health-") as root:
        directory = Path(root)
        model = directory / "model"
        shutil.copytree(models[seed], model)
        agent = FaultyAgent(fault, end_of_turn(model))
        with LocalServer(directory) as server:
            config = configured(model, seed, fault, asynchronous=asynchronous)
            server.client.sync_train_config(config)
            server.client.start_engine(300.0)
            ahead = 3 if asynchronous else 1
            asyncio.run(
                train(server, seen, agent, seed=seed, steps=steps, fault=fault, ahead=ahead)
            )
        lines = (directory / "server" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        seen.steps = [json.loads(line) for line in lines]
    pauses = [dataclasses.asdict(pause) for pause in seen.pauses]
    told = {"run": name, "steps": len(seen.steps), "found": seen.found, "pauses": pauses}
    print(json.dumps(told), file=sys.stderr, flush=True)
    kept.add(key, {"steps": seen.steps, "found": seen.found, "pauses": pauses})
    return seen


def end_of_turn(model: Path) -> int:
    """Return the id of the token that ends an answer."""
    from tokenizers import Tokenizer

    token_id = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id("<|im_end|>")
    assert token_id is not None
    return int(token_id)


def judged(fault: Fault, seen: Seen, within: int) -> dict[str, Any]:
    """Return whether a fault was found in time and, if it pauses runs, with a way back."""
    begins = fault.from_step
    last = begins + within
    named = [step for kind, step in seen.found.items() if kind in fault.kinds]
    pauses = [pause for pause in seen.pauses if fault.pausing & set(pause.kinds)]
    paused = any(p.step <= last and p.good is not None and p.good < begins for p in pauses)
    rewards = [step["reward_mean"] for step in seen.steps]
    return {
        "fault": fault.name,
        "expected": list(fault.kinds),
        "found": min(named, default=last + 1) <= last and (paused or not fault.pausing),
        "findings": seen.found,
        "before_it": {kind: step for kind, step in seen.found.items() if step < begins - 1},
        "pauses_by_default": bool(fault.pausing),
        "pauses": [dataclasses.asdict(pause) for pause in seen.pauses],
        "begins": begins,
        "steps": len(seen.steps),
        "last_reward": round(rewards[-1], 3) if rewards else None,
    }


KEPT = frozenset(
    [
        "tasks",
        "tasks_equal",
        "no_signal",
        "calls",
        "calls_aborted",
        "calls_cut_off",
        "calls_malformed",
        "tokens_per_call",
        "tokens_sampled",
        "tokens_dropped",
        "tokens_stale",
        "episodes",
        "episodes_stale",
        "advantage_bias",
        "reward_mean",
        "reward_std",
        "sampled_entropy",
        "entropy",
        "kl",
        "grad_norm",
        "logprob_gap_mean",
    ]
)


def keep(directory: Path, seen: Seen, fault: Fault | None) -> None:
    """Write a run's history, for the tests of the checks."""
    directory.mkdir(parents=True, exist_ok=True)
    steps = [
        {name: float(f"{value:.4g}") for name, value in step.items() if name in KEPT}
        for step in seen.steps
    ]
    history = {"kinds": list(fault.kinds) if fault is not None else [], "steps": steps}
    path = directory / f"{seen.name.replace(' ', '-').replace(',', '')}.json"
    path.write_text(json.dumps(history) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--healthy", type=at_least(0), default=20, help="runs without a fault")
    parser.add_argument("--steps", type=at_least(1), default=20, help="steps of a healthy run")
    parser.add_argument(
        "--within", type=at_least(1), default=5, help="steps within which a fault must be found"
    )
    parser.add_argument(
        "--jobs", type=at_least(1), default=1, help="number of runs at the same time"
    )
    parser.add_argument("--only", help="only faults whose names contain this; no healthy runs")
    parser.add_argument("--runs", type=Path, help="file of the results of single runs")
    parser.add_argument("--histories", type=Path, help="directory for the metrics of each run")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only is None or options.only in fault.name]
    healthy = options.healthy if options.only is None else 0

    models: dict[int, Path] = {}
    kept = KeptResults(options.runs)

    def planted(fault: Fault) -> Seen:
        steps = fault.from_step + options.within
        return run(fault.name, models, kept, seed=0, steps=steps, fault=fault, asynchronous=False)

    def unplanted(number: int) -> Seen:
        seed, odd = divmod(number, 2)
        return run(
            f"healthy {'async' if odd else 'sync'} {seed}",
            models,
            kept,
            seed=seed,
            steps=options.steps,
            fault=None,
            asynchronous=odd == 1,
        )

    with tempfile.TemporaryDirectory(prefix="ajet-faulty-") as plugins:
        os.environ.update(environment_with_plugin(Path(plugins) / "plugin"))
        for seed in range(max(1, (healthy + 1) // 2)):
            models[seed] = Path(plugins) / f"model-{seed}"
            create_tiny_model(models[seed], seed=seed)
        with ThreadPoolExecutor(options.jobs) as pool:
            faulty = list(pool.map(planted, faults))
            well = list(pool.map(unplanted, range(healthy)))
    results = [
        judged(fault, seen, options.within) for fault, seen in zip(faults, faulty, strict=True)
    ]
    if options.histories is not None:
        for fault, seen in zip(faults, faulty, strict=True):
            keep(options.histories, seen, fault)
        for seen in well:
            keep(options.histories, seen, None)
    alarms = [{"run": seen.name, "findings": seen.found} for seen in well if seen.found]
    report(
        {
            "planted": len(faults),
            "found": sum(result["found"] for result in results),
            "false_alarms": len(alarms),
            "healthy": len(well),
            "steps": options.steps,
            "within": options.within,
            "faults": results,
            "alarms": alarms,
            "healthy_rewards": [round(seen.steps[-1]["reward_mean"], 3) for seen in well],
        },
        options.output,
    )


if __name__ == "__main__":
    main()
