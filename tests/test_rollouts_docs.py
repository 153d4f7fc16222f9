"""`docs/rollouts.md` is true: its example trains a real model while it goes on rolling out."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import RolloutConfig

TEXT = (Path(__file__).parents[1] / "docs" / "rollouts.md").read_text(encoding="utf-8")


def example() -> str:
    """The code between the example's marker and the end of its fence."""
    found = re.search(r"<!-- example: rollouts -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.nightly
@pytest.mark.torch
def test_the_example_trains_while_it_rolls_out(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ajet_demo.tiny_model import copy_tiny_model

    copy_tiny_model(served / "model")
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(), "rollouts.md", "exec"), scope)
    asyncio.run(scope["main"](model=str(served / "model"), passes=2))
    figures, exported = capsys.readouterr().out.strip().splitlines()
    step, mean, most = map(float, figures.split())
    assert step == 2
    assert 0 <= mean <= most <= scope["ROLLOUT"]["max_staleness"]
    assert (Path(exported) / "model.safetensors").is_file()


def test_every_setting_is_told() -> None:
    section = TEXT.partition("## Settings")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.M)
    assert told == list(RolloutConfig.model_fields)
