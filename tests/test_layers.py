"""How the packages are divided: which imports which, into how many modules, under which names."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_server.workers import methods

ROOT = Path(__file__).resolve().parents[1]

ALLOWED: dict[str, set[str]] = {
    "ajet_core": set(),
    "ajet_installation": {"ajet_core"},
    "agentjet": {"ajet_core", "ajet_installation"},
    "ajet_engines": {"ajet_core", "ajet_installation"},
    "ajet_training": {"ajet_core"},
    "ajet_torch": {"ajet_core", "ajet_engines"},
    "ajet_server": {"ajet_core", "ajet_installation", "ajet_engines", "ajet_training"},
    "ajet_worlds": {"ajet_core", "ajet_installation", "agentjet"},
    "ajet_cli": {"ajet_core", "ajet_installation", "agentjet", "ajet_server"},
    "ajet_demo": {"ajet_core", "ajet_installation", "agentjet", "ajet_worlds"},
    "ajet_testing": {
        "ajet_core",
        "ajet_installation",
        "agentjet",
        "ajet_engines",
        "ajet_server",
        "ajet_torch",
        "ajet_worlds",
    },
}
"""By package, those that it may import besides itself, also in functions and for types alone."""


def modules() -> dict[str, Path]:
    """All modules of the packages, by dotted name."""
    found: dict[str, Path] = {}
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in inside]
        else:
            continue
        yield from (name for name in names if name in MODULES)


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_they_may(package: str) -> None:
    arrows = {
        f"{module} -> {name}"
        for module in MODULES
        if module.partition(".")[0] == package
        for name in imported(MODULES[module])
        if name.partition(".")[0] not in {package, *ALLOWED[package]}
    }
    assert arrows == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    # A package's __init__ gathers what its modules offer.
    graph = {
        module: {name for name in imported(MODULES[module]) if name != module}
        for module in MODULES
        if MODULES[module].name != "__init__.py"
    }
    graphlib.TopologicalSorter(graph).prepare()


def test_the_core_is_small() -> None:
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for module, path in MODULES.items()
        if module.partition(".")[0] == "ajet_core"
    )
    assert lines <= 7000


def test_no_folder_is_crowded() -> None:
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    crowded = {str(folder.relative_to(ROOT)): n for folder, n in folders.items() if n > 20}
    assert crowded == {}


def test_no_small_module_serves_a_single_other() -> None:
    importers: dict[str, set[str]] = {}
    for path in [*MODULES.values(), *(ROOT / "plugins").glob("*/src/**/*.py")]:
        for name in imported(path):
            importers.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    needless = {
        module: importers[module]
        for module, path in MODULES.items()
        if len(path.read_text(encoding="utf-8").splitlines()) <= 30
        and path.name != "__init__.py"
        and len(importers.get(module, ())) == 1
    }
    assert needless == {}, "a part of its only importer"


def test_names_of_classes_in_the_server_are_unique() -> None:
    where: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if module.partition(".")[0] in {"ajet_server", *ALLOWED["ajet_server"]}:
            for node in nodes(path):
                if isinstance(node, ast.ClassDef):
                    where.setdefault(node.name, set()).add(module)
    shared = {
        name: found
        for name, found in where.items()
        if len(found) > 1 and any(module.startswith("ajet_server.") for module in found)
    }
    assert shared == {}


def test_a_server_is_put_together_by_constructors_alone() -> None:
    completed = [
        ast.unparse(target)
        for node in nodes(MODULES["ajet_server.build"])
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    assert completed == [], "give it to the constructor"


def test_only_their_table_spells_the_methods_of_a_worker() -> None:
    names = {value.name for value in vars(methods).values() if isinstance(value, methods.Method)}
    names.add(methods.GENERATE)
    spelled = {
        (module, node.value)
        for module, path in MODULES.items()
        if module.startswith("ajet_server.workers.")
        or any(name.startswith("ajet_server.workers.") for name in imported(path))
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert {module for module, _ in spelled} == {"ajet_server.workers.methods"}, spelled


def test_tests_of_plugins_need_nothing_of_the_tests_of_this_repository() -> None:
    files = [*(ROOT / "plugins").glob("*/tests/**/*.py"), *(ROOT / "contrib").rglob("*.py")]
    assert files
    needed = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip().startswith(("from tests", "import tests"))
    }
    assert needed == set(), "what several need belongs to ajet_testing"
