"""Studies for tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from ajet_research.study import Study, parse_study

TEXT = """\
schema = 1

[topic]
question = "Is b better than a by more than 0.2?"

[base]
arena = "synthetic"
set = { world = "clear", steps = 2 }

[factors.method]
path = "method"
levels = ["a", "b"]

[outcome]
metric = "score"
smallest = 0.2

[inference]
looks = [{ seeds = 6, alpha = 0.04 }, { seeds = 8, alpha = 0.01 }]

[[compare]]
id = "b-vs-a"
arm = { method = "b" }
against = { method = "a" }
expect = "better"

[[decide]]
when = { b-vs-a = "better" }
conclude = "Use b: it is better."

[[decide]]
otherwise = true
conclude = "Keep a."

[budget]
trials = 20
trial_seconds = 30
compute_hours = 1
"""


def study(**changes: Any) -> Study:
    """The study of `TEXT`, with parts replaced: ``outcome__smallest=1`` sets one key of a part."""
    content = parse_study(TEXT, "study.toml").model_dump(mode="json", by_alias=True)
    content = copy.deepcopy(content)
    for name, value in changes.items():
        part = content
        *parents, last = name.split("__")
        for parent in parents:
            part = part[parent]
        part[last] = value
    return Study.model_validate(content)


def written(directory: Path, text: str = TEXT) -> Path:
    """A study file."""
    path = directory / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path
