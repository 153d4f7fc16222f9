"""The source ``rows`` passes the suite, with a question and with a program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet_core.interfaces import TaskSource
from ajet_sources import load_source
from ajet_testing.suites.source_suite import SourceSuite

pytestmark = pytest.mark.processes

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)]
PROGRAM = """
import httpx2

def solve(row):
    body = {"model": "m", "messages": [{"role": "user", "content": row["prompt"]}]}
    answer = httpx2.post("https://api.openai.com/v1/chat/completions", json=body, timeout=60)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"]
"""


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "suite_program.py").write_text(PROGRAM)


@pytest.mark.processes
class TestRows(SourceSuite):
    def make_source(self) -> TaskSource:
        return load_source("rows.jsonl?eval_share=0.2")


@pytest.mark.processes
class TestRowsWithAProgram(SourceSuite):
    def make_source(self) -> TaskSource:
        return load_source("rows.jsonl?program=suite_program:solve")
