"""Learning through ``ajet train SOURCE``, in processes as users start them.

Each source shows the walks of the world ``grid`` in its own way. The demo's tiny model, a server
with a real engine and trainer, and the commands `ajet train` and `ajet export` are real. The server
runs in another interpreter if there is one, as in `ajet_testing.door_training`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentjet.client import SwarmClient
from ajet_core.protocol import ServerState
from ajet_testing.door_training import learning_python, real_server
from ajet_worlds import load_world
from ajet_worlds.gridwalk import TOOLS
from ajet_worlds.recipe import run_config

__all__ = ["assert_source_learns", "success_by_step", "walk_names"]

_log = logging.getLogger("ajet.testing")

_WORLD = "grid"
_STEPS = 18
_MAX_TOKENS = 32
"""Of an answer, as for the agents of worlds. One that never ends is noise, and its entropy pauses
the run."""
_MODEL = (
    "import json, sys; from pathlib import Path; from ajet_testing.sources import walk_models; "
    "walk_models.create_walk_model(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))"
)


def walk_names(seed: int, steps: int = _STEPS) -> list[str]:
    """Return the ids of the walks of so many training steps. Seeds share no walk."""
    world = load_world(_WORLD)
    return world.task_ids("train", seed, steps * world.recipe.batch.tasks)


def success_by_step(
    source: str,
    directory: Path,
    *,
    seed: int = 0,
    steps: int = _STEPS,
    python: str = sys.executable,
    tools: Sequence[Any] = TOOLS,
) -> list[float]:
    """Train a new model with ``ajet train``; return the share of successes in each step's episodes.

    No walk is in two steps, so that each share is that on walks which the model was not trained on.

    :param source: as it follows ``ajet train``. Its tasks are those of `walk_names`, and a reward
        of 1 is a success.
    :param directory: where the command runs and what it needs is: files and modules of the source.
    :param python: the interpreter of the command, which has the source.
    :param tools: as the source's prompts have them, for the warm-up of the model.
    :return: by step; fewer than `steps` if the run paused.
    :raises CalledProcessError: a command failed; what it said is on standard error.
    """
    world, server = load_world(_WORLD), learning_python()
    model, run = directory / "models" / "tiny", directory / "run.json"
    model.parent.mkdir()
    _run(directory, server, "-c", _MODEL, str(model), str(seed), json.dumps(tools))
    run.write_text(run_config(world, model, seed=seed).model_dump_json())
    with real_server(directory, server) as (url, token, _):
        train = (_ajet(python), "train", source, "--run", str(run))
        limit = ("--max-tokens", str(_MAX_TOKENS))
        with (
            SwarmClient(url, token) as client,
            _started(directory, *train, *limit, AJET_URL=url, AJET_TOKEN=token) as training,
        ):
            if _ended(training, client):
                client.wait_for_step(steps)
            client.stop_engine()
    rows = directory / "episodes.jsonl"
    _run(directory, _ajet(server), "export", "run", str(rows))
    episodes: dict[int, dict[str, bool]] = defaultdict(dict)
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        if row["step"] is not None:
            episodes[row["step"]][row["episode_id"]] = row["reward"] >= 1
    assert sorted(episodes) == list(range(1, len(episodes) + 1)), "steps without episodes"
    return [sum(episodes[step].values()) / len(episodes[step]) for step in sorted(episodes)]


def assert_source_learns(source: str, directory: Path, tools: Sequence[Any] = TOOLS) -> None:
    """Check that success rises from about 0.2 to 0.9; see `success_by_step`.

    It takes a minute or two on an idle machine: give the test markers such as ``learns`` and
    ``timeout(1200)``.
    """
    successes = success_by_step(source, directory, tools=tools)
    curve = " ".join(f"{one:.2f}" for one in successes)
    assert len(successes) == _STEPS, f"the run paused: {curve}"
    assert _mean(successes[:3]) < 0.45, curve
    assert _mean(successes[-3:]) > 0.8, curve


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ajet(python: str) -> str:
    """Return the command's script. Unlike ``python -m``, it does not find modules beside it."""
    return str(Path(python).parent / "ajet")


def _ended(training: subprocess.Popen[bytes], client: SwarmClient) -> bool:
    """Wait for the command; kill it and return False if the run pauses: it would wait for ever."""
    while training.poll() is None:
        status = client.status()
        if status.state is ServerState.PAUSED:
            _log.warning("the run paused: %s", status.paused)
            training.kill()
            training.wait()
            return False
        with contextlib.suppress(subprocess.TimeoutExpired):
            training.wait(1.0)
    if training.returncode:
        raise subprocess.CalledProcessError(training.returncode, training.args)
    return True


@contextlib.contextmanager
def _started(directory: Path, *command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603 - our own
        command, cwd=directory, env={**_environment(), **variables}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _run(directory: Path, *command: str) -> None:
    subprocess.run(  # noqa: S603 - our own
        command, cwd=directory, env=_environment(), check=True
    )


def _environment() -> dict[str, str]:
    own = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    return {name: value for name, value in os.environ.items() if name not in own}
