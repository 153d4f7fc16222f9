"""Training of a program of two agents with a real model, which proves that its agents learn.

The program is that of `ajet_testing.suites.agent_suite.AgentSuite`. A random model would call no
tools, so it is first taught to answer like a scripted model of the same program. Which door is the
best must be learned from rewards.

The model runs in processes of another interpreter, if there is one: frameworks and torch may need
different versions of the same packages. In this repository that is the development environment.
Elsewhere it is this interpreter, with ``pip install 'agentjet[testing,torch]>=0.1'``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentjet.agents import train, trainable
from agentjet.client import AsyncSwarmClient, SwarmClient, Task
from ajet_core.protocol import RunConfig
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import PLANNER, REPLIES, WORKER
from ajet_testing.tokenizers import SPECIALS, write_model
from ajet_testing.tokenizers import train as train_tokenizer

__all__ = ["assert_learns", "learning_python", "real_server"]

_ROOT = Path(__file__).resolve().parents[1]
_DEVELOPMENT = _ROOT / ".venv" / "bin" / "python"
_BACKEND = "ajet_backend_torch"
_STEPS = 8
_TASKS = 4
_EPISODES = 16
_WORDS = 1024
_RENDERER = "qwen3"
_NAME = re.compile(r"t\d{3}x")

_Play = Callable[[str], Awaitable[list[str]]]


def _score(_task: str, doors: list[str]) -> float:
    """The reward: 1 for opening the left door first."""
    return float(doors[:1] == ["left"])


def assert_learns(
    play: _Play,
    directory: Path,
    replies: Sequence[ScriptedReply] = REPLIES,
    *,
    own_words: bool = False,
    seed: int = 0,
) -> None:
    """Train for some steps; check that rewards rise and every call was trained in its episode.

    It takes a minute or two: give the test a marker such as ``pytest.mark.timeout(600)``. Without
    an interpreter that can train a real model, the test is skipped.

    :param play: runs both agents on a task, and returns the doors that they opened, in order.
    :param directory: an empty one.
    :param replies: the answers that the model is first taught.
    :param own_words: give the model a tokenizer trained on the program's texts. For programs whose
        answers have a long form: otherwise a tiny model does not learn it, all rewards are 0, and
        nothing is trained.
    :param seed: of the model's first weights, of its lesson and of the run.
    """
    python = learning_python()
    recorded = _record(play, directory / "scripted", replies)
    tokenizer = directory / "scripted" / "models" / "scripted"
    if own_words:
        recorded, tokenizer = _in_own_words(recorded, tokenizer, directory / "words")
    lesson = directory / "lesson.json"
    lesson.write_text(json.dumps(recorded))
    model = directory / "models" / "doors"
    teach = [python, "-m", "ajet_testing.teach", lesson, tokenizer, model, seed]
    subprocess.run([*map(str, teach)], cwd=directory, check=True, env=_dev_env())  # noqa: S603
    with real_server(directory, python) as (url, token, metrics):
        tasks = list(map(Task, _names()))
        report = train(
            trainable(play, reward=_score),
            tasks,
            client=AsyncSwarmClient(url, token),
            config=_config(model, seed),
            concurrency=_TASKS * _EPISODES,
            progress=False,
        )
        with SwarmClient(url, token) as control:
            # Read all steps: the last one continues after its episodes have ended. If a program
            # blocks the event loop's heartbeats, its slots are freed, and batches have more
            # episodes.
            size, in_steps = _TASKS * _EPISODES, 0.0
            for event in control.events(since=0):
                if event.type == "step":
                    in_steps += event.data["metrics"]["episodes"]
                    if len(report.outcomes) - in_steps < size:
                        break
            control.stop_engine()
        assert [str(failure.error) for failure in report.failures] == []
        rewards = [result.outcome.reward for result in report.outcomes]
        steps = [sum(rewards[i : i + size]) / size for i in range(0, len(rewards), size)]
        print(f"rewards by step: {steps}")  # noqa: T201 - shown if it fails
        trained = [json.loads(line) for line in metrics.read_text().splitlines()]
        assert [line["step"] for line in trained] == list(range(1, len(trained) + 1))
        assert all(line["episodes"] >= size for line in trained)
        assert sum(steps[-2:]) > sum(steps[:2])


def _names() -> list[str]:
    """Return the names of the tasks that the program learns from."""
    return [f"t{i:03}x" for i in range(_STEPS * _TASKS)]


def learning_python() -> str:
    """Return the interpreter that trains a real model, or skip the test if there is none."""
    if _DEVELOPMENT.is_file():
        return str(_DEVELOPMENT)
    if find_spec(_BACKEND) is not None:
        return sys.executable
    pytest.skip("no torch to train a real model with: pip install 'agentjet[testing,torch]>=0.1'")


def _record(
    play: _Play, directory: Path, replies: Sequence[ScriptedReply]
) -> list[dict[str, list[int]]]:
    """Return the calls of some episodes with a scripted model: prompts and sampled tokens."""
    with ScriptedSwarm(directory, replies, batch={"tasks": 6, "episodes_per_task": 4}) as swarm:
        report = train(
            trainable(play, reward=_score),
            [f"t{i:03}x" for i in range(100, 106)],
            client=AsyncSwarmClient(swarm.url, swarm.token),
            progress=False,
            retries=0,
        )
        assert [str(failure.error) for failure in report.failures] == []
        calls = [
            call for result in report.outcomes for call in swarm.calls(result.episode.episode_id)
        ]
        assert {call.agent for call in calls} == {PLANNER, WORKER}
        return [
            {"prompt_ids": list(call.prompt_ids), "sampled_ids": list(call.sampled_ids)}
            for call in calls
        ]


def _in_own_words(
    recorded: Sequence[dict[str, list[int]]], tokenizer: Path, directory: Path
) -> tuple[list[dict[str, list[int]]], Path]:
    """Train a tokenizer on a lesson; return the lesson in its tokens, and its directory.

    The tasks of the lesson get the names of those that are rolled out later. With names of another
    length in tokens, the model, which copies the form from the prompt by its distance, would lose
    the words of its answers. Each call is repeated with all of them: from one name per answer the
    model would learn the answers by heart, and the episodes of a task would be alike.
    """
    before = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = [
        {
            part: _NAME.sub(task, before.decode(ids, skip_special_tokens=False))
            for part, ids in call.items()
        }
        for call in recorded
        for task in _names()
    ]
    corpus = ["".join(call.values()) for call in texts]
    after = train_tokenizer(SPECIALS[_RENDERER], _WORDS, corpus)
    write_model(directory, _RENDERER, tokenizer=after)
    lesson = [
        {part: after.encode(text, add_special_tokens=False).ids for part, text in call.items()}
        for call in texts
    ]
    return lesson, directory


@contextlib.contextmanager
def real_server(directory: Path, python: str) -> Iterator[tuple[str, str, Path]]:
    """Run a server with a real engine and trainer; yield its URL, control token and metrics.

    :param python: the interpreter of the server.
    """
    run_dir = directory / "run"
    serve = [python, "-m", "ajet_cli.main", "serve", "--port", "0"]
    where = ["--run-dir", run_dir, "--model-root", directory / "models"]
    state = directory / "state"
    env = {**_dev_env(), "XDG_STATE_HOME": str(state)}
    process = subprocess.Popen(  # noqa: S603 - our own
        [*map(str, [*serve, *where])], stderr=subprocess.PIPE, text=True, env=env, cwd=directory
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        # Read the pipe to its end: if it were full, the server would block.
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        info = json.loads((run_dir / "server.json").read_text())
        port = info["url"].rpartition(":")[2]
        tokens = json.loads((state / "agentjet" / "servers" / f"{port}.json").read_text())
        yield info["url"], tokens["control"], run_dir / "metrics.jsonl"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def _config(model: Path, seed: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": str(model), "renderer": _RENDERER},
            "seed": seed,
            "batch": {"tasks": _TASKS, "episodes_per_task": _EPISODES},
            "algorithm": {
                "learning_rate": 1e-3,
                "warmup_steps": 3,
                "minibatches": 4,
                "clip_high": 0.3,
                "adam_betas": (0.9, 0.99),
                "max_grad_norm": 1.0,
            },
        }
    )


def _dev_env() -> dict[str, str]:
    """Return the environment variables without those of this interpreter's environment."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME"}
    }
