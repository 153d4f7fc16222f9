"""The arena ``swarm``: what a study compares, and what scores it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_core.interfaces import World, WorldAnswer, WorldPrompt
from ajet_research.arenas.interface import Arena, MetricSpec, Splits, TrialBlueprint, TrialEvidence
from ajet_research.study import Scalar, digest
from ajet_research.swarm.records import RunRecords, code_failure, read_run
from ajet_research.swarm.settings import (
    REWARDS,
    WORLD_REWARD,
    SwarmSettings,
    parsed,
    resolved,
)
from ajet_worlds import load_world
from ajet_worlds.isolation import IsolatedWorld
from ajet_worlds.rehearsal import rehearse

_PLAYED = 16
"""Tasks that are played twice to see whether a world scores equal answers equally."""


class SwarmArena(Arena):
    """Trials that are runs on swarm servers, and learn a world."""

    summary = (
        "Trains a tiny model by reinforcement learning to play a world, and then plays held-out "
        "tasks. The fastest 'world' is 'bandit'; an unknown one is refused with the known ones. "
        f"'reward' is one of: {', '.join(REWARDS)}; or 'code:' and the path of a program in Python "
        "that rewards each episode of training, and prints one number. Its standard input is JSON "
        "with 'turns' (each with 'messages', 'text' and 'calls') and the world's 'reward'. "
        "'agent' is 'world', or 'code:' and the path of a program in Python. It runs in a sandbox "
        "for each prompt: JSON with 'messages', 'tools' and 'max_tokens' on its standard input, "
        "the answer on its standard output. OPENAI_BASE_URL, OPENAI_API_KEY and AJET_MODEL are "
        "the model, which it has to call. It has the standard library alone. "
        "Other settings are those of a run; a value that is neither a text, a number nor a truth "
        "value is the text 'json:' with its JSON. A setting whose default is 'json:null' is unset."
    )
    reserved = ("engine", "trainer", "merger", "weight_channel")
    programs = ("agent", "reward")
    metrics: Mapping[str, MetricSpec] = {
        "success": MetricSpec(
            "max", 0.0, "mean success on held-out tasks with the weights of the last step"
        ),
        "train_success": MetricSpec(
            "max", 0.0, "mean success of the episodes that were trained on: how fast it learned"
        ),
        "train_reward": MetricSpec(
            "max", None, "mean reward of the episodes of the last step; the world's beside code"
        ),
    }

    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all settings of the trial and of its run."""
        return resolved(settings)

    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:
        """Return the tasks of both splits: worlds derive all of a task from its id."""
        parsed_settings = parsed(settings)
        world = load_world(parsed_settings.world)
        train = world.task_ids("train", seed, parsed_settings.train_tasks)
        held_out = world.task_ids("eval", seed, parsed_settings.eval_tasks)
        return Splits(frozenset(train), frozenset(held_out))

    def evaluator(self, settings: Mapping[str, Scalar]) -> str:
        """Return the hash of the world's code and settings.

        :raises ConfigError: it is not frozen: equal answers to a task score differently, or its
            code cannot be read.
        """
        return _fingerprint(str(settings["world"]))

    def check_machine(self, settings: Mapping[str, Scalar]) -> None:
        """Check that engine and trainer are installed, and their settings."""
        from ajet_research.swarm.machine import check_machine

        check_machine(parsed(settings))

    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Train and evaluate on a swarm server in `directory`, or continue there."""
        from ajet_research.swarm.trial import run_trial

        run_trial(parsed(blueprint.settings), blueprint.seed, directory)

    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:
        """Read the store of the trial's server."""
        parsed_settings = parsed(blueprint.settings)
        records = read_run(directory)
        expected = parsed_settings.run_config(Path(), blueprint.seed).model_dump(mode="json")
        for name in expected.keys() - {"model"}:
            if records.config.get(name) != expected[name]:
                raise ConfigError(f"The run in {directory} has another {name} than its trial.")
        return _evidence(parsed_settings, blueprint.seed, records, code_failure(directory))


def _evidence(
    settings: SwarmSettings, seed: int, records: RunRecords, failed: str
) -> TrialEvidence:
    measured = [
        (one.kind, one.version, one.reward, sorted(one.components.items()))
        for one in records.episodes
    ]
    fingerprint = digest(measured)
    scores = records.held_out(settings.train_steps)
    wanted = load_world(settings.world).task_ids("eval", seed, settings.eval_tasks)
    if missing := sum(task not in scores for task in wanted):
        if failed:
            return TrialEvidence(failed=failed, fingerprint=fingerprint)
        if records.paused:
            return TrialEvidence(
                failed=f"the run paused: {records.paused}", fingerprint=fingerprint
            )
        if records.refused:
            return TrialEvidence(
                failed=f"the run refused its batches: {records.refused}", fingerprint=fingerprint
            )
        raise ConfigError(
            f"The trial is incomplete: it ended {records.step} of {settings.train_steps} steps, "
            f"and {missing} of {settings.eval_tasks} held-out tasks have no score."
        )
    trained = [
        one
        for one in records.episodes
        if one.kind == "train" and one.step is not None and one.step <= settings.train_steps
    ]
    # Rewards that a program computes are not metrics: the world's own rewards are.
    last = [
        one.components[WORLD_REWARD] if settings.rewarded_by_code else one.reward
        for one in trained
        if one.step == settings.train_steps
    ]
    return TrialEvidence(
        metrics={
            "success": _mean(scores[task] for task in wanted),
            "train_success": _mean(one.components["success"] for one in trained),
            "train_reward": _mean(last),
        },
        fingerprint=fingerprint,
    )


def _mean(values: Iterable[float]) -> float:
    sample = list(values)
    return math.fsum(sample) / len(sample)


@functools.cache
def _fingerprint(name: str) -> str:
    world = load_world(name)
    other = 0
    for number, task in enumerate(world.task_ids("eval", 0, _PLAYED)):
        for policy in (world.expert, world.novice):
            first, second = (_score(world, task, policy, number) for _ in range(2))
            other += first != second
    if other:
        raise ConfigError(
            f"The evaluator of the world {name} is not frozen: of {2 * _PLAYED} games that were "
            f"played twice with the same answers, {other} were scored differently. Let the world "
            "derive all its randomness from the task's id."
        )
    own = _modules(world.world_class) if isinstance(world, IsolatedWorld) else []
    try:
        # With other versions of this code, scores might mean something else.
        sources = [inspect.getsource(sys.modules[one]) for one in (*own, __name__)]
    except (OSError, TypeError) as error:
        raise ConfigError(
            f"The evaluator of the world {name} is not frozen: the code of {', '.join(own)} cannot "
            "be read. Install it as source files."
        ) from error
    settings = world.settings.model_dump(mode="json")
    return hashlib.sha256(json.dumps([*sources, settings]).encode()).hexdigest()


def _modules(kind: type) -> list[str]:
    """Return the modules of a class and its bases, and those of the same packages that they use.

    Modules of Python and of agentjet's interfaces say nothing about a score.
    """
    reached: set[str] = set()
    left = [base.__module__ for base in kind.__mro__]
    while left:
        name = left.pop()
        root = name.partition(".")[0]
        if name in reached or root in sys.stdlib_module_names or root == "ajet_core":
            continue
        reached.add(name)
        for value in vars(sys.modules[name]).values():
            used = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "")
            if isinstance(used, str) and used.partition(".")[0] == root and used in sys.modules:
                left.append(used)
    return sorted(reached)


def _score(
    world: World, task: str, policy: Callable[[WorldPrompt, random.Random], WorldAnswer], seed: int
) -> tuple[object, ...]:
    outcome = rehearse(world, task, policy, random.Random(seed)).outcome  # noqa: S311 - a game
    return outcome.reward, outcome.success, sorted(outcome.components.items())
