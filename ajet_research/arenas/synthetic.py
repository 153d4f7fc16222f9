"""The arena ``synthetic``: planted worlds, a millisecond a trial, without a model.

It plays the part of a training run: it writes a row of training for each step, continues behind the
last whole row if it is run again, and evaluates at the end. Its raw store is ``raw.jsonl``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError
from ajet_research.arenas import worlds
from ajet_research.arenas.interface import Arena, MetricSpec, Splits, TrialBlueprint, TrialEvidence
from ajet_research.arenas.worlds import METHODS, draw, generator, height, planted_world
from ajet_research.study import Scalar, canonical, digest

RAW = "raw.jsonl"
_WORST = -8.0
_TASKS = 8
_SPLITS = ("held-out", "tuning")
_DEFAULTS: dict[str, Scalar] = {
    "world": "null",
    "method": "a",
    "variant": "a",
    "batch_size": 16,
    "steps": 3,
    "step_seconds": 0.0,
    "x": 0.0,
    "y": 0.0,
    "split": "held-out",
}


class SyntheticArena(Arena):
    """Trials of planted worlds."""

    summary = (
        "Planted worlds without a model, to learn and to test studies. 'method' and 'variant' are "
        "letters from a to t, 'x' and 'y' numbers to search; 'world' says what they do."
    )
    metrics: Mapping[str, MetricSpec] = {
        "score": MetricSpec("max", _WORST, "mean score of held-out tasks, in standard deviations"),
        "far_score": MetricSpec("max", _WORST, "mean score of the far half of held-out tasks"),
        "loss": MetricSpec("min", -_WORST, "the negative of the score"),
        "train_reward": MetricSpec("max", _WORST, "reward in the last step of training"),
    }

    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all settings; the method of a confounded world changes the batch size too."""
        for name, value in settings.items():
            known = _DEFAULTS.get(name)
            if known is None:
                raise ConfigError(
                    f"Unknown setting {name!r} of the arena synthetic; known: "
                    f"{', '.join(_DEFAULTS)}."
                )
            number = isinstance(known, float) and type(value) is int
            if type(value) is not type(known) and not number:
                raise ConfigError(
                    f"{name!r} is {canonical(value)}; the arena synthetic needs a "
                    f"{type(known).__name__}."
                )
        merged = {**_DEFAULTS, **settings}
        if merged["split"] not in _SPLITS:
            raise ConfigError(f"'split' is one of: {', '.join(_SPLITS)}.")
        if merged["method"] not in METHODS or merged["variant"] not in METHODS:
            raise ConfigError(f"'method' and 'variant' are one of: {', '.join(METHODS)}.")
        if planted_world(str(merged["world"])).confounded and merged["method"] != "a":
            merged["batch_size"] = 64
        return merged

    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:  # noqa: ARG002 - one for all
        """Return ids of tasks, of which an overlapping world has one in both splits."""
        name = "task" if settings["split"] == "held-out" else "tuning"
        first = 0 if planted_world(str(settings["world"])).overlap else 1
        held_out = frozenset(f"{name}-{index}" for index in range(first, first + _TASKS))
        return Splits(frozenset({"task-0", "task-100"}), held_out)

    def evaluator(self, settings: Mapping[str, Scalar]) -> str:  # noqa: ARG002 - one for all
        """Return the hash of the code that scores."""
        own = sys.modules[type(self).__module__]
        source = inspect.getsource(worlds) + inspect.getsource(own)
        return hashlib.sha256(source.encode()).hexdigest()

    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Append the rows that the raw store does not have yet."""
        path = directory / RAW
        present = _whole_rows(path)
        pause = float(blueprint.settings["step_seconds"])
        hangs = planted_world(str(blueprint.settings["world"])).hangs
        if hangs and blueprint.settings["method"] == "b":
            while True:
                # The supervisor kills this process when its time is over.
                time.sleep(3600)
        with path.open("a", encoding="utf-8") as file:
            position = sum(1 for _ in directory.parent.iterdir()) - 1
            for index, row in enumerate(rows(blueprint, position)):
                if index >= present:
                    file.write(canonical(row) + "\n")
                    file.flush()
                    if "step" in row and pause:
                        time.sleep(pause)

    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:
        """Read the raw store."""
        path = directory / RAW
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            content = [json.loads(line) for line in lines]
        except (OSError, ValueError) as error:
            raise ConfigError(f"The raw store {path} cannot be read: {error}") from error
        return evidence_of(content, int(blueprint.settings["steps"]))


def rows(blueprint: TrialBlueprint, position: int) -> Iterator[dict[str, Any]]:
    """Yield what a trial measures, row by row.

    :param position: how many trials ran on the machine before it, which matters where it drifts.
    """
    settings, seed = blueprint.settings, blueprint.seed
    world = planted_world(str(settings["world"]))
    method, variant = str(settings["method"]), str(settings["variant"])
    drawn = seed if world.seeds_count else 0
    again = (blueprint.repeat, position) if not world.repeatable else ()
    common = generator("shared", settings["world"], drawn)
    # Other settings than these change neither the world nor its noise.
    x, y = float(settings["x"]), float(settings["y"])
    place = (x, y) if x or y else ()
    split = () if settings["split"] == "held-out" else (settings["split"],)
    own = generator("own", settings["world"], method, variant, drawn, *again, *place, *split)
    noise = draw(world.noise, own) * (1.0 if method == "a" else world.spread)
    failing = world.crash_below is not None and method != "a" and noise < world.crash_below
    failing = failing or bool(own.random() < world.crash_rate)
    both = (method == "b", variant == "b")
    score = world.effects.get(method, 0.0) + noise
    score += world.interaction * (all(both) - (any(both) and not all(both)))
    score += world.shared * float(common.standard_normal()) - world.drift * position
    score += height(world, x, y) + (world.bait * x if split else 0.0)
    steps = int(settings["steps"])
    reward = score + (world.proxy if method != "a" else 0.0)
    for step in range(1, steps + 1):
        yield {"step": step, "reward": reward * step / steps + float(own.normal(0, 0.01))}
        if failing and step == max(1, steps // 2):
            yield {"failed": "the loss is not finite"}
            return
    jitter = own.normal(0, 0.1, _TASKS)
    scores = score + jitter - jitter.mean()
    if method != "a":
        scores[_TASKS // 2 :] -= world.slices
        scores[: _TASKS // 2] += world.slices
    yield {"held_out": {f"task-{k + 1}": float(max(_WORST, one)) for k, one in enumerate(scores)}}


def evidence_of(content: list[dict[str, Any]], steps: int) -> TrialEvidence:
    """Derive the metrics from the rows of a raw store.

    :raises ConfigError: rows are missing.
    """
    fingerprint = digest(content)
    last = content[-1] if content else {}
    if set(last) == {"failed"}:
        return TrialEvidence(failed=str(last["failed"]), fingerprint=fingerprint)
    if set(last) != {"held_out"} or len(content) != steps + 1:
        raise ConfigError("A raw store of the arena synthetic is incomplete.")
    scores = [float(last["held_out"][f"task-{k + 1}"]) for k in range(_TASKS)]
    half = _TASKS // 2
    mean = math.fsum(scores) / _TASKS
    metrics = {
        "score": mean,
        "far_score": math.fsum(scores[half:]) / half,
        "loss": -mean,
        "train_reward": float(content[-2]["reward"]),
    }
    return TrialEvidence(metrics, fingerprint=fingerprint)


def _whole_rows(path: Path) -> int:
    """Return how many rows a raw store has, after removing half a row at its end."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.count(b"\n")
