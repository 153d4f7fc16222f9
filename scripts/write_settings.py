"""Write docs/settings.md from the models of all settings; a test fails if they differ."""

from __future__ import annotations

import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parents[1]

INTRODUCTION = """\
# Settings

<!-- scripts/write_settings.py writes this page from the models: run `make generate`. -->

A command takes each setting from the first of these that has it:

1. its options
2. environment variables: `AJET_SERVER__PORT=9000`, or a whole section as JSON:
   `AJET_STORE='{"name": "postgres"}'`
3. the settings file: `--config FILE`, `AJET_CONFIG`, or `ajet.toml` in the working directory
4. the default

`ajet config` prints the effective settings, each with its origin, and masks secrets. Unknown keys
and invalid values are errors.

```toml
[server]
port = 9000
run_dir = "runs/first"

[loggers.jsonl]
file = "steps.jsonl"
```

What a client may choose is in the [configuration of the run](#the-configuration-of-a-run), which it
sends to the server. All other settings are those of the machine and its operator.
"""

RUN = """\
## The configuration of a run

`RunConfig` of the client, or the body of `PUT /v1/run`. `engine.settings`, `trainer.settings`,
`merger.settings` and `algorithm.advantage_settings` are those of the
[components](#settings-of-components) that are named beside them.
"""

COMPONENTS = """\
## Settings of components

Each plugin adds the settings of its components. These are those of agentjet's own; a component that
is not listed has none.
"""


def parameters(docstring: str) -> dict[str, str]:
    """Return the descriptions of the parameters in a docstring."""
    texts: dict[str, str] = {}
    for block in re.split(r"^:param ", inspect.cleandoc(docstring), flags=re.M)[1:]:
        name, _, text = block.partition(":")
        paragraph = re.split(r"\n\s*\n|\n:(?:ivar|raises|cvar|return)", text)[0]
        texts[name] = " ".join(paragraph.split()).replace("``", "`")
    return texts


def fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of a model's fields, from the docstrings of its classes."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        texts |= parameters(vars(base).get("__doc__") or "")
    return texts


def kind_of_value(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return what a setting may be, in words, from its JSON schema."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    if "anyOf" in schema or "oneOf" in schema:
        kinds = [
            kind_of_value(one, definitions)
            for one in schema.get("anyOf", schema.get("oneOf"))
            if one.get("type") != "null"
        ]
        return " or ".join(dict.fromkeys(kinds))
    limits = [
        f"{sign} {schema[key] if float(schema[key]).is_integer() else f'{schema[key]:g}'}"
        for key, sign in (
            ("exclusiveMinimum", ">"),
            ("minimum", "≥"),
            ("exclusiveMaximum", "<"),
            ("maximum", "≤"),
        )
        # The largest integer of 32 bits is not a limit in practice.
        if key in schema and schema[key] != 2**31 - 1
    ]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items") or {"anyOf": schema.get("prefixItems", [{}])}
        return f"list of {kind_of_value(items, definitions)}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        word = kind_of_value(inner, definitions) if isinstance(inner, dict) else "any"
        return "table" if word == "any" else f"table of {word}"
    if kind in ("integer", "number"):
        return " ".join([kind, ", ".join(limits)]).strip()
    formats = {"path": "path", "directory-path": "path", "password": "secret"}
    words = {"boolean": "`true`, `false`", "string": formats.get(schema.get("format", ""), "text")}
    return words.get(str(kind), "any")


def shown(value: object) -> str:
    """Return a default as TOML shows it."""
    if value is None or value is PydanticUndefined:
        return "none" if value is None else "required"
    if isinstance(value, SecretStr):
        return "secret"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, frozenset | set | tuple):
        value = list(value)
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of a model: its dotted name, and the rows of its table.

    A field that is a model of its own is a section of its own.
    """
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    texts = fields(model)
    rows, inner = [], []
    for name, field in model.model_fields.items():
        key = f"{prefix}.{name}" if prefix else name
        nested = [
            kind
            for kind in (field.annotation, *get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.model_fields
        ]
        inner += [(kind, key) for kind in nested]
        if nested and nested[0] is field.annotation:
            continue
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        text = texts.get(name, "")
        value = kind_of_value(schema["properties"][name], definitions)
        cells = [
            f"`{name}`",
            "required" if field.is_required() else shown(default),
            value,
            text,
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        yield prefix, rows
    for kind, key in inner:
        yield from sections(kind, key)


def table(title: str, rows: list[str]) -> list[str]:
    """Return a heading and a table."""
    return [title, "", "| setting | default | value | meaning |", "|---|---|---|---|", *rows, ""]


def components() -> Iterator[tuple[str, str, str, type[BaseModel]]]:
    """Yield the components of this repository: kind, name, distribution, model of the settings."""
    from ajet_core.plugin import PluginManager
    from ajet_core.plugin.kinds import KINDS
    from ajet_core.plugin.targets import import_target
    from ajet_testing.plugins import entry_points_of

    points: list[EntryPoint] = []
    for file in [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]:
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        if file.parent != ROOT:
            sys.path.insert(0, str(file.parent / "src"))
        for name, hooks in project["entry-points"]["agentjet"].items():
            points += entry_points_of(name, hooks)
    manager = PluginManager(entry_points=points)
    for kind in KINDS:
        for name in manager.names(kind.name):
            spec = manager.component(kind.name, name)
            if kind.interface is None:
                continue
            model = import_target(spec.settings, name, "")
            if model.model_fields:
                yield kind.name, name, kind.set_by or f"{kind.name}.settings", model


def page() -> str:
    """Return the text of the page."""
    from ajet_core.protocol import RunConfig
    from ajet_installation.settings import ModelServerSettings, PeerSettings, Settings

    lines = [INTRODUCTION, "## The settings file", ""]
    for prefix, rows in sections(Settings, ""):
        lines += table(f"### `[{prefix}]`" if prefix else "### Top level", rows)
        if prefix == "server":
            for _, inner in sections(PeerSettings, "server.peers.NAME"):
                lines += table("### `[server.peers.NAME]`", inner)
    for _, inner in sections(ModelServerSettings, "servers.ENGINE"):
        lines += table("### `[servers.ENGINE]`", inner)
    lines.append(RUN)
    for prefix, rows in sections(RunConfig, ""):
        lines += table(f"### `{prefix}`" if prefix else "### The run", rows)
    lines.append(COMPONENTS)
    for kind, name, where, model in components():
        for prefix, rows in sections(model, ""):
            place = where.format(name)
            title = f"### {kind} `{name}`" + (f", `{prefix}`" if prefix else "")
            lines += [title, "", f"Set by `{place}`.", "", *table("", rows)[2:]]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "settings.md"
    target.write_text(page(), encoding="utf-8")
