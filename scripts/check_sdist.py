"""Run the tests of a plugin from its sdist, without this repository's `tests`.

`check_sdist.py [--python PYTHON] PROJECT DIRECTORY [OPTIONS OF PYTEST]` unpacks the sdist in
DIRECTORY. The tests run in PYTHON, by default the current interpreter, which must have what they
need. DIRECTORY's name must not be that of a module: its parent is on the path of the tests.
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


def main(python: str, project: str, directory: str, *options: str) -> int:
    """Return the exit status of pytest."""
    unpacked = unpack(Path(project), Path(directory))
    return subprocess.run(
        [python, "-c", RUN, *options, "tests"], cwd=unpacked, check=False
    ).returncode


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] != "--python":
        arguments = ["--python", sys.executable, *arguments]
    sys.exit(main(*arguments[1:]))
