"""Build the packages and install them in a new environment: `check_wheels.py DIRECTORY`.

It leaves wheels and sdists in DIRECTORY. It fails if a built package lacks a file, declares wrong
metadata, or does not work without the source tree. torch is not installed: plugins must be listed
without importing their requirements.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = (ROOT, *sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml")))
REQUIRED = {
    "agentjet": (
        "ajet_server/page/viewer/page.html",
        "ajet_server/page/assets/index.html",
        "ajet_server/page/assets/uplot.LICENSE.txt",
        *sorted(
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "ajet_cli" / "plugin_projects").glob("[tp]*/**/*")
            if path.is_file()
        ),
        "ajet_installation/recipes/vllm.toml",
        "ajet_installation/recipes/vllm-cpu.txt",
        "ajet_testing/suites/engine_suite.py",
        "ajet_testing/suites/trainer_suite.py",
        "ajet_testing/suites/loss_suite.py",
        "ajet_testing/suites/store_suite.py",
        "ajet_testing/suites/merger_suite.py",
        "ajet_testing/suites/agent_suite.py",
    ),
    "agentjet-engine-sglang": ("ajet_engine_sglang/in_server/ajet_sglang_server.py",),
    "agentjet-engine-vllm": ("ajet_engine_vllm/in_server/ajet_vllm_worker.py",),
}
EMPTY_PAGE = {"title": "", "episodes": []}


def run(*args: str | Path, cwd: Path | None = None) -> str:
    """Run a command, and show its output if it fails."""
    done = subprocess.run(
        list(map(str, args)), capture_output=True, text=True, cwd=cwd, check=False
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, args))}\n{done.stdout}{done.stderr}")
    return done.stdout


def read_version() -> str:
    """Return the version of all packages; plugins read it from the core, or from their sdist."""
    text = (ROOT / "ajet_core" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        sys.exit("ajet_core/__init__.py: there is no __version__")
    return found.group(1)


def build(project: Path, directory: Path) -> Path:
    """Build a project's sdist, and its wheel from the sdist, which proves the sdist complete."""
    out = directory / project.name
    # Two isolated environments per project would take most of the time; all need only hatchling.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, project)
    (wheel,) = out.glob("*.whl")
    return wheel


def find_packages(project: Path) -> list[str]:
    """Return the import packages of a project."""
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    packages = declared["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return [Path(package).name for package in packages]


def check_contents(project: Path, wheel: Path) -> None:
    """Compare the wheel's files and metadata with the project's declaration."""
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    name = declared["name"]
    expected = {
        "Name": name,
        "Version": read_version(),
        "Summary": declared["description"],
        "License-Expression": declared["license"],
        "Requires-Python": declared["requires-python"],
    }
    for key, value in expected.items():
        if metadata[key] != value:
            sys.exit(f"{wheel.name}: {key} is {metadata[key]!r}, not {value!r}")
    if not wheel.name.endswith("-py3-none-any.whl"):
        sys.exit(f"{wheel.name}: is not for every system")
    if not metadata.get_payload():
        sys.exit(f"{wheel.name}: the description is empty")
    typed = {f"{package}/py.typed" for package in find_packages(project)}
    if missing := {*typed, *REQUIRED.get(name, ())} - names:
        sys.exit(f"{wheel.name}: {min(missing)} is missing")
    for group in ("[agentjet]", "[agentjet.hook_api]"):
        if group not in entry_points:
            sys.exit(f"{wheel.name}: the entry points {group} are missing")
    if stray := sorted(n for n in names if n.split("/")[0] in {"tests", "docs", "benchmarks"}):
        sys.exit(f"{wheel.name}: should not hold {stray[0]}")


def check_installed(core: Path, plugins: list[Path], directory: Path) -> None:
    """Install all wheels in a fresh environment, and use the command."""
    environment = directory / "venv"
    venv.create(environment, with_pip=True, clear=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", core)
    # Some plugins need a newer Python, for a library that listing them does not import.
    options = ("--quiet", "--no-deps", "--ignore-requires-python")
    run(python, "-m", "pip", "install", *options, *plugins)
    # Run in another directory, so that the source tree is not on the path.
    ajet = environment / "bin" / "ajet"
    print(run(ajet, "version", cwd=directory).strip())
    rows = json.loads(run(ajet, "plugins", "--json", cwd=directory))
    found = {row["name"]: row for row in rows}
    for row in rows:
        if row["problem"] or not row["components"]:
            sys.exit(f"plugin {row['name']!r} is not usable from its wheel: {row}")
    if len(found) != len(plugins) + 1:
        sys.exit(f"expected the core and {len(plugins)} plugins, but found only {', '.join(found)}")
    run(ajet, "--help", cwd=directory)
    # Check only that a page can be assembled from the package's files; other tests check its
    # content.
    run(
        python,
        "-c",
        f"from ajet_server.page.viewer_page import page; page({EMPTY_PAGE!r})",
        cwd=directory,
    )
    run(python, "-c", "import agentjet.client", cwd=directory)
    # Starting the server may need only what the extra declares.
    run(python, "-m", "pip", "install", "--quiet", f"{core}[server]")
    run(python, "-c", "import ajet_server.serve, ajet_server.workers.host", cwd=directory)


def main(directory: Path) -> None:
    """Build and check all packages; their wheels and sdists replace those in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    # pip would also use old ones.
    for old in (*directory.glob("*.whl"), *directory.glob("*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        wheels = []
        for project in PROJECTS:
            wheel = build(project, Path(name))
            check_contents(project, wheel)
            print(f"built {wheel.name} ({wheel.stat().st_size // 1024} KiB)")
            wheels.append(Path(shutil.copy(wheel, directory)))
            (sdist,) = wheel.parent.glob("*.tar.gz")
            shutil.copy(sdist, directory)
        check_installed(wheels[0], wheels[1:], Path(name))
    print("wheels are fine")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
