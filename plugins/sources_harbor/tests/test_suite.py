"""The suite for task sources, with a small agent in the process of the trials."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
from rolling import TASKS, source

from ajet_core.interfaces import Task, TaskSource
from ajet_testing.endpoints.plain import EndpointCall
from ajet_testing.sources.interrupting import assert_evaluations_continue
from ajet_testing.suites.source_suite import SourceSuite

COMMANDS = {
    "greeting": "echo hello > answer.txt",
    "median": r"printf 'import statistics, sys\nprint(statistics.median(map(float, sys.argv[1:])))"
    r"\n' > median.py",
    "rename": "cd notes; mv a.text a.md; mv b.text b.md",
    "serve": "echo pong > ping.txt; python3 -m http.server 8000 > /dev/null 2>&1 &",
    "sum": "echo 42 > sum.txt",
}


class TestHarbor(SourceSuite):
    # Each has a sandbox of its own.
    episodes: ClassVar[int] = 12
    checked: ClassVar[int] = 2

    def make_source(self) -> TaskSource:
        return source(agent="file_agent:FileAgent", agent_options={"commands": True})

    def reply(self, source: TaskSource, task: Task, call: EndpointCall, *, solved: bool) -> str:
        return COMMANDS[task.id] if solved else "true"


@pytest.mark.timeout(1800)
def test_evaluations_continue_after_ctrl_c_and_kills(tmp_path: Path) -> None:
    """With the real commands: nothing is lost or done twice, and no process is left."""
    shutil.copytree(TASKS, tmp_path / "tasks")
    shutil.copy(Path(__file__).parent / "file_agent.py", tmp_path)
    assert_evaluations_continue(
        "harbor:tasks?agent=file_agent:FileAgent", tmp_path, lambda _: "hello"
    )
