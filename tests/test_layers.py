"""How the packages are divided: which imports which, into how many modules, under which names."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_server.workers import methods
from tests.support.sources import syntax

ROOT = Path(__file__).resolve().parents[1]

ALLOWED: dict[str, set[str]] = {
    "ajet_core": set(),
    "ajet_installation": {"ajet_core"},
    "agentjet": {"ajet_core", "ajet_installation"},
    "ajet_engines": {"ajet_core", "ajet_installation"},
    "ajet_training": {"ajet_core"},
    "ajet_torch": {"ajet_core", "ajet_engines"},
    "ajet_stores": {"ajet_core"},
    "ajet_loggers": {"ajet_core"},
    "ajet_server": {
        "ajet_core",
        "ajet_installation",
        "ajet_engines",
        "ajet_stores",
        "ajet_training",
    },
    "ajet_worlds": {"ajet_core", "ajet_installation", "agentjet"},
    "ajet_exec": {"ajet_core", "ajet_installation", "agentjet"},
    "ajet_sources": {"ajet_core", "ajet_installation", "agentjet"},
    "ajet_research": {"ajet_core", "ajet_installation", "agentjet", "ajet_exec", "ajet_worlds"},
    "ajet_cli": {
        "ajet_core",
        "ajet_installation",
        "agentjet",
        "ajet_exec",
        "ajet_loggers",
        "ajet_research",
        "ajet_server",
        "ajet_sources",
        "ajet_testing",
    },
    "ajet_testing": {
        "ajet_sources",
        "ajet_core",
        "ajet_installation",
        "agentjet",
        "ajet_engines",
        "ajet_server",
        "ajet_stores",
        "ajet_torch",
        "ajet_worlds",
    },
}
"""By package, those that it may import besides itself, also in functions and for types alone."""

SERVER = (
    "averages",
    "embedded",
    "fastpath",
    "store",
    "security",
    "observe",
    "spending",
    "alerts",
    "state",
    "gateway",
    "telemetry",
    "admission",
    "episodes",
    "page",
    "batches",
    "health",
    "workers",
    "run",
    "service",
    "http",
    "processes",
    "build",
    "serve",
)
"""The folders and modules of `ajet_server`; each may import only those before it."""

_ADAPTER = {"ajet_core", "agentjet"}
_SOURCE = {"ajet_core", "agentjet", "ajet_exec", "ajet_installation", "ajet_sources"}
_ENGINE = {"ajet_core", "ajet_engines"}
_TRAINER = {"ajet_core", "ajet_engines", "ajet_training", "ajet_torch"}
PLUGINS: dict[str, set[str]] = {
    "agents_agentscope": _ADAPTER,
    "agents_autogen": _ADAPTER,
    "agents_crewai": _ADAPTER,
    "agents_langchain": _ADAPTER,
    "agents_llamaindex": _ADAPTER,
    "agents_openai": _ADAPTER,
    "agents_pydantic_ai": _ADAPTER,
    "agents_smolagents": _ADAPTER,
    "agents_adk": _ADAPTER,
    "agents_claude": _ADAPTER,
    "agents_dspy": _ADAPTER,
    "backend_torch": _TRAINER,
    "backend_trl": _TRAINER,
    "backend_verl": _TRAINER,
    "demo": {"ajet_core", "ajet_installation", "agentjet", "ajet_worlds"},
    "engine_sglang": _ENGINE,
    "engine_vllm": _ENGINE,
    "sources_gymnasium": {"ajet_core", "ajet_sources"},
    "loggers_mlflow": {"ajet_core", "ajet_loggers"},
    "loggers_tensorboard": {"ajet_core", "ajet_loggers"},
    "loggers_trackio": {"ajet_core", "ajet_loggers"},
    "loggers_wandb": {"ajet_core", "ajet_loggers"},
    "sources_inspect": {"ajet_core", "agentjet"},
    "sources_openenv": {"ajet_core", "ajet_sources"},
    "sources_reasoning_gym": {"ajet_core", "ajet_sources"},
    "sources_harbor": _SOURCE,
    "sources_verifiers": _SOURCE,
    "store_postgres": {"ajet_core", "ajet_stores"},
}
"""By folder of `plugins`, the packages that it may import besides its own."""


def modules(source: Path, package: str) -> dict[str, Path]:
    """All modules of a package in a folder, by dotted name."""
    found: dict[str, Path] = {}
    for path in (source / package).rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def modules_of_plugin(plugin: str) -> dict[str, Path]:
    """All modules of a plugin, by dotted name."""
    source = ROOT / "plugins" / plugin / "src"
    (package,) = [path.name for path in source.iterdir() if path.is_dir()]
    return modules(source, package)


MODULES = {name: path for package in ALLOWED for name, path in modules(ROOT, package).items()}
PLUGIN_MODULES = {plugin: modules_of_plugin(plugin) for plugin in PLUGINS}
EVERY_MODULE = MODULES | {n: p for own in PLUGIN_MODULES.values() for n, p in own.items()}
# What is put on the path of model servers is imported there by its bare name.
IN_SERVER = {name.rpartition(".")[2]: name for name in EVERY_MODULE if ".in_server." in name}


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax of a file."""
    return list(ast.walk(syntax(path)))


def imported(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in EVERY_MODULE else str(node.module) for name in inside]
        else:
            continue
        names = [IN_SERVER.get(name, name) for name in names]
        yield from (name for name in names if name in EVERY_MODULE)


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


@pytest.mark.parametrize("part", SERVER)
def test_parts_of_the_server_import_only_those_before_them(part: str) -> None:
    may = {"ajet_server." + before for before in SERVER[: SERVER.index(part) + 1]}
    arrows = {
        f"{module} -> {name}"
        for module in MODULES
        if module == f"ajet_server.{part}" or module.startswith(f"ajet_server.{part}.")
        for name in imported(MODULES[module])
        if name.startswith("ajet_server.") and ".".join(name.split(".")[:2]) not in may
    }
    assert arrows == set()


def test_every_part_of_the_server_has_its_place() -> None:
    parts = {name.split(".")[1] for name in MODULES if name.startswith("ajet_server.")}
    assert parts == set(SERVER)


def test_every_plugin_has_its_arrows() -> None:
    assert {path.parents[0].name for path in (ROOT / "plugins").glob("*/src")} == set(PLUGINS)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_plugins_import_only_what_they_may(plugin: str) -> None:
    own = PLUGIN_MODULES[plugin]
    arrows = {
        f"{module} -> {name}"
        for module, path in own.items()
        for name in imported(path)
        if name not in own and name.partition(".")[0] not in PLUGINS[plugin]
    }
    assert arrows == set()


def test_what_is_on_the_path_of_model_servers_imports_nothing_else_of_ours() -> None:
    arrows = {
        f"{module} -> {name}"
        for module in IN_SERVER.values()
        for name in imported(EVERY_MODULE[module])
        if name not in IN_SERVER.values()
    }
    assert arrows == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    # A package's __init__ gathers what its modules offer.
    graph = {
        module: {name for name in imported(path) if name != module}
        for module, path in EVERY_MODULE.items()
        if path.name != "__init__.py"
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
    for path in EVERY_MODULE.values():
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


@pytest.mark.parametrize(
    ("package", "others"), [("workers", {methods.GENERATE}), ("processes", set())]
)
def test_only_their_table_spells_the_methods_of_processes(package: str, others: set[str]) -> None:
    package = f"ajet_server.{package}."
    table = importlib.import_module(f"{package}methods")
    names = others | {its.name for its in vars(table).values() if isinstance(its, methods.Method)}
    assert len(names) > 5
    spelled = {
        (module, node.value)
        for module, path in MODULES.items()
        if module.startswith(package) or any(name.startswith(package) for name in imported(path))
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert {module for module, _ in spelled} == {f"{package}methods"}, spelled


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
