"""Settings that a README shows in blocks of TOML and JSON, and texts left from the template."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from ajet_cli.plugin_projects.rendering import TEMPLATE
from ajet_core.plugin.kinds import Kind

_BLOCK = re.compile(r"^```(toml|json)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def read_blocks(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the documents of a text's blocks of TOML and JSON, and why others cannot be read.

    JSON may be part of an object, such as ``"algorithm": {...}``.
    """
    documents, problems = [], []
    for language, block in _BLOCK.findall(text):
        attempts = (block, f"{{{block}}}") if language == "json" else (block,)
        for attempt in attempts:
            try:
                document = json.loads(attempt) if language == "json" else tomllib.loads(attempt)
            except (ValueError, RecursionError) as error:
                problem = f"{block.strip().splitlines()[:1]}: {error}"
                continue
            if isinstance(document, dict):
                documents.append(document)
            break
        else:
            problems.append(f"a block of {language} is not valid: {problem}")
    return documents, problems


def find_settings(
    documents: list[dict[str, Any]], kind: Kind, name: str
) -> Iterator[Mapping[str, Any]]:
    """Iterate over the settings of a component in documents that choose it."""
    place = (kind.set_by or f"{kind.name}.settings").format(name)
    choice = (kind.chosen_by or f"{kind.name}.name").format(name)
    for document in documents:
        # A table of its own chooses the component by its name.
        if "{}" in kind.set_by or _at(document, choice) == name:
            settings = _at(document, place)
            if isinstance(settings, dict):
                yield settings


def _at(document: Any, place: str) -> Any:
    """Return the value at a dotted place, None if there is none."""
    for key in place.split("."):
        document = document.get(key) if isinstance(document, dict) else None
    return document


def texts_of_template(kind: str) -> tuple[str, ...]:
    """Return the description and the summary that a new project of a kind begins with."""
    questions = (TEMPLATE / "copier.yml").read_text(encoding="utf-8")
    hooks = (TEMPLATE / "kinds" / kind / "hooks.jinja").read_text(encoding="utf-8")
    descriptions = re.findall(rf"^      '{kind}': '([^']+ of agentjet[^']*)',$", questions, re.M)
    return (*descriptions, *re.findall(r'summary="([^"]+)"', hooks))


def is_replaced(kind: str, code: str) -> bool:
    """Return whether most lines of the template's component are gone from a project's code."""
    path = TEMPLATE / "kinds" / kind / "component.jinja"
    lines = {line.strip() for line in path.read_text(encoding="utf-8").splitlines()}
    lines = {line for line in lines if len(line) > 20 and "{" not in line and "import" not in line}
    present = {line.strip() for line in code.splitlines()}
    return 2 * len(lines & present) < len(lines)
