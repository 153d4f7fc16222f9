"""llms.txt, AGENTS.md and docs/assistants.md are what the repository has."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/assistants.md").read_text(encoding="utf-8")


def test_the_index_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    text = importlib.import_module("write_llms").text()
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == text, "run `make generate`"


@pytest.mark.parametrize(
    ("paragraph", "sentence"),
    [
        ("One sentence. Another one.", "One sentence."),
        ("Many things: a, b, and\nthis. More.", "Many things: a, b, and this."),
        ("A list follows:\n\n- one", "A list follows"),
        (f"Very long: {'many words ' * 30}", "Very long"),
    ],
)
def test_a_page_is_summarised_by_its_first_sentence(
    paragraph: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    summary = importlib.import_module("write_llms").summary
    assert summary(f"# A page\n\n{paragraph}\n") == ("A page", sentence)


def test_the_index_has_each_page_and_no_other() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)]*)\)", text))
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/plugins/*.md"), *ROOT.glob("skills/*/*.md")]
    assert linked == {page.relative_to(ROOT).as_posix() for page in pages}


def test_the_guide_names_commands_and_files_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", GUIDE)) <= targets
    table = GUIDE.partition("## Layout")[2].partition("## Rules")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    folders = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(folders) > 12
    assert [name for name in folders if not (ROOT / name).is_dir()] == []
    assert len(GUIDE.splitlines()) < 80


def test_the_page_has_each_tool_and_no_other() -> None:
    pytest.importorskip("mcp")
    from ajet_cli.mcp.inspecting import AsyncInspectingClient
    from ajet_cli.mcp.swarm import SwarmTools
    from ajet_cli.state import CliState

    client = AsyncInspectingClient("http://127.0.0.1:9", "x")
    tools = {tool.name for tool in SwarmTools(client, CliState()).tools()}
    table = PAGE.partition("## The tools")[2].partition("They are the methods")[0]
    assert set(re.findall(r"`(swarm_\w+)`", table)) == tools


def test_the_page_has_each_tool_of_studies_and_no_other() -> None:
    pytest.importorskip("mcp")
    pytest.importorskip("scipy")
    from ajet_cli.mcp.research import ResearchTools

    tools = {tool.name for tool in ResearchTools(ROOT).tools()}
    assert set(re.findall(r"`(research_\w+)`", PAGE)) == tools


def test_the_options_of_the_page_exist() -> None:
    helped = [
        CliRunner().invoke(cli, [*command, "--help"]).output
        for command in (("assist", "install"), ("mcp",))
    ]
    options = set(re.findall(r"(?<!-)(--[a-z][a-z-]+)", PAGE)) - {"--allowed"}
    assert {"--check", "--print", "--http", "--read-only"} <= options
    assert [option for option in options if not any(option in text for text in helped)] == []
