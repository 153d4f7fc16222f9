"""`docs/research.md`: its study gives its report, and its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from ajet_research.arenas.worlds import CATALOGUE
from ajet_research.leader import run_study
from ajet_research.registration import register
from ajet_research.runners import FileRunner
from ajet_research.study import (
    Base,
    Budget,
    Code,
    Compare,
    Decide,
    Inference,
    Measure,
    Topic,
    parse_study,
)
from ajet_research.swarm import SwarmArena
from ajet_research.swarm.settings import _OWN

PAGE = (Path(__file__).parents[2] / "docs" / "research.md").read_text(encoding="utf-8")
PARTS: dict[str, type[BaseModel]] = {
    "topic": Topic,
    "base": Base,
    "outcome": Measure,
    "inference": Inference,
    "compare": Compare,
    "decide": Decide,
    "budget": Budget,
    "code": Code,
}


def block(language: str) -> str:
    match = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None
    return match[1]


def test_the_study_gives_the_report_of_the_page(tmp_path: Path) -> None:
    source = tmp_path / "study.toml"
    source.write_text(block("toml"), encoding="utf-8")
    run_study(source, tmp_path / "study", runner=FileRunner)
    report = (tmp_path / "study" / "report" / "report.md").read_text(encoding="utf-8")
    sections = block("markdown").strip().split("\n\n## ")
    assert len(sections) == 4
    for section in sections:
        assert section.removeprefix("## ") in report


@pytest.mark.parametrize("part", PARTS)
def test_every_key_of_a_study_is_explained(part: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{part}` |"))
    keys = set(re.findall(r"`([a-z_]+)", row))
    assert PARTS[part].model_fields.keys() <= keys


def test_every_planted_world_is_named() -> None:
    named = PAGE[PAGE.index("`synthetic` has worlds") : PAGE.index("## Measurements")]
    assert CATALOGUE.keys() - set(re.findall(r"`(\w+)`", named)) <= {"medium"}


def test_the_study_of_swarm_servers_can_be_registered() -> None:
    _, text, _ = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    registration = register(parse_study(text, "study.toml"), Path())
    assert len(registration.blueprints) == registration.study.budget.trials


def test_every_setting_and_metric_of_swarm_trials_is_explained() -> None:
    for name in (*_OWN, *SwarmArena.metrics):
        assert f"\n| `{name}` |" in PAGE
