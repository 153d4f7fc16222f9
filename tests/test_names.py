"""Names in code: no two ideas share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for pattern in ("agentjet", "ajet_*", "plugins/*/src")
    for folder in sorted(ROOT.glob(pattern))
    for path in sorted(folder.rglob("*.py"))
}
"""By path, the syntax of each module of the packages and plugins."""

_TRAINERS = ("plugins/backend_torch", "plugins/backend_trl", "plugins/backend_verl")
_ENGINES = ("plugins/engine_sglang", "plugins/engine_vllm")
SAME_IDEA = {
    "Applied": _TRAINERS,
    "BatchStep": _TRAINERS,
    "LaunchPlan": _ENGINES,
    "Minibatch": _TRAINERS,
    "Objective": _TRAINERS,
    "Plan": ("ajet_training/planner.py", *_TRAINERS),
    "Tally": _TRAINERS,
    "_Runner": ("agentjet/client/_runner_async.py", "agentjet/client/_runner_sync.py"),
}
"""Classes of one name for the same idea, with the beginnings of the paths that may define them."""


def test_each_class_has_a_name_of_its_own() -> None:
    paths = defaultdict(list)
    for path, tree in SOURCES.items():
        for node in ast.walk(tree):
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
