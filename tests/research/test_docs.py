"""The pages on research: their study gives its report, and their tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from ajet_cli.commands.research import research
from ajet_research.analysis import final_verdicts
from ajet_research.arenas.worlds import CATALOGUE
from ajet_research.leader import run_study
from ajet_research.places.settings import PlaceSettings, SlurmSettings, SshSettings
from ajet_research.registration import register
from ajet_research.runners import FileRunner
from ajet_research.search.space import Parameter, Rung, Search
from ajet_research.study import (
    Base,
    Budget,
    Code,
    Compare,
    Decide,
    Inference,
    Measure,
    StudyQuestion,
    Topic,
    parse_study,
)
from ajet_research.suites.planted import lead_in_memory
from ajet_research.swarm import SwarmArena
from ajet_research.swarm.settings import _OWN

_DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join(
    (_DOCS / name).read_text(encoding="utf-8")
    for name in ("research.md", "research-researchers.md", "research-reference.md")
)
PARTS: dict[str, type[BaseModel]] = {
    "topic": Topic,
    "base": Base,
    "outcome": Measure,
    "inference": Inference,
    "compare": Compare,
    "decide": Decide,
    "budget": Budget,
    "ask": StudyQuestion,
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


def test_the_example_is_the_study_of_the_page_and_its_report_as_it_came_out(
    tmp_path: Path,
) -> None:
    example = Path(__file__).parents[2] / "docs" / "research-example"
    source = example / "study.toml"
    assert source.read_text(encoding="utf-8") == block("toml")
    run_study(source, tmp_path / "study", runner=FileRunner)
    for name in ("report.html", "intervals.csv"):
        written = (tmp_path / "study" / "report" / name).read_bytes()
        assert written == (example / name).read_bytes(), f"run {source}, and copy {name}"
    for name in ("study.toml", "report.html", "page.html"):
        assert f"(research-example/{name})" in PAGE


@pytest.mark.parametrize("kind", [PlaceSettings, SlurmSettings, SshSettings])
def test_every_key_of_a_place_is_explained(kind: type[BaseModel]) -> None:
    section = PAGE.partition("## Trials on other machines")[2].partition("\n## ")[0]
    assert [key for key in kind.model_fields if f"`{key}`" not in section] == []


@pytest.mark.parametrize("part", PARTS)
def test_every_key_of_a_study_is_explained(part: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{part}` |"))
    keys = set(re.findall(r"`([a-z_]+)", row))
    assert PARTS[part].model_fields.keys() <= keys


def test_the_search_of_the_page_ends_as_it_says() -> None:
    texts = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = [text for text in texts if "[search]" in text]
    study = parse_study(text, "study.toml")
    assert study.search is not None
    if study.search.sampler == "tpe":
        pytest.importorskip("optuna")
    assert study.trials == study.budget.trials
    state = lead_in_memory(study)
    assert final_verdicts(state) == {"chosen-vs-baseline": "better"}
    assert state.decided is not None
    assert study.decide[state.decided.branch].conclude.startswith("Use the chosen place")


def test_every_key_of_a_search_is_explained() -> None:
    section = PAGE.partition("## Keys of a search\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    keys = {re.findall(r"`([a-z_]+)", row)[0] for row in rows}
    assert keys == Search.model_fields.keys()
    named = set(re.findall(r"`([a-z_]+)`", "\n".join(rows)))
    assert Parameter.model_fields.keys() | Rung.model_fields.keys() <= named


def test_every_planted_world_is_named() -> None:
    named = PAGE[PAGE.index("`synthetic` has worlds") : PAGE.index("## Measurements")]
    assert CATALOGUE.keys() - set(re.findall(r"`(\w+)`", named)) <= {"medium"}


def test_the_study_of_swarm_servers_can_be_registered() -> None:
    texts = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (text,) = [text for text in texts if 'arena = "swarm"' in text]
    registration = register(parse_study(text, "study.toml"), Path())
    assert len(registration.blueprints) == registration.study.budget.trials


def test_the_question_fits_the_study_of_the_page() -> None:
    text, *others = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (question,) = [one for one in others if one.startswith("[[ask]]")]
    (asked,) = parse_study(f"{text}\n{question}", "study.toml").ask
    assert asked.before_look == 2


def test_every_command_and_amendable_limit_is_explained() -> None:
    table = PAGE.partition("## Commands")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:ajet research )?([a-z]+)[ `]", table))
    assert research.commands.keys() - named == set()
    steering = PAGE.partition("## Steering a study")[2].partition("\n## ")[0]
    for name in Budget.model_fields:
        assert f"`{name}`" in steering


def test_every_setting_and_metric_of_swarm_trials_is_explained() -> None:
    for name in (*_OWN, *SwarmArena.metrics):
        assert f"\n| `{name}` |" in PAGE


def test_the_part_that_decides_stays_small_enough_to_be_read() -> None:
    trusted = ("state", "actions", "inference", "analysis", "verifying")
    folder = Path(__file__).parents[2] / "ajet_research"
    lines = [(folder / f"{name}.py").read_text().splitlines() for name in trusted]
    assert sum(map(len, lines)) < 1500
