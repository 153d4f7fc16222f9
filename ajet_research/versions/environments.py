"""An environment for each version: its own wheels, and the dependencies of this environment.

All versions have the same dependencies, by links to those that are installed here. So versions
differ in agentjet alone, nothing is downloaded, and an environment takes seconds.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from shutil import rmtree

from ajet_core.errors import ConfigError
from ajet_core.files import lock_file, write_whole
from ajet_research.study import canonical, digest
from ajet_research.versions.measures import MEASURES
from ajet_research.versions.wheels import cache_directory, check_version, wheels_of

_RECORD = "version.json"
_OURS = ("agentjet", "ajet_", "_agentjet", "__editable__", "__pycache__")
_SCRIPTED = "ajet_scripted-0.dist-info"
_METADATA = "Metadata-Version: 2.1\nName: ajet-scripted\nVersion: 0\n"
_ENTRY_POINTS = (
    "[agentjet]\nscripted = ajet_testing.hooks\n\n[agentjet.hook_api]\n1.0 = ajet_testing.hooks\n"
)
"""The scripted engine and trainer are in agentjet's wheel, and not installed as a plugin."""
_WARM = (
    "import agentjet, ajet_cli.main\n"
    "try:\n    import ajet_server.serve, ajet_server.workers.host\nexcept ImportError:\n    pass"
)
_TURN = 0.05
_SECONDS = 600.0


def environment_of(version: str) -> Path:
    """Return the environment of a version, after creating it if necessary.

    It is finished when its record exists, which is written last: what a killed process has left is
    removed.

    :raises ConfigError: its wheels are missing, or they cannot be installed.
    """
    name = re.sub(r"[^A-Za-z0-9.]+", "-", check_version(version))
    directory = cache_directory() / "environments" / f"{name}-{_fingerprint()[:8]}"
    if (directory / _RECORD).exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(f".{directory.name}.lock")):
        if not (directory / _RECORD).exists():
            rmtree(directory, ignore_errors=True)
            _create(directory, version)
    return directory


def check_extras(version: str, measure: str) -> None:
    """Check that the dependencies of a measure are installed here, in versions that fit.

    :raises ConfigError: some are not.
    """
    from ajet_installation.environment import site_packages
    from ajet_installation.requirements import by_name, unmet

    spec = MEASURES[measure]
    (site,) = site_packages(environment_of(version))
    packages = by_name(distributions(path=[str(site)]))
    missing = unmet("agentjet", packages, extras=[spec.extra])
    for plugin in spec.plugins:
        name = f"agentjet-{plugin.replace('_', '-')}"
        if name not in packages:
            raise ConfigError(f"{measure} needs {name}, and {version} has no wheel of it.")
        missing += unmet(name, packages)
    if missing:
        some = "; ".join(map(str, missing[:3]))
        raise ConfigError(
            f"{measure} of {version} cannot be measured with the dependencies of this environment: "
            f"{some}. Install them here."
        )


@functools.cache
def machine() -> dict[str, str]:
    """Return what figures depend on, with a fingerprint of it."""
    model = platform.processor()
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if named := re.search(r"^model name\s*: (.+)$", text, re.MULTILINE):
            model = named[1]
    facts = {
        "cpu": model,
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return {**facts, "fingerprint": digest(facts)[:12]}


def _create(directory: Path, version: str) -> None:
    # Trials only look an environment up, and these take a fifth of a second.
    from ajet_installation.environment import site_packages
    from ajet_installation.installers import find_installer

    wheels = wheels_of(version)
    packages = _dependencies()
    with_pip = not any(path.name == "pip" for path in packages)
    venv.create(directory, with_pip=with_pip, symlinks=True)
    (site,) = site_packages(directory)
    for path in packages:
        (site / path.name).symlink_to(path)
    python = directory / "bin" / "python"
    installer = find_installer(None, python)
    command = [*installer.install(python), "--no-deps", *map(str, wheels)]
    _run(command, directory, dict(installer.variables))
    scripted = site / _SCRIPTED
    scripted.mkdir()
    (scripted / "METADATA").write_text(_METADATA, encoding="utf-8")
    (scripted / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    own = [str(path) for path in site.iterdir() if not path.is_symlink() and path.is_dir()]
    _run([str(python), "-m", "compileall", "-q", *own], directory, {})
    with suppress(ConfigError):
        # What cannot be imported fails where it is measured.
        _run([str(python), "-c", _WARM], directory, {})
    record = {"version": version, "wheels": [wheel.name for wheel in wheels]}
    write_whole(directory / _RECORD, canonical(record).encode())


def _dependencies() -> list[Path]:
    """Return what is installed in this environment, without what belongs to agentjet."""
    paths = sysconfig.get_paths()
    return sorted(
        path
        for folder in dict.fromkeys((paths["purelib"], paths["platlib"]))
        for path in Path(folder).iterdir()
        if not path.name.startswith(_OURS) and path.suffix != ".pth"
    )


def _fingerprint() -> str:
    """Return the hash of the dependencies and of the interpreter."""
    return digest([sys.version, sys.prefix, *(str(path) for path in _dependencies())])


def _run(command: list[str], directory: Path, variables: dict[str, str]) -> None:
    done = subprocess.run(  # noqa: S603 - an interpreter or installer
        command,
        cwd=directory,
        env={**clean_environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    if done.returncode:
        last = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise ConfigError(f"The environment {directory} cannot be created: {last}")


def clean_environment() -> dict[str, str]:
    """Return this process's variables without those that would change what is measured."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AJET_", "PYTHON", "COV_"))
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for a lock, and hold it."""
    while True:
        try:
            descriptor = lock_file(path)
            break
        except BlockingIOError:
            time.sleep(_TURN)
    try:
        yield
    finally:
        os.close(descriptor)
