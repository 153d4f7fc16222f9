"""Planted regressions that a comparison of versions must flag, and equal versions that it must not.

The baseline is the wheel of this source tree. A regression is the same wheel with a few more lines.
Equal versions are the same wheel in two environments.
"""

from __future__ import annotations

import random
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ajet_core
from ajet_core.errors import ConfigError
from ajet_research.runners import FileRunner
from ajet_research.verifying import verify_study
from ajet_research.versions.comparing import compare_versions
from ajet_research.versions.history import VersionRow
from ajet_research.versions.wheels import core_wheel, kept_version

_SEEDS = 6
"""The least with an error rate of 0.05."""
_SPIN = """

def _spin(seconds):
    import time
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
"""


@dataclass(frozen=True, slots=True)
class PlantedRegression:
    """A change of a wheel that makes one measure worse.

    :param path: of a file in the wheel.
    :param code: that is appended to it; None adds `size` bytes that cannot be compressed.
    """

    measure: str
    path: str
    code: str | None = None
    size: int = 0


REGRESSIONS: dict[str, PlantedRegression] = {
    "slow_import": PlantedRegression(
        "import_cpu", "agentjet/__init__.py", f"{_SPIN}\n_spin(0.12)\n"
    ),
    "bigger_wheel": PlantedRegression("wheel_size", "agentjet/ballast.bin", size=600_000),
    "busy_call": PlantedRegression(
        "call_cpu",
        "ajet_testing/scripted_engine.py",
        f"{_SPIN}\n"
        "_generate = ScriptedEngine.generate\n"
        "def _busy(self, *arguments, **named):\n"
        "    _spin(0.002)\n"
        "    return _generate(self, *arguments, **named)\n"
        "ScriptedEngine.generate = _busy\n",
    ),
    "slow_merge": PlantedRegression(
        "merge_cpu",
        "ajet_server/embedded/trie.py",
        f"{_SPIN}\n"
        "_tree = TokenTrie.tree\n"
        "def _slow(self):\n"
        "    _spin(0.005)\n"
        "    return _tree(self)\n"
        "TokenTrie.tree = _slow\n",
    ),
    "memory": PlantedRegression(
        "idle_memory", "ajet_server/serve.py", "\n_BALLAST = bytearray(b'x') * (48 * 2**20)\n"
    ),
}
_EQUAL = (
    *("import_cpu", "merge_cpu", "call_cpu", "merge_cpu"),
    *("import_cpu", "idle_memory", "import_cpu", "merge_cpu"),
)
"""What equal versions are compared in, by turns: the cheap ones more often."""


def planted_wheel(wheel: Path, planted: PlantedRegression, directory: Path) -> Path:
    """Write a wheel with a planted regression to a directory, and return the directory."""
    directory.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(directory / wheel.name, "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename == planted.path and planted.code is not None:
                content += planted.code.encode()
            target.writestr(entry, content)
        if planted.code is None:
            noise = random.Random(0).randbytes(planted.size)  # noqa: S311 - not for secrets
            target.writestr(zipfile.ZipInfo(planted.path), noise)
    return directory


def run_versions(*, seed: int, size: int = 20, directory: Path | None = None) -> dict[str, Any]:
    """Compare this tree with each planted regression, and with itself `size` times.

    :param seed: six seeds of trials follow from it.
    :param directory: where the studies are kept, and continued; None keeps none.
    :raises ConfigError: this agentjet does not run from its source tree.
    """
    began = time.monotonic()
    root = Path(ajet_core.__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        raise ConfigError("The suite versions builds wheels, so it runs from a source tree alone.")
    base = kept_version("tree", root)
    with tempfile.TemporaryDirectory() as folder:
        where = directory or Path(folder)

        def compared(name: str, measure: str, candidate: str, first_seed: int) -> VersionRow:
            (row,) = compare_versions(
                base,
                candidate,
                where / name,
                measures=[measure],
                seeds=_SEEDS,
                first_seed=first_seed,
                # Processes of trials would take as long as what is measured.
                runner=FileRunner,
            )
            return row

        rows: dict[str, VersionRow] = {}
        for name, planted in REGRESSIONS.items():
            wheels = planted_wheel(core_wheel(base), planted, Path(folder) / "wheels" / name)
            candidate = kept_version(f"wheel:{wheels}", root)
            rows[name] = compared(name, planted.measure, candidate, 1 + _SEEDS * seed)
        same = f"wheel:same@{base.rpartition('@')[2]}"
        equal: dict[str, VersionRow] = {}
        for index in range(size):
            measure = _EQUAL[index % len(_EQUAL)]
            name = f"equal-{index}-{measure}"
            # Each study has seeds of its own.
            equal[name] = compared(name, measure, same, 1 + _SEEDS * (seed + 1 + index))
        problems = [
            f"{name}: {problem}"
            for name, row in (rows | equal).items()
            for problem in verify_study(where / name / f"{row.measure}.study").problems
        ]
    flagged = sum(row.status == "regressed" for row in rows.values())
    alarms = sum(row.verdict in ("better", "worse") for row in equal.values())
    return {
        "suite": "versions",
        "planted": len(rows),
        "flagged": flagged,
        "aa": len(equal),
        "alarms": alarms,
        "regressions": {name: _shown(row) for name, row in rows.items()},
        "equal": {name: _shown(row) for name, row in equal.items()},
        "problems": problems,
        "seconds": round(time.monotonic() - began, 1),
        "passed": flagged == len(rows) and alarms * 20 <= len(equal) and not problems,
    }


def _shown(row: VersionRow) -> list[Any]:
    return [
        row.status,
        *(None if x is None else round(x, 4) for x in (row.ratio, row.low, row.high)),
    ]
