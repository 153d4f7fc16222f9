"""One server with all environments of the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("ajet_testing")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server; each environment is at a path of it."""
    directory = tmp_path_factory.mktemp("template")
    subprocess.run(
        [sys.executable, "-m", "openenv.cli", "init", "demo", "--output-dir", str(directory)],
        check=True,
        capture_output=True,
    )
    script = Path(__file__).parent / "environments.py"
    with subprocess.Popen(
        [sys.executable, str(script), str(directory / "demo")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()
