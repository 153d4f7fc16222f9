import importlib
import subprocess
import sys
from typing import get_args

import pytest

from ajet_core.interfaces import (
    ComponentSettings,
    Engine,
    Merger,
    MetricsLogger,
    SampleStore,
    Trainer,
)
from ajet_core.plugin.components import ComponentSpec
from ajet_installation import hooks as embedded
from ajet_testing import hooks as scripted


def load(target: str) -> object:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("spec", "name", "base"),
    [
        (embedded.ajet_register_stores()[0], "sqlite", SampleStore),
        (embedded.ajet_register_mergers()[0], "trie", Merger),
        (embedded.ajet_register_loggers()[0], "jsonl", MetricsLogger),
        (scripted.ajet_register_engines()[0], "scripted", Engine),
        (scripted.ajet_register_trainers()[0], "scripted", Trainer),
    ],
)
def test_components_are_what_they_are_registered_as(
    spec: ComponentSpec, name: str, base: type
) -> None:
    assert spec.name == name
    target, settings = load(spec.target), load(spec.settings)
    assert isinstance(target, type)
    assert issubclass(target, base)
    assert isinstance(settings, type)
    assert issubclass(settings, ComponentSettings)
    if settings is not ComponentSettings:
        (generic,) = vars(target)["__orig_bases__"]
        assert get_args(generic) == (settings,)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("ajet_installation.hooks", ["sqlite3", "ajet_server.store.sqlite_store"]),
        ("ajet_testing.hooks", ["pytest", "torch"]),
    ],
)
def test_hooks_import_nothing_heavy(module: str, heavy: list[str]) -> None:
    # What the interpreter starts with, such as a coverage tracer, is not the module's doing.
    code = (
        f"import sys; before = set(sys.modules); import {module}; "
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
