"""The arena ``versions``: a trial measures one thing of one version in an environment of its own.

Its raw store is ``samples.json``: the samples, or why there are none, and the machine.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError
from ajet_core.files import read_json, write_whole
from ajet_research.arenas.interface import Arena, MetricSpec, Splits, TrialBlueprint, TrialEvidence
from ajet_research.study import Scalar, canonical, digest
from ajet_research.versions import measures, program
from ajet_research.versions.environments import (
    check_extras,
    clean_environment,
    environment_of,
    machine,
)
from ajet_research.versions.measures import MEASURES
from ajet_research.versions.wheels import check_version, core_wheel

RAW = "samples.json"
WORST = 20.0
"""The logarithm that a trial counts with if its version fails: about half a thousand million."""
_LEAST = 1e-9
_DEFAULTS: dict[str, Scalar] = {"measure": "import_cpu", "version": ""}
_WHEEL = "wheel_size"


class VersionsArena(Arena):
    """Trials that measure an installed version of agentjet."""

    metrics: Mapping[str, MetricSpec] = {
        "log_value": MetricSpec(
            "min", WORST, "natural logarithm of the value: differences are ratios"
        ),
        "value": MetricSpec("min", None, "median of the samples, in the unit of the measure"),
    }

    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return measure and version."""
        if unknown := sorted(settings.keys() - _DEFAULTS.keys()):
            raise ConfigError(
                f"Unknown setting {unknown[0]!r} of the arena versions; known: "
                f"{', '.join(_DEFAULTS)}."
            )
        merged = {**_DEFAULTS, **settings}
        if merged["measure"] not in MEASURES:
            raise ConfigError(f"'measure' is one of: {', '.join(MEASURES)}.")
        check_version(str(merged["version"]))
        return merged

    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:  # noqa: ARG002 - none
        """Return no tasks: what learns in a trial takes them from its world, by its own rule."""
        return Splits(frozenset(), frozenset())

    def evaluator(self, settings: Mapping[str, Scalar]) -> str:  # noqa: ARG002 - one for all
        """Return the hash of the code that measures."""
        sources = [Path(str(one.__file__)) for one in (program, measures)] + [Path(__file__)]
        content = b"".join(path.read_bytes() for path in sources)
        return hashlib.sha256(content).hexdigest()

    def check_machine(self, settings: Mapping[str, Scalar]) -> None:
        """Create the environment of the version, and check that it has what the measure needs."""
        check_extras(str(settings["version"]), str(settings["measure"]))

    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Measure once, unless it was measured before."""
        path = directory / RAW
        if path.exists():
            return
        version, measure = (str(blueprint.settings[name]) for name in ("version", "measure"))
        wheel = core_wheel(version)
        measured = (
            {"samples": [float(wheel.stat().st_size)]}
            if measure == _WHEEL
            else _measured(version, measure, blueprint.seed)
        )
        about = {"settings": blueprint.settings, "seed": blueprint.seed, "machine": machine()}
        content = {**measured, **about, "agentjet": wheel.name.split("-")[1]}
        write_whole(path, canonical(content).encode(), mode=0o644)

    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:
        """Read the samples."""
        raw = read_json(directory / RAW)
        if (raw["settings"], raw["seed"]) != (blueprint.settings, blueprint.seed):
            raise ConfigError(f"{directory / RAW} belongs to another trial.")
        if raw.get("failed"):
            return TrialEvidence(failed=str(raw["failed"]), fingerprint=digest(raw))
        samples = [float(sample) for sample in raw["samples"]]
        value = statistics.median(samples)
        return TrialEvidence(
            metrics={"value": value, "log_value": math.log(max(value, _LEAST))},
            # With the seed, because trials may measure equal numbers, such as sizes.
            fingerprint=digest([samples, blueprint.seed]),
        )


def _measured(version: str, measure: str, seed: int) -> dict[str, Any]:
    """Return the samples, or why the version fails."""
    python = environment_of(version) / "bin" / "python"
    # Not in the raw store, where nothing but the samples counts.
    with tempfile.TemporaryDirectory(prefix="ajet-version-") as folder:
        done = subprocess.run(  # noqa: S603 - the version's interpreter
            # Without -P, modules beside the program would hide others of the same name.
            [python, "-P", str(program.__file__), measure, str(seed), folder],
            cwd=folder,
            env={**clean_environment(), "PYTHONHASHSEED": str(seed % 2**32)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"failed": lines[-1].replace(folder, "DIR")[:300]}
    samples: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return {"samples": samples}
