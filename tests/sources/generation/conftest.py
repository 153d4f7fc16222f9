"""An endpoint with a model that writes sums about its documents, and one that solves some."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ajet_testing.endpoints.plain import EndpointCall, PlainEndpoint
from tests.sources.conftest import ajet

KEY = "secret-key"
OUT = "rows.jsonl?judge=number&prompt=question"
DOCUMENT = """# Stock

The store has 12 crates of apples and 3 crates of pears.

## Prices

A crate of apples costs 7 coins. A crate of pears costs 9 coins.
"""


def written(*tasks: tuple[Any, Any]) -> str:
    """An answer with tasks."""
    return json.dumps({"tasks": [{"question": q, "answer": a} for q, a in tasks]})


@dataclass
class Models:
    """What the models of the endpoint say.

    :ivar writer: returns the answer to a request for tasks, or the status of an error.
    :ivar solved: by question, how many of each eight attempts are right.
    """

    writer: Callable[[EndpointCall], str | int] = lambda call: written()
    solved: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)

    def answer(self, call: EndpointCall) -> str | int:
        if call.key != KEY:
            return 401
        if call.model == "writer":
            return self.writer(call)
        if call.text not in self.solved:
            return 500
        answer, right = self.solved[call.text]
        self.asked[call.text] += 1
        return answer if (self.asked[call.text] - 1) % 8 < right else "no idea"


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def endpoint(models: Models) -> Iterator[PlainEndpoint]:
    with PlainEndpoint(models.answer) as endpoint:
        yield endpoint


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a document of two parts."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "stock.md").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generate(
    endpoint: PlainEndpoint, *options: str, out: str = OUT, key: str = KEY
) -> tuple[int, Any]:
    """Run the command; return its status and its report."""
    result = ajet(
        *("generate", out, "--model", "writer", "--base-url", endpoint.base_url, "--api-key", key),
        *("--json", *options),
    )
    text = result.stdout
    return result.exit_code, json.loads(text) if text.startswith("{") else result.stderr


def rows(path: str = "rows.jsonl") -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def requests(endpoint: PlainEndpoint) -> list[tuple[int, str]]:
    """Seed and material of the requests for tasks."""
    return [
        (call.body["seed"], call.body["messages"][1]["content"])
        for call in endpoint.calls
        if call.model == "writer"
    ]


def numbered(call: EndpointCall) -> str:
    """A task for each request, whose question is unlike those of others and lacks the answer."""
    seed = call.body["seed"]
    return written((f"w{seed}a w{seed}b w{seed}c w{seed}d?", str(100 + seed)))


def number_of(question: str) -> int:
    """The seed of such a question."""
    return int(re.findall(r"\d+", question)[0])
