"""`docs/evaluation.md` is true: its example trains and evaluates a real model."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.protocol import CallSampling, ServerStatus
from ajet_server.episodes import evaluations

TEXT = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text(encoding="utf-8")


def example() -> str:
    """The code between the example's marker and the end of its fence."""
    found = re.search(r"<!-- example: evaluation -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.nightly
@pytest.mark.torch
def test_the_example_trains_and_evaluates(served: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ajet_demo.tiny_model import copy_tiny_model

    copy_tiny_model(served / "model")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "evaluation.md", "exec"), scope)
    asyncio.run(scope["main"](model=str(served / "model"), steps=1))
    of_client, of_server = capsys.readouterr().out.strip().splitlines()
    assert of_client.startswith("[1] {1: ")
    assert of_server.startswith("held-out 1 {1: ")
    shown = CliRunner().invoke(cli, ["status", "--json"], prog_name="ajet")
    (evaluation,) = ServerStatus.model_validate_json(shown.stdout).evaluations
    assert (evaluation.tag, evaluation.step) == ("held-out", 1)
    assert (evaluation.tasks, evaluation.episodes, evaluation.mixed) == (6, 24, 0)


def test_all_that_can_be_set_of_the_sampling_is_told() -> None:
    section = TEXT.partition("## How evaluation episodes are sampled")[2].partition("\n## ")[0]
    told = {
        name
        for row in re.findall(r"^\| (`.*`) \|", section, re.M)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert told == set(CallSampling.model_fields)


def test_what_is_kept_is_told() -> None:
    assert f"latest {evaluations._KEPT_EVALUATIONS} are" in TEXT
    assert f"at most {evaluations._KEPT_TASKS:,} tasks" in TEXT
