"""What survives when everything is killed: SIGKILL of gateway, workers and clients at random moments of real training.

A tiny model is trained by the torch backend; two clients roll episodes out and note each end that the server has
acknowledged. Then the books are compared: an acknowledged end that the store lacks, or has with another reward, is
lost; a batch that the surviving weights were trained on more than once, or an episode that is in two batches, is
trained twice. Which batches the weights saw is said by the checkpoints themselves (`recovery_witness`).

`recovery_*_s`: from the last SIGKILL of a gateway or worker until the server is ROLLING again, with the gateway
started by the same command. `client_restart_*_s`: from the start of a client's process in the place of a killed one to
its first completed call, of those whose server was not killed meanwhile; `client_restarts` is how many these are.

`--mode` says how rollouts and training take turns: `sync`; `async`; `spare` tasks with a drain, where what is late is
dropped; `mixture`, where each client has a tag of its own; `async_mixture`; `evaluation`, where clients evaluate as often
as they train. Of the mixtures `mixture_off` counts trained
batches that have a whole place more or less of a tag than its ratio asks for, and `mixture_drift` is the most that all
batches together up to any step have so. Of evaluation episodes `eval_trained` counts those that are in a batch, and
`eval_miscounted` those by which the server's scores differ from the store. `staleness_max` is that of any step.

The JSON line comes last; `--output` keeps it, with date and hardware.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reporting import report

from ajet_core.client import Episode, EpisodeFailure, EpisodeResult, SwarmClient, Task
from ajet_core.embedded.store_reader import EpisodeQuery, StoreReader
from ajet_core.errors import AjetError, DeadlineError
from ajet_core.interfaces import EpisodeRecord
from ajet_core.protocol import (
    AlgorithmConfig,
    BatchConfig,
    ComponentChoice,
    Evaluation,
    FailureConfig,
    MixtureConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    ServerState,
)

CONTROL, CLIENT = "recovery-control-token", "recovery-client-token"
POLL_SECONDS = 0.02
BACK_SECONDS = 120.0
CLIENTS = 2
CONCURRENCY = 4
CALLS = 2
TASKS, EPISODES_PER_TASK = 4, 2
ASYNC = RolloutConfig(mode="async", max_staleness=2)
ROLLOUTS = {
    "sync": RolloutConfig(),
    "async": ASYNC,
    "spare": RolloutConfig(spare_tasks=2, drain_seconds=0.5, late="drop"),
    "mixture": RolloutConfig(),
    "async_mixture": ASYNC,
    "evaluation": RolloutConfig(),
}
# By client. Neither is a whole number of places. Clients that are started again are not to lose theirs meanwhile.
MIXTURE = MixtureConfig(ratios={"client-0": 0.6, "client-1": 0.4}, grace_seconds=3600.0)
# After the last kill clients get so long for calls and ends of their own.
CALM_SECONDS = 6.0
WEIGHTS = {"gateway": 2, "worker": 2, "client": 1}


# --- The processes that are killed ----------------------------------------------------------------


def serve_gateway(run_dir: str, model_dir: str, port: str) -> None:
    """The gateway, as `ajet serve` starts it, with the witness among its plugins."""
    from ajet_core.server.serve import serve
    from ajet_core.settings import Settings
    from ajet_core.testing.plugins import plugins_with

    settings = Settings(
        server={
            "run_dir": run_dir,
            "model_roots": [str(Path(model_dir).parent)],
            "port": int(port),
            "control_token": CONTROL,
            "client_token": CLIENT,
            # Deaths on purpose are no sign that something is wrong.
            "worker_restarts": 1000,
        }
    )
    serve(settings, plugins_with("witness", "recovery_plugins"))


def run_client(url: str, name: str, journal: str, started: str, tag: str, kinds: str) -> None:
    """Roll out episodes for ever; each acknowledged end is a line of the journal."""
    import httpx

    http = httpx.Client(timeout=120.0)
    told = False

    def call(episode: Episode, text: str) -> None:
        body = {
            "model": "any",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "temperature": 1.0,
        }
        headers = {"authorization": f"Bearer {episode.api_key}"}
        deadline = time.monotonic() + BACK_SECONDS
        while True:
            try:
                answer = http.post(
                    f"{episode.base_url}/chat/completions", json=body, headers=headers
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 200:
                return
            if answer is not None and answer.status_code not in {429, 502, 503}:
                raise RuntimeError(f"{answer.status_code}: {answer.text}")
            if time.monotonic() > deadline:
                raise TimeoutError("no answer")
            time.sleep(0.05)

    with Path(journal).open("a", encoding="utf-8") as file:

        def note(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        def agent(task: Task, episode: Episode) -> float:
            nonlocal told
            rng = random.Random(episode.episode_id)
            for number in range(CALLS):
                call(episode, f"{task.id} {number}")
                if not told:
                    told = True
                    note(first_call=time.time(), started=float(started))
            return float(rng.random() < 0.5)

        def on_result(result: EpisodeResult | EpisodeFailure) -> None:
            if isinstance(result, EpisodeResult):
                note(ended=result.episode.episode_id, reward=result.outcome.reward)

        with SwarmClient(url, CLIENT) as client:
            for number in range(1_000_000):
                ids = [f"{name}-{started}-{number}-{i}" for i in range(CONCURRENCY)]
                tasks = [Task(task_id, tag=tag) for task_id in ids]
                for kind in kinds.split(","):
                    client.run_episodes_until_all_complete(
                        tasks,
                        agent,
                        episodes_per_task=EPISODES_PER_TASK,
                        concurrency=CONCURRENCY,
                        kind="eval" if kind == "eval" else "train",
                        retries=3,
                        on_result=on_result,
                    )


# --- The killer -----------------------------------------------------------------------------------


def spawn(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """This file in a process of its own."""
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, str(here), *arguments],
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "OMP_NUM_THREADS": "1"},
        )


@dataclass
class Swarm:
    """A server and its clients, each of which may be killed and is started again.

    :ivar mixed: whether each client has a tag of its own.
    :ivar evaluates: whether clients evaluate too.
    """

    directory: Path
    port: int
    mixed: bool
    evaluates: bool
    gateway: subprocess.Popen[bytes] | None = None
    clients: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    gave_up: int = 0
    restarted: list[float] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def run_dir(self) -> Path:
        return self.directory / "run"

    def start_gateway(self) -> None:
        model = str(self.directory / "model")
        self.gateway = spawn(
            "gateway", str(self.run_dir), model, str(self.port), log=self.directory / "gateway.log"
        )

    def start_client(self, name: str) -> None:
        if name in self.clients:
            self.restarted.append(time.time())
        self.clients[name] = spawn(
            "client",
            self.url,
            name,
            str(self.directory / f"{name}.jsonl"),
            repr(self.restarted[-1] if name in self.clients else time.time()),
            name if self.mixed else "",
            "train,eval" if self.evaluates else "train",
            log=self.directory / f"{name}.log",
        )

    def look_after_clients(self) -> None:
        """Clients shall need no restart but ours."""
        for name, process in list(self.clients.items()):
            if process.poll() is not None:
                self.gave_up += 1
                self.start_client(name)

    def workers(self) -> list[int]:
        """Pids of the workers, whoever started them."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    ours = any(word.startswith(bytes(self.run_dir)) for word in words)
                    if b"ajet_core.worker" in words and ours:
                        found.append(int(entry.name))
        return found

    def wait_rolling(self, without: int = 0) -> None:
        """Return once the server is ROLLING, and no longer with a certain worker."""
        deadline = time.monotonic() + BACK_SECONDS
        with SwarmClient(self.url, CONTROL, retries=0) as client:
            while time.monotonic() < deadline:
                assert self.gateway is not None
                if self.gateway.poll() is not None:
                    log = (self.directory / "gateway.log").read_text(encoding="utf-8")
                    raise RuntimeError(f"the gateway ended:\n{log[-3000:]}")
                with contextlib.suppress(AjetError):
                    status = client.status()
                    workers = self.workers()
                    if status.error is not None:
                        raise RuntimeError(f"the run failed: {status.error.message}")
                    if status.state is ServerState.ROLLING and workers and without not in workers:
                        return
                time.sleep(POLL_SECONDS)
        raise DeadlineError(f"the server is not ROLLING after {BACK_SECONDS:g} s")

    def end(self) -> None:
        for process in [*self.clients.values(), *filter(None, [self.gateway])]:
            if process.poll() is None:
                process.kill()
            process.wait()


def kill_one(swarm: Swarm, rng: random.Random) -> tuple[str, int]:
    """SIGKILL something; what it was, and its pid. What was ours to start is started again."""
    kind = rng.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
    if kind == "client":
        name = rng.choice(sorted(swarm.clients))
        process = swarm.clients[name]
        process.kill()
        process.wait()
        swarm.start_client(name)
        return kind, process.pid
    assert swarm.gateway is not None
    workers = swarm.workers()
    if kind == "worker" and workers:
        pid = rng.choice(workers)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return kind, pid
    pid = swarm.gateway.pid
    swarm.gateway.kill()
    swarm.gateway.wait()
    swarm.start_gateway()
    return "gateway", pid


def rampage(
    swarm: Swarm, kills: int, rng: random.Random
) -> tuple[Counter[str], dict[str, list[float]]]:
    """Kill at random moments, now and then again before the server is back."""
    count: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {"gateway": [], "worker": []}
    while count.total() < kills:
        time.sleep(rng.uniform(0.0, 3.0))
        swarm.look_after_clients()
        outage, killed = time.time(), time.monotonic()
        kind, pid = kill_one(swarm, rng)
        count[kind] += 1
        if kind == "client":
            continue
        if rng.random() < 0.2 and count.total() < kills:
            time.sleep(rng.uniform(0.0, 2.0))
            second, its_pid = kill_one(swarm, rng)
            count[second] += 1
            if second != "client":
                kind, pid, killed = second, its_pid, time.monotonic()
        swarm.wait_rolling(without=pid)
        swarm.outages.append((outage, time.time()))
        seconds[kind].append(time.monotonic() - killed)
        print(f"{count.total():4d} {kind:8s} {seconds[kind][-1]:6.2f} s", file=sys.stderr)
    return count, seconds


# --- The books ------------------------------------------------------------------------------------


def journal_lines(directory: Path) -> Iterator[dict[str, object]]:
    """What clients noted; a line that a kill cut off was noted by nobody."""
    for path in sorted(directory.glob("client-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def restarts(swarm: Swarm, lines: list[dict[str, object]]) -> dict[str, object]:
    """How long clients took whose process was started again, while the server was there."""
    took = [
        float(str(line["first_call"])) - began
        for line in lines
        if "first_call" in line
        and (began := float(str(line["started"]))) in swarm.restarted
        and not any(
            gone < float(str(line["first_call"])) and began < back for gone, back in swarm.outages
        )
    ]
    return {
        "client_restarts": len(took),
        "client_restart_p50_s": round(statistics.median(took), 3) if took else None,
        "client_restart_max_s": round(max(took), 3) if took else None,
    }


def mixture(trained: list[Counter[str]]) -> dict[str, object]:
    """How far batches are from their ratios.

    :param trained: tasks of each batch by tag, in order.
    """
    sums: Counter[str] = Counter()
    off, drift = 0, 0.0
    for number, tasks in enumerate(trained, start=1):
        sums += tasks
        ratios = MIXTURE.ratios.items()
        off += any(abs(tasks[tag] - ratio * TASKS) >= 1 for tag, ratio in ratios)
        drift = max(drift, *(abs(sums[tag] - ratio * TASKS * number) for tag, ratio in ratios))
    return {"mixture_off": off, "mixture_drift": round(drift, 3)}


def tasks_by_tag(episodes: list[EpisodeRecord]) -> Counter[str]:
    """The complete tasks of a batch."""
    sizes = Counter((episode.tag, episode.group) for episode in episodes)
    return Counter(tag for (tag, _), size in sizes.items() if size >= EPISODES_PER_TASK)


def evaluation(
    ended: dict[str, EpisodeRecord], members: Counter[str], scores: list[Evaluation]
) -> dict[str, object]:
    """Whether evaluation episodes are kept apart and counted.

    :param members: episodes of all batches.
    :param scores: what the server says.
    """
    found = {i: record for i, record in ended.items() if record.kind == "eval"}
    by_step = Counter(record.claim_version for record in found.values())
    told = Counter({score.step: score.episodes for score in scores})
    return {
        "eval_episodes": len(found),
        "eval_trained": sum(r.batch_id is not None or i in members for i, r in found.items()),
        "eval_miscounted": sum(abs(by_step[step] - told[step]) for step in by_step | told),
    }


def audit(swarm: Swarm, scores: list[Evaluation]) -> dict[str, object]:
    """Compare what was acknowledged and what the weights saw with what is stored."""
    directory = swarm.directory
    run_dir = directory / "run"
    lines = list(journal_lines(directory))
    acknowledged = {str(line["ended"]): line["reward"] for line in lines if "ended" in line}
    noted = sum("ended" in line for line in lines)
    checkpoint = sorted((run_dir / "checkpoints").glob("step-*"))[-1]
    trained: list[tuple[str, list[str]]] = json.loads(
        (checkpoint / "witness.json").read_text(encoding="utf-8")
    )
    saw = [batch_id for batch_id, _ in trained]
    members = Counter(episode for _, episodes in trained for episode in episodes)
    with StoreReader(run_dir) as store:
        ids = store.episode_ids(EpisodeQuery(state="ended"))
        ended = {i: store.load(i).record for i in ids}
    lost = [i for i, reward in acknowledged.items() if i not in ended or ended[i].reward != reward]
    batches = {record.batch_id for record in ended.values() if record.batch_id is not None}
    again = sum(number - 1 for number in Counter(saw).values())
    again += sum(number - 1 for number in members.values())
    metrics = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    made = [tasks_by_tag([ended[e] for e in episodes]) for _, episodes in trained]
    return {
        "acknowledged": len(acknowledged),
        "noted_twice": noted - len(acknowledged),
        "lost": len(lost),
        "trained_twice": again,
        "batches_stored": len(batches),
        "batches_trained": len(saw),
        "batches_untrained": len(batches - set(saw)),
        "staleness_max": max(json.loads(line)["staleness_max"] for line in metrics),
        **(mixture(made) if swarm.mixed else {}),
        **(evaluation(ended, members, scores) if swarm.evaluates else {}),
        **restarts(swarm, lines),
    }


def make_model(directory: Path) -> None:
    """A tiny model; it need not be good at anything."""
    from ajet_core.demo.tiny_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer()
    save(build_model(tokenizer, 0), tokenizer, directory)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--mode", choices=list(ROLLOUTS), default="sync")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="leave everything in this directory")
    parser.add_argument("--output", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        make_model(directory / "model")
        swarm = Swarm(
            directory,
            free_port(),
            mixed="mixture" in options.mode,
            evaluates=options.mode == "evaluation",
        )
        rollout = ROLLOUTS[options.mode]
        asynchronous = rollout.mode == "async"
        config = RunConfig(
            model=ModelConfig(path=str(directory / "model"), renderer="qwen3"),
            engine=ComponentChoice(name="torch"),
            trainer=ComponentChoice(name="witness"),
            algorithm=AlgorithmConfig(
                learning_rate=1e-4, importance="truncated" if asynchronous else "ratio"
            ),
            batch=BatchConfig(tasks=TASKS, episodes_per_task=EPISODES_PER_TASK),
            rollout=rollout,
            mixture=MIXTURE if swarm.mixed else None,
            # Nor are they a batch's fault.
            failures=FailureConfig(max_deaths=1000),
            checkpoint_every=3,
        )
        try:
            swarm.start_gateway()
            with SwarmClient(swarm.url, CONTROL) as client:
                client.sync_train_config(config)
                client.start_engine()
            for number in range(CLIENTS):
                swarm.start_client(f"client-{number}")
            count, seconds = rampage(swarm, options.kills, rng)
            swarm.wait_rolling()
            time.sleep(CALM_SECONDS)
            for process in swarm.clients.values():
                process.kill()
                process.wait()
            with SwarmClient(swarm.url, CONTROL) as client:
                steps = client.status().step
                client.stop_engine()
                scores = list(client.evaluations())
            swarm.clients.clear()
        finally:
            swarm.end()
        every = [value for found in seconds.values() for value in found]
        books = audit(swarm, scores)
    report(
        {
            "mode": options.mode,
            "kills": count.total(),
            **{f"kills_{kind}": number for kind, number in sorted(count.items())},
            "steps": steps,
            **books,
            "clients_gave_up": swarm.gave_up,
            "recovery_p50_s": round(statistics.median(every), 3),
            "recovery_p90_s": round(statistics.quantiles(every, n=10)[-1], 3),
            **{
                f"recovery_{kind}_p50_s": round(statistics.median(found), 3)
                for kind, found in seconds.items()
                if found
            },
        },
        options.output,
    )


if __name__ == "__main__":
    roles = {"gateway": serve_gateway, "client": run_client}
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        roles[sys.argv[1]](*sys.argv[2:])
    else:
        main()
