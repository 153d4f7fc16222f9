"""The words of the documentation and of the command line: plain English, one word for each idea."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from ajet_cli.main import BUILT_IN, cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md", "plugins/*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
BANNED = re.compile(
    r"\b(nobody|whoever|goes on|go on|mends?|mended|mending|(is|are|was|were) told|for else|none any more)\b",
    re.IGNORECASE,
)
"""Words that read as translated, or that make persons of programs. `docs/glossary.md` has better ones."""


def prose(text: str) -> str:
    """Without code, which has names of its own."""
    return re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_pages_use_plain_words(page: Path) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8"))
    assert [found.group() for found in BANNED.finditer(text)] == []


def commands() -> list[tuple[str, click.Command]]:
    """All commands of this distribution with their subcommands, by their full names."""
    with click.Context(cli) as context:
        found = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    every: list[tuple[str, click.Command]] = []
    for name, command in found:
        assert command is not None
        every.append((name, command))
        if isinstance(command, click.Group):
            every += [(f"{name} {sub}", one) for sub, one in command.commands.items()]
    return every


def test_help_uses_plain_words() -> None:
    said = {"ajet": " ".join(summary for _, summary in BUILT_IN.values())}
    for name, command in commands():
        options = [getattr(option, "help", None) or "" for option in command.params]
        said[name] = " ".join([command.help or "", *options])
    found = {name: BANNED.findall(text) for name, text in said.items()}
    assert {name: words for name, words in found.items() if words} == {}
