"""What is public is in `__all__`: it exists, is documented, and plugins need nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sources import syntax
from tests.test_layers import EVERY_MODULE, MODULES, PLUGIN_MODULES, ROOT

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def parsed(module: str) -> ast.Module:
    """The syntax of a module."""
    return syntax(EVERY_MODULE[module])


def exports(tree: ast.Module) -> list[str] | None:
    """The `__all__` of a module, if it has one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def defined(tree: ast.Module) -> dict[str, ast.stmt]:
    """The definitions of a module, by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, Definition):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in ast.walk(target)]
            found |= {name.id: node for name in names if isinstance(name, ast.Name)}
    return found


def gathered(tree: ast.Module) -> dict[str, str]:
    """The names that a module imports from modules of ours, with those modules."""
    return {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


PUBLIC = {
    module: names
    for module, path in EVERY_MODULE.items()
    # Parsing all modules would take seconds, in each process that collects this file.
    if "\n__all__ = " in (text := path.read_text(encoding="utf-8"))
    if (names := exports(ast.parse(text[text.index("\n__all__ = ") :]))) is not None
}


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that code imports from the packages of agentjet: module and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module) in MODULES:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield (inside, "") if inside in MODULES else (str(node.module), alias.name)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name in MODULES)


def private(tree: ast.AST) -> list[str]:
    """Which of the imported names are not public."""
    return [
        f"{module}:{name}"
        for module, name in imports(tree)
        if module not in PUBLIC or (name and name not in PUBLIC[module])
    ]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_exist_once_and_are_documented(module: str) -> None:
    names = PUBLIC[module]
    assert len(names) == len(set(names))
    for name in names:
        where = module
        while name not in (here := defined(parsed(where))):
            where = gathered(parsed(where))[name]
        node = here[name]
        if isinstance(node, Definition):
            assert ast.get_docstring(node), f"{where}.{name} needs a docstring"


@pytest.mark.parametrize("module", PUBLIC)
def test_other_names_of_a_public_module_begin_with_an_underscore(module: str) -> None:
    others = {
        name
        for name, node in defined(parsed(module)).items()
        if name not in PUBLIC[module] and not name.startswith("_")
        # Type variables and loggers have the names that are usual for them.
        if not re.search(r"TypeVar\(|getLogger\(", ast.unparse(node))
    }
    assert others == set()


def test_a_package_that_gathers_names_says_which_are_public() -> None:
    packages = [module for module, path in EVERY_MODULE.items() if path.name == "__init__.py"]
    silent = [module for module in packages if module not in PUBLIC]
    assert [m for m in silent if gathered(parsed(m)) or defined(parsed(m))] == []


@pytest.mark.parametrize("plugin", PLUGIN_MODULES)
def test_plugins_import_public_names_only(plugin: str) -> None:
    used = {module: private(parsed(module)) for module in PLUGIN_MODULES[plugin]}
    assert {module: names for module, names in used.items() if names} == {}


PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "plugins").glob("*/README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_import_public_names_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "import " in block:
            assert private(ast.parse(block)) == []


@pytest.mark.slow
def test_nothing_with_an_underscore_is_imported_from_another_package() -> None:
    found = [
        f"{module} -> {where}.{name}"
        for module in EVERY_MODULE
        for where, name in imports(parsed(module))
        if where.partition(".")[0] != module.partition(".")[0]
        and re.search(r"\._(?!_)", f"{where}.{name}")
    ]
    assert found == []
