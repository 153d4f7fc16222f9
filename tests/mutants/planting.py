"""Mutations of components, and a plugin of pytest that plants one of them.

A mutation is a function that changes one thing of a component, as a fault of a real plugin would.
`tests.mutants.test_mutants` runs a suite in a process of its own, in which this plugin plants the
mutation that the variable `MUTATION` names. ``others/sitecustomize.py`` does so in the processes
that the suite starts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MUTATION = "AJET_TESTS_MUTATION"


@dataclass(frozen=True)
class Mutants:
    """The mutations of one component.

    :param kind: the module of `tests.mutants` that has them.
    :param suite: the node id of the class that runs the suite on the component.
    :param torch: whether the component needs torch.
    :ivar planted: the mutations by name.
    """

    kind: str
    suite: str
    torch: bool = False
    planted: dict[str, Callable[[], None]] = field(default_factory=dict)

    def __call__(self, mutation: Callable[[], None]) -> Callable[[], None]:
        """Add a mutation, as a decorator."""
        assert mutation.__name__ not in self.planted
        self.planted[mutation.__name__] = mutation
        return mutation


def put(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute, of whatever type."""
    setattr(owner, name, value)


def around(owner: object, name: str, by: Callable[..., Any]) -> None:
    """Replace a function or method by `by`, whose first argument is the original."""
    original = getattr(owner, name)

    def replaced(*arguments: Any, **named: Any) -> Any:
        return by(original, *arguments, **named)

    setattr(owner, name, replaced)


def plant() -> None:
    """Plant the mutation."""
    kind, _, name = os.environ[MUTATION].partition(":")
    if name:
        module = importlib.import_module(f"tests.mutants.{kind}")
        if kind == "trusted":
            module.EDITS[name].plant()
            return
        (mutation,) = [m.planted[name] for m in module.ALL if name in m.planted]
        mutation()


pytest_configure = plant
