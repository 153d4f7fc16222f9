"""Ray: several nodes, one that is lost and comes back, and nothing that stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray
from batches import LORA, batch, load, make, same, state, weights

from ajet_core.errors import TrainerError, WeightsLostError
from ajet_core.protocol import AlgorithmConfig

pytestmark = pytest.mark.timeout(900)
ALGORITHM = AlgorithmConfig(
    learning_rate=1e-3, minibatches=2, epochs=2, kl_coef=0.1, token_budget=100
)


def rolled(path: str, step: int):
    return batch(
        load(path),
        rewards=(1.0, 0.0, 0.5, 0.0, 0.3, 0.9, 0.0),
        groups="aabbccc",
        step=step,
        seed=step,
        noise=0.2,
        temperatures=(0.7, 1.0),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("lora", [pytest.param(None, id="full"), pytest.param(LORA, id="adapters")])
def test_two_workers_train_as_one_does(lora, started, models, tmp_path):
    """The same losses and gradients; and what one wrote the other goes on from."""
    one, two = (
        started.get(0, tmp_path / str(n), models(), ALGORITHM, lora, workers_per_node=n)
        for n in (1, 2)
    )
    one.save(tmp_path / "begun")
    two.load(tmp_path / "begun")
    for step in (1, 2):
        b = rolled(models(), step)
        mine, other = one.step(b), two.step(b)
        assert mine.tokens_trained == other.tokens_trained
        assert mine.tokens_processed == other.tokens_processed
        for name in ("loss", "grad_norm", "kl", "entropy", "clip_fraction", "ratio_mean"):
            wanted = pytest.approx(mine.metrics[name], rel=2e-2, abs=1e-5)
            assert other.metrics[name] == wanted, name
        for a, c in zip(mine.logprobs, other.logprobs, strict=True):
            assert a == pytest.approx(c, abs=2e-3)
    for name, tensor in weights(one).items():
        # Adam makes a sign of a gradient that is nearly nothing.
        assert (tensor - weights(two)[name]).abs().mean() < 2e-4, name


def until(there, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.nightly
def test_a_node_is_lost_and_comes_back(cluster, models, tmp_path):
    """What was trained since the checkpoint is trained again, and comes out the same."""
    node = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", dashboard_agent_listen_port=0)
    trainer = make(models(), tmp_path / "run", ALGORITHM, nodes=2)
    places = {
        ray.get(worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
        for worker in trainer.policy.workers._group.workers
    }
    assert len(places) == 2
    trainer.step(rolled(models(), 1))
    trainer.save(tmp_path / "checkpoint")
    trainer.step(rolled(models(), 2))
    wanted = state(trainer)
    pids = [
        ray.get(worker.__ray_call__.remote(lambda _: os.getpid()))
        for worker in trainer.policy.workers._group.workers
    ]

    # Not asked to end: the process that looks after the node is killed, and all of the node with
    # it.
    cluster.remove_node(node, allow_graceful=False)
    # Workers end a moment after their node; until then they could still train a step.
    until(lambda: any(map(has_ended, pids)))
    with pytest.raises(WeightsLostError, match="continue from the last checkpoint"):
        trainer.step(rolled(models(), 3))
    for attempt in (
        lambda: trainer.step(rolled(models(), 3)),
        lambda: trainer.publish("safetensors_dir", 3),
        lambda: trainer.save(tmp_path / "too late"),
    ):
        with pytest.raises(WeightsLostError):
            attempt()
    trainer.close()

    # Without the node there is no place; the server would try again.
    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)
    with pytest.raises(TrainerError, match="on each of 2 nodes"):
        make(models(), tmp_path / "waiting", ALGORITHM, nodes=2, start_seconds=0.5)
    cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1", dashboard_agent_listen_port=0)
    again = make(models(), tmp_path / "again", ALGORITHM, nodes=2)
    again.load(tmp_path / "checkpoint")
    again.step(rolled(models(), 2))
    assert same(state(again), wanted)
    again.close()


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_cluster_of_our_own_leaves_no_process_behind(how, models, tmp_path):
    script = Path(__file__).with_name("own_cluster.py")
    kept = {name: value for name, value in os.environ.items() if name[:4] != "RAY_"}
    run = subprocess.Popen(
        [sys.executable, str(script), models(), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert run.stdin is not None
        assert run.stdout is not None
        lines = (line for line in run.stdout if line.startswith("{"))
        found = json.loads(next(lines))
        assert found["trained"] > 0
        # Nobody else may run code in it.
        assert found["open_to_others"] == []
        assert found["token"]
        family = descendants(run.pid)
        assert len(family) > 2
        if how == "killed":
            os.kill(run.pid, signal.SIGKILL)
        else:
            run.stdin.close()
        assert run.wait(60) == (-signal.SIGKILL if how == "killed" else 0)
        # Two agents of Ray try for a minute to tell the head, which is gone, that they end.
        until(lambda: not any(psutil.pid_exists(pid) for pid in family), 100)
        if how == "closed":
            assert not Path(found["directory"]).exists()
        else:
            from ajet_backend_verl.cluster import _remove_abandoned

            _remove_abandoned()
            assert not Path(found["directory"]).exists()
    finally:
        run.kill()
        run.wait()
