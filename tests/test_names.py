"""Names in code: no two ideas share one, and each says what it is the name of."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import syntax

# It parses all packages.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
MEANINGLESS = {"found", "its", "made", "told"}
"""Names that say how a value was obtained, or of what it is. Fields may have them."""
SOURCES = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in ("agentjet", "ajet_*", "plugins/*/src")
    for folder in sorted(ROOT.glob(pattern))
    for path in sorted(folder.rglob("*.py"))
}
"""By path from the root, each module of the packages and plugins."""

_TRAINERS = ("plugins/backend_torch", "plugins/backend_trl", "plugins/backend_verl")
_ENGINES = ("plugins/engine_sglang", "plugins/engine_vllm")
SAME_IDEA = {
    "Applied": _TRAINERS,
    "BatchStep": _TRAINERS,
    "LaunchPlan": _ENGINES,
    "Minibatch": _TRAINERS,
    "Objective": _TRAINERS,
    "Plan": _TRAINERS,
    "Tally": _TRAINERS,
    "_Runner": ("agentjet/client/_runner_async.py", "agentjet/client/_runner_sync.py"),
}
"""Classes of one name for the same idea, with the beginnings of the paths that may define them."""


def test_each_class_has_a_name_of_its_own() -> None:
    paths = defaultdict(list)
    for path, source in SOURCES.items():
        for node in ast.walk(syntax(source)):
            if isinstance(node, ast.ClassDef):
                paths[node.name].append(path)
    shared = {name: where for name, where in paths.items() if len(where) > 1}
    unused = [name for name in SAME_IDEA if name not in shared]
    assert unused == [], "these names are not shared, so `SAME_IDEA` does not need them"
    assert {
        name: where
        for name, where in shared.items()
        if not all(path.startswith(SAME_IDEA.get(name, ())) for path in where)
    } == {}


def given_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names of variables, parameters and functions, with their lines, without fields."""
    fields = {
        id(node.target)
        for cls in ast.walk(tree)
        if isinstance(cls, ast.ClassDef)
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if id(node) not in fields:
                yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def test_names_say_what_they_are_the_name_of() -> None:
    assert [
        f"{path}:{line}: {name}"
        for path, source in SOURCES.items()
        for line, name in given_names(syntax(source))
        if name in MEANINGLESS
    ] == []


def test_variables_in_all_places_are_given_names() -> None:
    source = """
class Report:
    found: str

    def told(self, made):
        found = [made for made in self.found]
        for made, (told, _) in found:
            with open(made) as found:
                print(found=told)
"""
    names = [name for _, name in given_names(ast.parse(source))]
    assert sorted(name for name in names if name in MEANINGLESS) == [
        *["found"] * 2,
        *["made"] * 3,
        *["told"] * 2,
    ]
