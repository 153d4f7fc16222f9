"""Run the tests of a plugin from its sdist, without this repository's `tests`.

`check_sdist.py PROJECT DIRECTORY [OPTIONS OF PYTEST]` unpacks the sdist in DIRECTORY. The tests'
requirements must be installed in the current environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

RUN = "import sys, pytest; sys.modules['tests'] = None; sys.exit(pytest.main(sys.argv[1:]))"


def unpack(project: Path, directory: Path) -> Path:
    """Build the sdist, and return the directory that it is unpacked to."""
    shutil.rmtree(directory, ignore_errors=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist"]
    subprocess.run([*build, "--outdir", directory, project], check=True, stdout=subprocess.DEVNULL)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def main(project: str, directory: str, *options: str) -> int:
    """Return the exit status of pytest."""
    unpacked = unpack(Path(project), Path(directory))
    return subprocess.run(
        [sys.executable, "-c", RUN, *options, "tests"], cwd=unpacked, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
