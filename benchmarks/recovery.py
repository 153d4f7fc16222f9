"""Check what survives SIGKILL of gateway, workers and clients at random moments of training.

Three clients roll out episodes and record each end that the server has acknowledged: one with the
runner of `SwarmClient`, one with that of `AsyncSwarmClient`, one with plain HTTP
(`recovery_clients`). Then the records are compared (`recovery_books`). An acknowledged end that the
store lacks, or has with another reward, is lost. A batch that the surviving weights were trained on
more than once, or an episode in two batches, is trained twice. The checkpoints themselves show
which batches the weights were trained on (`recovery_witness`).

Kinds of kills (`KINDS`): the gateway, a worker or a client at any moment; a worker while it boots;
the gateway and then a worker while the next gateway adopts it; the gateway twice in a row; gateway
and workers at once. `kills` counts SIGKILLs, `kills_KIND` these events. `deaths_in_boot` is the
number of workers that died while they booted, according to the server's log.

`runs_stopped` counts how often the run did not continue without help: it failed or paused, the
gateway ended, or the server was not ROLLING within `--patience` seconds. `clients_hung` counts
clients that recorded nothing for so long, or did not end within that time after the command to
finish; their stacks and the server's status go to stderr. `clients_gave_up` counts those that ended
with an error. `tasks_added` is how often a waiting client learnt that the next step's batch lacks
tasks, and rolled out another one.

`recovery_*_s`: from the last SIGKILL of a gateway or worker until the server is ROLLING again,
where the same command starts the gateway. `client_restart_*_s`: from the start of a client's
process that replaces a killed one to its first completed call, for those whose server was not
killed meanwhile; `client_restarts` is their number.

`--backend torch` trains a tiny model. With `scripted`, model and trainer are scripts with delays,
so that a boot takes a second and more kills fit into a minute.

`--mode` selects how rollouts and training alternate: `sync`; `async`; `spare` tasks with a drain,
which drops late episodes; `mixture`, where clients have tags; `async_mixture`; `evaluation`, where
clients evaluate as often as they train. For mixtures, `mixture_off` counts trained batches in which
a tag is a whole slot or more off its ratio, and `mixture_drift` is the largest such deviation of
all batches together up to any step. For evaluation episodes, `eval_trained` counts those that are
in a batch, and `eval_miscounted` those by which the server's scores differ from the store.
`staleness_max` is the highest of any step.

The JSON line comes last; `--output` also writes it to a file, with date and hardware.
"""

from __future__ import annotations

import argparse
import math
import random
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from options import at_least, positive
from recovery_books import audit
from recovery_clients import EPISODES_PER_TASK
from recovery_swarm import CONTROL, Swarm
from reporting import report

from agentjet.client import SwarmClient
from ajet_core.protocol import (
    AlgorithmConfig,
    BatchConfig,
    ComponentChoice,
    FailureConfig,
    MixtureConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
)

TASKS = 4
CLIENTS = {"client-0": "runner", "client-1": "plain", "client-2": "async"}
ASYNC = RolloutConfig(mode="async", max_staleness=2)
ROLLOUTS = {
    "sync": RolloutConfig(),
    "async": ASYNC,
    "spare": RolloutConfig(spare_tasks=2, drain_seconds=0.5, late="drop"),
    "mixture": RolloutConfig(),
    "async_mixture": ASYNC,
    "evaluation": RolloutConfig(),
}
# Neither ratio is a whole number of slots. Clients must not lose their share while they restart.
MIXTURE = MixtureConfig(ratios={"even": 0.6, "odd": 0.4}, grace_seconds=3600.0)
TAGS = {"client-0": "even", "client-1": "odd", "client-2": "even"}
# After the last kill clients get this long to complete calls and ends.
CALM_SECONDS = 6.0
# Maximum time in which a server adopts its workers, and a worker boots; kills within it come at
# random moments.
ADOPTION_SECONDS = 2.0
# The longest time between an outage and the next kill, and the probability that there is none.
PEACE_SECONDS = 3.0
AGAIN = 0.15
# Relative frequency of each kind.
KINDS = {
    "gateway": 3,
    "worker": 3,
    "client": 3,
    "boot": 3,
    "adoption": 2,
    "gateway_twice": 2,
    "both": 2,
}
# With several processes, besides.
PARTS = {"part": 6}
BOOT_SECONDS = {"torch": 8.0, "scripted": 1.5}
WITNESSES = {"torch": "witness", "scripted": "witness_scripted"}


# --- The killer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killer:
    """Kill processes; each method returns the pids of the killed workers.

    :param boot_seconds: approximate duration of a worker's boot.
    """

    swarm: Swarm
    rng: random.Random
    boot_seconds: float

    def gateway(self) -> list[int]:
        """Kill the gateway at any moment."""
        self.swarm.kill_gateway()
        self.swarm.start_gateway()
        return []

    def worker(self) -> list[int]:
        """Kill a worker at any moment."""
        workers = self.swarm.workers()
        if not workers:
            return self.gateway()
        killed = [self.rng.choice(workers)]
        self.swarm.kill_workers(killed)
        return killed

    def both(self) -> list[int]:
        """Kill gateway and workers at once."""
        workers = self.swarm.workers()
        self.swarm.kill_workers(workers)
        return [*workers, *self.gateway()]

    def boot(self) -> list[int]:
        """Kill a worker while it boots, after a death or in a restarted gateway."""
        before = self.swarm.workers()
        killed = self.rng.choice([self.worker, self.both])()
        new = self.swarm.new_worker(before)
        if new is None:
            return killed
        self.wait(self.boot_seconds)
        self.swarm.kill_workers([new])
        return [*killed, new]

    def adoption(self) -> list[int]:
        """Kill the gateway, and a worker while the next gateway adopts it."""
        self.gateway()
        self.wait(ADOPTION_SECONDS)
        return self.worker()

    def gateway_twice(self) -> list[int]:
        """Kill the gateway, and the next one while it adopts its workers or starts others."""
        self.gateway()
        self.wait(ADOPTION_SECONDS)
        return self.gateway()

    def part(self) -> list[int]:
        """Kill one of the server's processes at any moment."""
        if parts := self.swarm.parts():
            self.swarm.kill_part(self.rng.choice(parts))
        return []

    def client(self) -> list[int]:
        """Kill a client at any moment, and start it again."""
        name = self.rng.choice(sorted(self.swarm.clients))
        self.swarm.kill_client(name)
        self.swarm.start_client(name)
        return []

    def any(self) -> tuple[str, list[int]]:
        """Kill something at random; return the kind and the killed workers."""
        kinds = KINDS if self.swarm.processes == 1 else KINDS | PARTS
        kind = self.rng.choices(list(kinds), weights=list(kinds.values()))[0]
        killed: list[int] = getattr(self, kind)()
        return kind, killed

    def again(self) -> bool:
        """Return whether to kill again before the server is back, after a short wait."""
        again = self.rng.random() < AGAIN
        if again:
            self.wait(ADOPTION_SECONDS)
        return again

    def wait(self, at_most: float) -> None:
        """Wait for a random time."""
        time.sleep(self.rng.uniform(0.0, at_most))


def rampage(
    killer: Killer, kills: int, seconds_at_most: float
) -> tuple[Counter[str], dict[str, list[float]]]:
    """Kill at random moments, sometimes again before the server is back.

    :return: how often each kind occurred, and the seconds until the server was back.
    """
    swarm = killer.swarm
    count: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    ends = time.monotonic() + seconds_at_most
    while swarm.kills < kills and time.monotonic() < ends:
        killer.wait(PEACE_SECONDS)
        swarm.look_after_clients()
        outage, gone = time.time(), set[int]()
        while True:
            kind, pids = killer.any()
            killed = time.monotonic()
            gone.update(pids)
            count[kind] += 1
            if swarm.kills >= kills or not killer.again():
                break
        swarm.wait_rolling(without=gone)
        if kind != "client":
            swarm.outages.append((outage, time.time()))
            seconds.setdefault(kind, []).append(time.monotonic() - killed)
        print(f"{swarm.kills:4d} {kind}", file=sys.stderr)
    return count, seconds


def make_model(directory: Path) -> None:
    """Make a tiny model, which need not be good at anything."""
    from ajet_worlds import load_world
    from ajet_worlds.tiny_model import build_model, build_tokenizer, save

    tokenizer = build_tokenizer([load_world("grid")])
    save(build_model(tokenizer, 0), tokenizer, directory)


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def configured(model: Path, mode: str, backend: str) -> RunConfig:
    """Return the configuration of the run."""
    return RunConfig(
        model=ModelConfig(path=str(model), renderer="qwen3"),
        engine=ComponentChoice(name=backend),
        trainer=ComponentChoice(name=WITNESSES[backend]),
        algorithm=AlgorithmConfig(learning_rate=1e-4),
        batch=BatchConfig(tasks=TASKS, episodes_per_task=EPISODES_PER_TASK),
        rollout=ROLLOUTS[mode],
        mixture=MIXTURE if "mixture" in mode else None,
        # Deaths do not count against a batch, and rewards are random.
        failures=FailureConfig(max_deaths=1000, pause_on=()),
        checkpoint_every=3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=at_least(1), default=100)
    parser.add_argument(
        "--minutes", type=positive, default=math.inf, help="stop killing after this many minutes"
    )
    parser.add_argument(
        "--patience",
        type=positive,
        default=120.0,
        help=(
            "seconds after which a client, or a server that is not ROLLING, counts as stuck; "
            "more on a busy machine"
        ),
    )
    parser.add_argument("--mode", choices=list(ROLLOUTS), default="sync")
    parser.add_argument("--backend", choices=list(WITNESSES), default="torch")
    parser.add_argument("--processes", type=at_least(1), default=1, help="of the server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep all files in this directory")
    parser.add_argument("--output", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        make_model(directory / "model")
        swarm = Swarm(
            directory,
            free_port(),
            client_kinds=CLIENTS,
            tags=TAGS if "mixture" in options.mode else {},
            episode_kinds="train,eval" if options.mode == "evaluation" else "train",
            patience=options.patience,
            processes=options.processes,
        )
        config = configured(directory / "model", options.mode, options.backend)
        try:
            swarm.start_gateway()
            with SwarmClient(swarm.url, CONTROL) as client:
                client.sync_train_config(config)
                client.start_engine()
            for name in CLIENTS:
                swarm.start_client(name)
            count, seconds = rampage(
                Killer(swarm, rng, BOOT_SECONDS[options.backend]),
                options.kills,
                60.0 * options.minutes,
            )
            swarm.wait_rolling()
            time.sleep(CALM_SECONDS)
            swarm.finish_clients()
            with SwarmClient(swarm.url, CONTROL) as client:
                steps = client.status().step
                client.stop_engine()
                scores = list(client.evaluations())
        finally:
            swarm.end()
        every = [value for found in seconds.values() for value in found]
        books = audit(swarm, config, scores)
    report(
        {
            "mode": options.mode,
            "backend": options.backend,
            "processes": options.processes,
            "seed": options.seed,
            "kills": swarm.kills,
            **{f"kills_{kind}": number for kind, number in sorted(count.items())},
            "steps": steps,
            **books,
            "runs_stopped": swarm.runs_stopped,
            "clients_hung": swarm.hung,
            "clients_gave_up": swarm.gave_up,
            "recovery_p50_s": round(statistics.median(every), 3),
            "recovery_p90_s": round(statistics.quantiles(every, n=10)[-1], 3),
            **{
                f"recovery_{kind}_p50_s": round(statistics.median(found), 3)
                for kind, found in sorted(seconds.items())
            },
        },
        options.output,
    )


if __name__ == "__main__":
    main()
