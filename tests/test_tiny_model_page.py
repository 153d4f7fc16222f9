"""`docs/how-to/tiny-model.md` is true: its snippets run, and its table has the real settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import RunConfig
from ajet_worlds.tiny_grpo import TINY_GRPO

PAGE = (Path(__file__).parents[1] / "docs/how-to/tiny-model.md").read_text(encoding="utf-8")
CREATE, CONFIGURE = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_table_has_each_setting_that_is_set() -> None:
    rows = dict(re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE, re.MULTILINE))
    named = {name for cell in rows for name in re.findall(r"`(\w+)`", cell)}
    assert named == TINY_GRPO.model_fields_set
    assert float(rows["`learning_rate`"]) == TINY_GRPO.learning_rate
    assert rows["`advantage`"] == f"`{TINY_GRPO.advantage}`"
    assert rows["`clip_low`, `clip_high`"] == f"{TINY_GRPO.clip_low}, {TINY_GRPO.clip_high}"


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.slow
def test_its_snippets_make_a_model_and_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ajet_backend_torch")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(compile(CREATE, "tiny-model.md", "exec"), scope)
    assert (tmp_path / "runs/mine/model/model.safetensors").is_file()
    exec(compile(CONFIGURE, "tiny-model.md", "exec"), scope)
    assert RunConfig.model_validate(scope["config"]).algorithm == TINY_GRPO
