"""Check that joint episodes survive SIGKILL of either of two servers and of their client.

The kills come at random moments of real training. Two tiny models of different size, a planner and
an executor, are trained on joint episodes (`ajet_demo.relay`), each on its own server. The client
records each joint episode whose end was acknowledged. Then the records of both servers are
compared: a joint episode that has ended on only one of them is torn; one that was acknowledged but
has not ended on both is lost. The checkpoints themselves show which batches the weights were
trained on (`recovery_witness`).

`success_before` and `success_after` are measured on the held-out tasks, before the first step and
after the last.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from options import at_least
from recorded import recorded_episodes
from recovery import free_port
from reporting import report

from agentjet.client import AsyncSwarm, EpisodeFailure, EpisodeResult, Swarm, SwarmClient
from ajet_core.errors import AjetError, DeadlineError
from ajet_core.protocol import ComponentChoice, FailureConfig, RunConfig, ServerState
from ajet_demo.recipe import (
    EPISODES_PER_STEP,
    ROLLOUTS_PER_TASK,
    eval_task_ids,
    relay_config,
    train_task_ids,
)
from ajet_demo.relay import PLANNER, RelayAgent
from ajet_demo.two_models import WIDTHS

CONTROL, CLIENT = "joint-benchmark-control", "joint-benchmark-client"
POLL_SECONDS = 0.05
BACK_SECONDS = 120.0
LEASE_SECONDS = 15.0
WEIGHTS = {"planner": 2, "executor": 2, "client": 1}
# Outages are deliberate: agents wait for their servers.
CALL_RETRIES = 10


# --- The processes that are killed ----------------------------------------------------------------


def serve_gateway(run_dir: str, port: str, peers: str) -> None:
    """Run one gateway as `ajet serve` does, with the witness among its plugins."""
    from ajet_installation.settings import Settings
    from ajet_server.serve import serve
    from ajet_testing.plugins import plugins_with

    settings = Settings(
        server={
            "run_dir": run_dir,
            "model_roots": [str(Path(run_dir).parent)],
            "port": int(port),
            "control_token": CONTROL,
            "client_token": CLIENT,
            "worker_restarts": 1000,
            "peers": {r: {"url": url, "token": CLIENT} for r, url in json.loads(peers).items()},
        }
    )
    serve(settings, plugins_with("witness", "recovery_plugins"))


def run_client(urls: str, journal: str, steps: str) -> None:
    """Train until both models have had their steps; write acknowledged ends to the journal."""
    asyncio.run(_run_client(json.loads(urls), Path(journal), int(steps)))


async def _run_client(urls: dict[str, str], journal: Path, steps: int) -> None:
    agent = RelayAgent(max_retries=CALL_RETRIES)
    with journal.open("a", encoding="utf-8") as file:

        def note(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        def on_result(result: EpisodeResult[Any, Any] | EpisodeFailure) -> None:
            if isinstance(result, EpisodeResult):
                ids = {role: part.episode_id for role, part in result.episode.parts.items()}
                note(ended=ids)

        async with AsyncSwarm(urls, dict.fromkeys(urls, CLIENT)) as swarm:
            while (step := await _step_of(swarm)) < steps:
                report = await swarm.run_episodes_until_all_complete(
                    train_task_ids(0, step + 1),
                    agent,
                    episodes_per_task=ROLLOUTS_PER_TASK,
                    concurrency=EPISODES_PER_STEP,
                    retries=1000,
                    lease_seconds=LEASE_SECONDS,
                    resume=True,
                    on_result=on_result,
                )
                values = [r.outcome.parts[PLANNER].components["success"] for r in report.outcomes]
                if values:
                    note(step=step + 1, success=sum(values) / len(values))
                while await _step_of(swarm) <= step:  # noqa: ASYNC110 - others say it
                    await asyncio.sleep(POLL_SECONDS)
    await agent.close()


async def _step_of(swarm: AsyncSwarm) -> int:
    """Return the number of steps that both models have had."""
    return min(status.step for status in (await swarm.status()).values())


async def evaluate(urls: dict[str, str]) -> float:
    """Return the success on the held-out tasks."""
    agent = RelayAgent()
    async with AsyncSwarm(urls, dict.fromkeys(urls, CLIENT)) as swarm:
        found = await swarm.run_episodes_until_all_complete(eval_task_ids(0), agent, kind="eval")
    await agent.close()
    values = [r.outcome.parts[PLANNER].components["success"] for r in found.outcomes]
    return sum(values) / len(values)


# --- The killer -----------------------------------------------------------------------------------


@dataclass
class Cluster:
    """Two servers and a client; each may be killed, and the same command starts it again."""

    directory: Path
    steps: int
    ports: dict[str, int] = field(default_factory=lambda: {role: free_port() for role in WIDTHS})
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    gave_up: int = 0

    @property
    def urls(self) -> dict[str, str]:
        return {role: f"http://127.0.0.1:{port}" for role, port in self.ports.items()}

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"

    def run_dir(self, role: str) -> Path:
        return self.directory / role / "run"

    def start(self, name: str) -> None:
        """Start a server or the client."""
        if name == "client":
            words = ["client", json.dumps(self.urls), str(self.journal), str(self.steps)]
        else:
            peers = {role: url for role, url in self.urls.items() if role != name}
            run_dir = str(self.run_dir(name))
            words = ["gateway", run_dir, str(self.ports[name]), json.dumps(peers)]
        here = Path(__file__).resolve()
        path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(here), *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1"},
            )

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and start it again."""
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name)

    def client_done(self) -> bool:
        """Return whether the client has trained all its steps; if it gave up, start it again."""
        status = self.processes["client"].poll()
        if status:
            self.gave_up += 1
            self.start("client")
        return status == 0

    def wait_rolling(self, role: str) -> None:
        """Wait until a server is ROLLING."""
        deadline = time.monotonic() + BACK_SECONDS
        with SwarmClient(self.urls[role], CONTROL, retries=0) as client:
            while time.monotonic() < deadline:
                if self.processes[role].poll() is not None:
                    log = (self.directory / f"{role}.log").read_text(encoding="utf-8")
                    raise RuntimeError(f"the {role}'s gateway ended:\n{log[-3000:]}")
                with contextlib.suppress(AjetError):
                    if client.status().state is ServerState.ROLLING:
                        return
                time.sleep(POLL_SECONDS)
        raise DeadlineError(f"the {role}'s server is not ROLLING after {BACK_SECONDS:g} s")

    def wait_step(self, step: int) -> None:
        """Wait until both models have had this many steps."""
        with Swarm(self.urls, dict.fromkeys(WIDTHS, CONTROL)) as swarm:
            while min(status.step for status in swarm.status().values()) < step:
                self.client_done()
                time.sleep(POLL_SECONDS)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def rampage(cluster: Cluster, kills: int, rng: random.Random) -> Counter[str]:
    """Kill at random moments, sometimes a second process before the first is back."""
    count: Counter[str] = Counter()
    while count.total() < kills:
        time.sleep(rng.uniform(0.5, 6.0))
        if cluster.client_done():
            cluster.steps += 10
            cluster.start("client")
        names = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=rng.choice([1, 1, 2]))
        for name in list(dict.fromkeys(names))[: kills - count.total()]:
            cluster.kill(name)
            count[name] += 1
            print(f"{count.total():4d} {name}", file=sys.stderr)
        for role in WIDTHS:
            cluster.wait_rolling(role)
    return count


# --- Comparing the records ------------------------------------------------------------------------


def journal_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the client's records, without a line that a kill cut off."""
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def audit(cluster: Cluster) -> dict[str, object]:
    """Compare the records of both servers with each other, and with the client's."""
    states: dict[str, dict[str, str]] = {}
    ended: dict[str, set[str]] = {}
    trained_twice = 0
    for role in WIDTHS:
        ended[role] = set()
        for episode in recorded_episodes(cluster.run_dir(role)):
            record = episode.record
            assert record.joint is not None
            states.setdefault(record.joint.joint_id, {})[role] = record.state
            if record.state == "ended":
                ended[role].add(record.episode_id)
        checkpoint = sorted((cluster.run_dir(role) / "checkpoints").glob("step-*"))[-1]
        trained = json.loads((checkpoint / "witness.json").read_text(encoding="utf-8"))
        batches = Counter(batch_id for batch_id, _ in trained)
        members = Counter(episode for _, episodes in trained for episode in episodes)
        trained_twice += sum(number - 1 for number in [*batches.values(), *members.values()])
    both = dict.fromkeys(WIDTHS, "ended")
    acknowledged = [line["ended"] for line in journal_lines(cluster.journal) if "ended" in line]
    return {
        "committed": sum(found == both for found in states.values()),
        "aborted": sum("ended" not in found.values() for found in states.values()),
        "torn": sum("ended" in found.values() and found != both for found in states.values()),
        "undecided": sum(
            bool({"open", "prepared"} & set(found.values())) for found in states.values()
        ),
        "acknowledged": len(acknowledged),
        "lost": sum(any(ids[r] not in ended[r] for r in WIDTHS) for ids in acknowledged),
        "trained_twice": trained_twice,
    }


def configs(directory: Path) -> dict[str, RunConfig]:
    """Return the demo's configurations, for agents that fail because their servers are killed."""
    found = {}
    for role in WIDTHS:
        config = relay_config(directory / role / "model", 0)
        found[role] = config.model_copy(
            update={
                "trainer": ComponentChoice(name="witness"),
                "failures": FailureConfig(max_rate=1.0, pause_on=()),
                # Workers of a killed gateway are adopted from the first step on.
                "checkpoint_every": 1,
                "batch": config.batch.model_copy(update={"max_aborts_per_task": 1000}),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=at_least(1), default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps",
        type=at_least(1),
        default=30,
        help="steps of each model; more if the kills take longer",
    )
    parser.add_argument("--keep", type=Path, help="keep all files in this directory")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        from ajet_demo.tiny_model import create_tiny_model

        directory = options.keep or Path(temporary)
        for role, width in WIDTHS.items():
            (directory / role).mkdir(parents=True, exist_ok=True)
            if not (directory / role / "model").exists():
                create_tiny_model(directory / role / "model", seed=0, hidden=width)
        cluster = Cluster(directory, options.steps)
        try:
            for role in WIDTHS:
                cluster.start(role)
            with Swarm(cluster.urls, dict.fromkeys(WIDTHS, CONTROL)) as swarm:
                swarm.sync_train_config(configs(directory))
                swarm.start_engine()
                before = asyncio.run(evaluate(cluster.urls))
                cluster.start("client")
                cluster.wait_step(1)
                count = rampage(cluster, options.kills, random.Random(options.seed))
                while not cluster.client_done():
                    time.sleep(POLL_SECONDS)
                after = asyncio.run(evaluate(cluster.urls))
                steps = {role: status.step for role, status in swarm.status().items()}
                swarm.stop_engine()
            with Swarm(cluster.urls, dict.fromkeys(WIDTHS, CLIENT)) as swarm:
                swarm.resolve()
        finally:
            cluster.end()
        books = audit(cluster)
    report(
        {
            "kills": count.total(),
            **{f"kills_{kind}": number for kind, number in sorted(count.items())},
            **books,
            "success_before": round(before, 4),
            "success_after": round(after, 4),
            **{f"steps_{role}": step for role, step in steps.items()},
            "client_gave_up": cluster.gave_up,
            "seconds": round(time.monotonic() - began, 1),
        },
        options.output,
    )


if __name__ == "__main__":
    roles = {"gateway": serve_gateway, "client": run_client}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        main()
