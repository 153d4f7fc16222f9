"""`docs/mixtures.md` is true: its example trains a real model on a mixture and changes it."""

from __future__ import annotations

import ast
import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentjet.client import _runner
from ajet_core.protocol import MixtureConfig
from ajet_server.admission.mixture import Shares
from ajet_server.episodes import open_episodes

TEXT = (Path(__file__).parents[1] / "docs" / "mixtures.md").read_text(encoding="utf-8")


def example() -> str:
    """The code between the example's marker and the end of its fence."""
    found = re.search(r"<!-- example: mixture -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.nightly
@pytest.mark.torch
def test_the_example_trains_a_mixture_and_changes_it(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ajet_demo.tiny_model import copy_tiny_model

    copy_tiny_model(served / "model")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "mixtures.md", "exec"), scope)
    asyncio.run(scope["main"](model=str(served / "model"), steps=3))
    printed = capsys.readouterr().out.splitlines()
    slots = [{"math": 4, "code": 3, "terminal": 3}] * 2 + [{"math": 2, "code": 2, "terminal": 6}]
    for step, (line, wanted) in enumerate(zip(printed, slots, strict=True), 1):
        number, _, tasks = line.partition(" ")
        trained = ast.literal_eval(tasks)
        assert int(number) == step
        assert trained.keys() == wanted.keys()
        # Tasks that a slow client left half-way for some seconds are trained besides.
        assert all(trained[tag] >= count for tag, count in wanted.items()), line


def test_the_schedule_that_is_shown_is_one() -> None:
    found = re.search(r'^"mixture": (\{.*?\]\})', TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None
    mixture = MixtureConfig.model_validate_json(found.group(1))
    assert [mixture.at(step) for step in (1, 50, 200)] == [
        {"easy": 1.0},
        {"easy": 0.5, "hard": 0.5},
        {"hard": 1.0},
    ]


def test_all_settings_are_told_with_their_defaults() -> None:
    told = re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE)
    assert told == list(MixtureConfig.model_fields)
    assert f"({MixtureConfig(ratios={'a': 1.0}).grace_seconds:g}) |" in TEXT


def test_the_shares_that_are_told_are_those_of_the_first_batches() -> None:
    shares, total, told = Shares({"math": 0.4, "code": 0.3, "terminal": 0.3}), Counter[str](), []
    for _ in range(20):
        quotas = shares.quotas(8)
        told.append(" ".join(str(slots) for slots in quotas.values()))
        total.update(quotas)
        shares.commit(8)
    assert "{}, then {}, then {} and".format(*told) in TEXT
    assert "exactly {}, {} and {}.".format(*total.values()) in TEXT


def test_when_a_killed_client_is_missed_is_told() -> None:
    seconds = open_episodes.BEATS_MISSED * _runner.heartbeat_seconds(_runner.RUNNER_LEASE_SECONDS)
    assert f"after {seconds:g} seconds" in TEXT
