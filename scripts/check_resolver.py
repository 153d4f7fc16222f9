"""Check what pip would install on Linux with CUDA.

Usage: `check_resolver.py WHEELS DIRECTORY [EXTRAS ...]`.

WHEELS is a directory that `make wheels` filled. The commands for users of a GPU must select
versions that work together. pip has no dry run without downloads: the script downloads some
gigabytes from the package index, takes some minutes, and installs nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from check_wheels import run
from packaging.requirements import Requirement
from packaging.version import Version

PYTHON = "3.12"
GLIBC_MINORS = range(5, 36)
TAGS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{n}" for n in GLIBC_MINORS))
# For another platform pip resolves only from wheels, but this package has only sources.
SOURCES_ONLY = ("antlr4-python3-runtime==4.9.3",)
# Versions that were tested (on a CPU), or that the project itself names.
LINES = {
    # The first command of users; the servers are in a separate environment.
    "agentjet[verl,vllm]": {
        "verl": ("0.9.1", "0.10"),
        "torch": ("2.11", "2.14"),
        "transformers": ("5.9", "5.24"),
        "hydra-core": ("1.3", "2"),
        "ray": ("2.41", "3"),
    },
    "agentjet[verl,vllm-cuda]": {
        "verl": ("0.9.1", "0.10"),
        "vllm": ("0.31", "0.33"),
        "torch": ("2.11", "2.14"),
        "transformers": ("5.9", "5.11"),
        "hydra-core": ("1.3", "2"),
        "ray": ("2.41", "3"),
    },
}


def resolve(line: str, wheels: Path, directory: Path) -> dict[str, str]:
    """Return the versions, by name, that pip selects for a user's command."""
    report = directory / "report.json"
    pip = (sys.executable, "-m", "pip")
    sources = directory / "built"
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", sources, *SOURCES_ONLY)
    platforms = [part for tag in TAGS for part in ("--platform", f"{tag}_x86_64")]
    run(
        *(*pip, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report),
        *("--only-binary=:all:", "--python-version", PYTHON, *platforms),
        *("--target", directory / "nothing", "--find-links", wheels, "--find-links", sources, line),
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


def check(line: str, wheels: Path, directory: Path) -> None:
    """Compare pip's choice with the versions that are known to work together."""
    versions = resolve(line, wheels, directory)
    known = LINES[line]
    for name, (least, below) in known.items():
        found = versions.get(name)
        if found is None:
            sys.exit(f"pip install '{line}' leaves out {name}")
        if Requirement(f"x>={least},<{below}").specifier.contains(Version(found)):
            continue
        sys.exit(f"pip install '{line}' takes {name} {found}; known to work: >={least},<{below}")
    told = ", ".join(f"{name} {versions[name]}" for name in known)
    print(f"pip install '{line}' takes {len(versions)} packages: {told}", flush=True)


def main(wheels: Path, directory: Path, only: list[str]) -> None:
    """Check all commands, or those with one of the extras in `only`."""
    directory.mkdir(parents=True, exist_ok=True)
    for line in LINES:
        if not only or set(only) & Requirement(line).extras:
            check(line, wheels, directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:])
