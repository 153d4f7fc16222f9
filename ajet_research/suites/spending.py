"""The arena ``spending`` of the suite ``budgets``: trials that take what a budget limits.

No distribution registers it: the suite does, for the processes of its studies alone.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ajet_core.errors import ConfigError
from ajet_research.arenas import Arena, MetricSpec, Splits, TrialBlueprint, TrialEvidence
from ajet_research.study import Scalar

METHODS = ("modest", "one-file", "many-files", "busy", "crashing")
_SCORE = "score.json"
_CHUNK = bytes(2**16)
_BLOCK = 2**12
_MODEST = 16
"""Chunks that a modest trial writes: 1 MiB."""
_CRASHES_AFTER = 0.7
"""Part of its time after which a crashing trial fails."""


class SpendingArena(Arena):
    """Trials that write or compute without an end, beside modest ones."""

    metrics: Mapping[str, MetricSpec] = {"score": MetricSpec("max", 0.0, "a number")}

    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return the method."""
        if settings.keys() != {"method"} or settings["method"] not in METHODS:
            raise ConfigError(f"method is one of {', '.join(METHODS)}, and the only setting.")
        return dict(settings)

    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:  # noqa: ARG002 - none
        """Return no tasks."""
        return Splits(frozenset(), frozenset())

    def evaluator(self, settings: Mapping[str, Scalar]) -> str:  # noqa: ARG002 - one for all
        """Return the hash of this code."""
        source = inspect.getsource(sys.modules[type(self).__module__])
        return hashlib.sha256(source.encode()).hexdigest()

    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Take what the method takes."""
        method = blueprint.settings["method"]
        if method in ("busy", "crashing"):
            part = _CRASHES_AFTER if method == "crashing" else 1000.0
            until = time.monotonic() + part * blueprint.seconds
            while time.monotonic() < until:
                hashlib.sha256(_CHUNK).digest()
            raise RuntimeError("the machine is said to be broken")
        chunks = range(_MODEST) if method == "modest" else itertools.count()
        for chunk in chunks:
            many = method == "many-files"
            with (directory / (f"{chunk}.bin" if many else "all.bin")).open("ab") as file:
                file.write(_CHUNK[:_BLOCK] if many else _CHUNK)
        score = {"score": 1.0 + blueprint.seed / 100}
        (directory / _SCORE).write_text(json.dumps(score), encoding="utf-8")

    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:  # noqa: ARG002 - see below
        """Read the score, which a trial has that came to its end."""
        path = directory / _SCORE
        if not path.exists():
            raise ConfigError(f"{path} is missing.")
        score = float(json.loads(path.read_bytes())["score"])
        return TrialEvidence({"score": score}, fingerprint=str(score))
