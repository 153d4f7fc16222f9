"""The catalogue of sources: what stands beside them, the page, and ``ajet sources``."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ajet_cli.main import cli
from ajet_core.errors import ConfigError, PluginError
from ajet_sources import entries_of, licence_of
from ajet_sources.catalogue import read_catalogue
from tests.test_layers import ROOT

ENTRY = """
[mine]
title = "My tasks"
package = "pluggy"
licence = "MIT"
size = "8 tasks"
offline = false
reward = "1 if all tests pass, else 0"
train = "mine:all"
"""


def test_the_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    page: str = importlib.import_module("write_catalogue").page()
    assert (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8") == page, (
        "run `make generate`"
    )
    for plugin in (ROOT / "plugins").glob("sources_*"):
        name = plugin.name.removeprefix("sources_")
        (row,) = [line for line in page.splitlines() if line.startswith(f"| [`{name}`](#{name})")]
        # The version with which its tests run.
        assert any(character.isdigit() for character in row.rpartition(" | ")[2])


@pytest.mark.parametrize(
    "text", ["[mine", ENTRY + "stars = 5\n", ENTRY.replace("8 tasks", ""), "mine = 1\n"]
)
def test_a_wrong_file_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"mine/catalogue\.toml is not a catalogue"):
        read_catalogue(text, "mine/catalogue.toml")


def test_the_licence_is_that_of_the_metadata() -> None:
    assert licence_of("pluggy") == "MIT"
    with pytest.raises(ConfigError, match="not installed"):
        licence_of("there-is-no-such-distribution")


def test_a_package_that_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_source").mkdir()
    (tmp_path / "broken_source" / "__init__.py").write_text("raise RuntimeError('no tasks')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="broken_source cannot be imported: no tasks"):
        entries_of("broken_source")


def test_the_command_lists_what_is_installed() -> None:
    shown = CliRunner().invoke(cli, ["sources"])
    assert shown.exit_code == 0, shown.output
    assert "Rows of a file" in " ".join(shown.output.split())
    (row,) = json.loads(CliRunner().invoke(cli, ["sources", "rows", "--json"]).output)
    assert row["train"] == "rows.jsonl?judge=number&prompt=question"
    assert row["offline"] is True
    unknown = CliRunner().invoke(cli, ["sources", "rowss"])
    assert unknown.exit_code == 2
    assert "did you mean" in unknown.output.lower()
