"""The hooks of `.pre-commit-config.yaml`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[1] / ".pre-commit-config.yaml"


def test_no_hook_is_fetched() -> None:
    repositories = re.findall(r"^ *- repo: (.+)$", CONFIG.read_text("utf-8"), re.MULTILINE)
    assert repositories == ["local"]


@pytest.mark.processes
@pytest.mark.parametrize(("length", "accepted"), [(72, True), (73, False)])
def test_subjects_have_at_most_72_characters(length: int, accepted: bool, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    shutil.copy(CONFIG, tmp_path)
    subprocess.run(["git", "add", CONFIG.name], cwd=tmp_path, check=True)
    message = tmp_path / "message"
    message.write_text(f"{'s' * length}\n\n{'A body may have longer lines. ' * 10}\n")
    command = [sys.executable, "-m", "pre_commit", "run", "--hook-stage", "commit-msg"]
    done = subprocess.run(
        [*command, "--commit-msg-filename", message],
        cwd=tmp_path,
        env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if accepted else 1), done.stdout + done.stderr
    assert "subject of at most 72 characters" in done.stdout
