"""`docs/one-call.md` names functions that exist, and every value of `Continuation`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ajet_server.gateway.rendering.prompting import Continuation

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "one-call.md").read_text(encoding="utf-8")
HOPS = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)


def names(path: Path) -> set[str]:
    """The functions and classes of a module, and the methods of its classes."""
    defined: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            defined.add(node.name)
        if isinstance(node, ast.ClassDef):
            defined |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return defined


def test_there_are_twelve_hops_in_order() -> None:
    assert [int(number) for number, _, _ in HOPS] == list(range(1, 13))


@pytest.mark.parametrize(("path", "name"), [hop[1:] for hop in HOPS])
def test_each_hop_exists(path: str, name: str) -> None:
    assert name in names(ROOT / path)


def test_other_modules_that_the_page_names_exist() -> None:
    paths = re.findall(r"`(\w+/[\w/]+\.py)`", PAGE)
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_page_has_every_reason_and_what_it_means() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (continues|starts over) \|", PAGE, re.MULTILINE)
    continues = {Continuation.BRIDGED, Continuation.PROVEN}
    assert rows == [
        (one.value, "continues" if one in continues else "starts over") for one in Continuation
    ]
