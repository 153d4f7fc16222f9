"""All prose is plain English: pages, docstrings, comments, messages, help. Pages wrap lines."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ajet_cli.main import BUILT_IN, cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in (
        "*.md",
        "benchmarks/*.md",
        "changelog.d/*.md",
        "docs/**/*.md",
        "plugins/*/README.md",
        "contrib/**/*.md",
        "skills/*/SKILL.md",
        "ajet_cli/plugin_projects/**/*.md.jinja",
    )
    for path in ROOT.glob(pattern)
)
WIDTH = 100
BULLET = 2
"""What towncrier adds to the lines of `changelog.d`."""
BANNED = re.compile(
    r"\b(nobody|whoever|goes on|go on|mends?|mended|mending|(is|are|was|were) told|for else"
    r"|any more|anew|asked for|broken off|brought back|knows no|knows nothing|leave it to"
    r"|make room|paid again|paid twice|said so|says so|went away|what it is|what it was)\b"
    r"|(?<!there )\b(is|are|holds?|names?) no (?!longer\b|more\b)\w+",
    re.IGNORECASE,
)
"""Words that read as translated or personify programs. `docs/glossary.md` has better ones.

"is not a valid URL" is plainer than "is no URL".
"""
PROGRAMS = sorted(
    path.relative_to(ROOT)
    for pattern in ("agentjet", "ajet_*", "benchmarks", "scripts", "plugins/*/src")
    for folder in ROOT.glob(pattern)
    for path in folder.rglob("*.py")
)
ALLOWED: dict[str, set[str]] = {}
"""By file, strings with such words that are part of a contract, such as those of other programs."""


def prose(text: str) -> str:
    """In one line, and without code, which has names of its own."""
    return " ".join(re.sub(r"```.*?```|`[^`]*`", "``", text, flags=re.DOTALL).split())


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_pages_use_plain_words(page: Path) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8"))
    assert [found.group() for found in BANNED.finditer(text)] == []


UNBREAKABLE = re.compile(r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\)|\S)+")
"""A word, a link or a code span: what a line break cannot shorten."""


def long_lines(text: str, width: int) -> list[str]:
    """Lines of prose over `width` that a line break can shorten; tables and code are exempt."""
    # Fences may be indented, in lists. Indented code follows an empty line.
    without_code = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    without_code = re.sub(r"(?<=\n\n) {4}.*(?:\n {4}.*)*", "", without_code)
    return [
        line
        for line in without_code.splitlines()
        if len(line) > width
        and not line.lstrip().startswith("|")
        and len(UNBREAKABLE.findall(line.lstrip("-* "))) > 1
    ]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_lines_of_pages_are_not_too_long(page: Path) -> None:
    is_entry = page.parent.name == "changelog.d" and page.name.startswith("+")
    # The fields of a skill before its text have one line each.
    text = re.sub(r"\A---\n.*?^---\n", "", (ROOT / page).read_text("utf-8"), flags=re.S | re.M)
    assert long_lines(text, WIDTH - BULLET if is_entry else WIDTH) == []


def test_only_prose_has_long_lines() -> None:
    words = "word " * 5
    assert long_lines(f"- {words}\n  {words}\n", 20) == [f"- {words}", f"  {words}"]
    exempt = f"| {words} |\n\n    {words}\n    {words}\n\n```\n{words}\n```\n"
    assert long_lines(f"{exempt}\n- `{words}`.\n![{words}](image.png)\n", 20) == []


def texts(source: str, *, documenting: bool = False) -> Iterator[str]:
    """The string literals of a module: messages, help and log lines, without docstrings.

    :param documenting: yield the docstrings instead, those of attributes too.
    """
    tree = ast.parse(source)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (id(node) in docstrings) == documenting
        ):
            yield node.value


def test_programs_of_this_repository_are_found() -> None:
    assert {"agentjet", "ajet_server", "benchmarks", "plugins"} <= {p.parts[0] for p in PROGRAMS}


def test_messages_use_plain_words() -> None:
    found = {}
    for program in PROGRAMS:
        allowed = ALLOWED.get(program.as_posix(), set())
        said = texts((ROOT / program).read_text(encoding="utf-8"))
        if words := [text for text in said if BANNED.search(text) and text not in allowed]:
            found[program.as_posix()] = words
    assert found == {}


def comments(source: str) -> Iterator[str]:
    """The comments of a module; those of lines that follow each other are one."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    for number in lines.keys() - {before + 1 for before in lines}:
        block = itertools.takewhile(lines.__contains__, itertools.count(number))
        yield " ".join(lines[one].lstrip("# ") for one in block)


def test_docstrings_and_comments_use_plain_words() -> None:
    found = {}
    for program in PROGRAMS:
        source = (ROOT / program).read_text(encoding="utf-8")
        # Most modules need not be parsed, which takes long.
        if not BANNED.search(" ".join(re.sub(r"[#`]", " ", source).split())):
            continue
        said = [*texts(source, documenting=True), *comments(source)]
        if words := [match.group() for text in said for match in BANNED.finditer(prose(text))]:
            found[program.as_posix()] = words
    assert found == {}


def test_comments_of_several_lines_are_read_whole() -> None:
    source = "# Nobody\n# goes on.\n\nx = 1  # x\n# y\n"
    assert sorted(comments(source)) == ["Nobody goes on.", "x y"]


def test_docstrings_and_code_are_no_messages() -> None:
    source = '"""Nobody."""\n\ndef goes_on():\n    """It goes on."""\n    return f"{nobody} ends"\n'
    assert list(texts(source)) == [" ends"]
    assert list(texts(source, documenting=True)) == ["Nobody.", "It goes on."]


def commands() -> list[tuple[str, click.Command]]:
    """All commands of this distribution with their subcommands, by their full names."""
    with click.Context(cli) as context:
        found = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    every: list[tuple[str, click.Command]] = []
    while found:
        name, command = found.pop()
        assert command is not None
        every.append((name, command))
        if isinstance(command, click.Group):
            found += [(f"{name} {sub}", one) for sub, one in command.commands.items()]
    return every


def test_help_uses_plain_words() -> None:
    said = {"ajet": " ".join(summary for _, summary in BUILT_IN.values())}
    for name, command in commands():
        options = [getattr(option, "help", None) or "" for option in command.params]
        said[name] = " ".join([command.help or "", *options])
    found = {name: [*BANNED.finditer(text)] for name, text in said.items()}
    assert {name: words for name, words in found.items() if words} == {}
