"""docs/settings.md is what the models say."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from ajet_installation.settings import Settings
from tests.support.plugin_sources import plugin_sources
from tests.test_layers import ROOT

PAGE = ROOT / "docs" / "settings.md"


@pytest.fixture
def page() -> str:
    """What `make generate` would write."""
    with plugin_sources():
        sys.path.insert(0, str(ROOT / "scripts"))
        text: str = importlib.import_module("write_settings").page()
    return text


def test_the_page_is_up_to_date(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "run `make generate`"


def test_every_setting_of_the_machine_is_described() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The configuration of a run")[0]
    assert re.findall(r"^\| `(\w+)` .*\|  \|$", text, re.MULTILINE) == []
    for section in Settings.model_fields:
        assert f"`[{section}]`" in text or f"| `{section}` |" in text


def test_settings_of_plugins_are_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for component in ("engine `vllm`", "trainer `verl`", "store `postgres`", "logger `jsonl`"):
        assert f"### {component}" in text
    assert "| `dsn` |" in text
