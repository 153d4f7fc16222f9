"""Names from papers are accepted, and stored as ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from ajet_core.protocol import AlgorithmConfig, BatchConfig
from ajet_core.protocol.run import _PAPER_NAMES
from ajet_installation.hooks import ajet_register_advantages

PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("paper", "ours"), _PAPER_NAMES.items())
def test_a_paper_s_name_is_stored_as_ours(paper: str, ours: str) -> None:
    names = {spec.name for spec in ajet_register_advantages()}
    if ours in names:
        assert AlgorithmConfig(advantage=paper) == AlgorithmConfig(advantage=ours)
    elif ours == "truncated":
        config = AlgorithmConfig.model_validate({"importance": paper})
        assert config == AlgorithmConfig(importance="truncated")
    else:
        batch = BatchConfig.model_validate({"full_by": paper})
        assert batch == BatchConfig(full_by="differing_tasks")


def test_other_names_are_refused_as_before() -> None:
    for value in ("ppo", 3, ["tis"]):
        with pytest.raises(ValidationError):
            AlgorithmConfig.model_validate({"importance": value})


def test_the_page_lists_all_names() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    listed = {paper: ours for cell, ours in rows for paper in re.findall(r"`([a-z_]+)`", cell)}
    assert listed == _PAPER_NAMES
