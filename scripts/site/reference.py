"""The reference pages that the code itself describes: commands, protocol, hooks, findings, errors.

Each function returns the Markdown of one page. They are made when the site is built, so that they
cannot be out of date.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from write_settings import kind_of_value, parameters

import agentjet
from ajet_cli.main import BUILT_IN, cli
from ajet_core import errors
from ajet_core.plugin import spec
from ajet_core.plugin.kinds import KINDS
from ajet_core.protocol import FailureConfig
from ajet_installation import hooks as own_hooks
from ajet_server.health.checks import CHECKS

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    *("agentjet", "ajet_core", "ajet_loggers", "ajet_stores"),
    *("ajet_sources", "ajet_exec", "ajet_worlds", "ajet_testing"),
)
"""Those whose public names programs and plugins use. Other packages serve plugins alone."""

EXPLAINED = {"ajet_core.timeline": ["ajet_core.timeline.credit"]}
"""Modules whose docstrings explain names that another module exports."""


def row(*cells: str) -> str:
    """Return the row of a table, with one line in each cell."""
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |\n"


def head(*titles: str) -> str:
    """Return the head of a table."""
    return row(*titles) + "|---" * len(titles) + "|\n"


def markdown(docstring: str | None) -> str:
    """Return the text of a docstring up to its fields, with code as Markdown marks it."""
    text = inspect.cleandoc(docstring or "")
    text = re.split(r"^(?::\w+|\.\. \w+::)", text, maxsplit=1, flags=re.M)[0].strip()
    return text.replace("``", "`").replace("<", "&lt;") if "```" not in text else text


# -- commands ------------------------------------------------------------------------------------


def commands() -> str:
    """Return the page of the command line."""
    text = (
        "# Command line\n\n"
        "All commands of agentjet itself. Plugins add [commands of their own]"
        "(../plugins/command.md). `ajet COMMAND --help` prints the same texts in a terminal. "
        "Settings that options override are in [settings](../settings.md).\n\n"
    )
    targets = {name: path for name, (path, _) in BUILT_IN.items()}
    targets |= {each.name: each.target for each in own_hooks.ajet_register_commands()}
    text += head("command", "what it does")
    loaded = {name: _object(target) for name, target in sorted(targets.items())}
    for name, command in loaded.items():
        text += row(f"[`ajet {name}`](#ajet-{name})", command.get_short_help_str(200))
    with click.Context(cli, info_name="ajet") as context:
        text += "\n" + _options(context, cli)
        for name, command in loaded.items():
            text += "".join(_command(command, name, context, level=2))
    return text


def _object(target: str) -> click.Command:
    module, _, name = target.partition(":")
    command = getattr(importlib.import_module(module), name)
    assert isinstance(command, click.Command)
    return command


def _command(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        path = context.command_path
        yield f"\n{'#' * level} `{path}` {{: #{path.replace(' ', '-')} }}\n\n"
        yield f"{_help(command)}\n\n```\n{usage}\n```\n\n"
        yield _options(context, command)
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                child = command.get_command(context, inner)
                if child is not None and not child.hidden:
                    yield from _command(child, inner, context, level + 1)


def _help(command: click.Command) -> str:
    """Return the help of a command; blocks that click prints as they stand become code."""
    text = inspect.cleandoc(command.help or command.short_help or "").partition("\f")[0]
    blocks = [
        f"```\n{block[2:]}\n```" if block.startswith("\b\n") else block.replace("<", "&lt;")
        for block in re.split(r"\n\s*\n", text)
    ]
    return "\n\n".join(blocks).strip()


def _options(context: click.Context, command: click.Command) -> str:
    rows = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and parameter.name != "help"
    ]
    lines = [row(f"`{names}`", _plain(text)) for names, text in filter(None, rows)]
    return head("option", "meaning") + "".join(lines) + "\n" if lines else ""


def _plain(text: str) -> str:
    """Return text without marks of Markdown that would change it."""
    return text.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


# -- protocol ------------------------------------------------------------------------------------

_GROUPS = {
    "server": "The server",
    "run": "The run",
    "episodes": "Episodes",
    "joint": "Joint episodes",
    "agents": "Calls of agents",
    "page": "What the live page reads",
    "tokens": "Tokens",
}


def protocol() -> str:
    """Return the page of the swarm protocol, from its OpenAPI document."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
    schemas = document["components"]["schemas"]
    text = (
        "# Protocol\n\n"
        "The routes of a swarm server and the messages that they take and return. The document "
        "[openapi.json](../openapi.json) says the same to programs, such as generators of "
        "clients. Requests carry a token in the header `Authorization: Bearer TOKEN`; "
        "[security](../security.md) says which token may do what. [Errors](errors.md) have one "
        "form on all routes but those of [agents' calls](../dialects.md).\n\n"
    )
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    tags = {operation["tags"][0] for _, _, operation in operations}
    for tag in [*_GROUPS, *sorted(tags - set(_GROUPS))]:
        text += f"\n## {_GROUPS.get(tag, tag)}\n\n"
        for method, path, operation in operations:
            if operation["tags"][0] == tag:
                text += _operation(method, path, operation, schemas)
    text += "\n## Messages\n\n"
    return text + "".join(_message(name, schemas[name], schemas) for name in sorted(schemas))


def _operation(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = f"### `{method} {path}`\n\n{operation.get('summary', '')}.\n\n"
    if operation.get("deprecated"):
        text += "Deprecated.\n\n"
    if description := operation.get("description"):
        text += markdown(description) + "\n\n"
    if operation.get("parameters"):
        text += head("parameter", "in", "value", "default")
        for one in operation["parameters"]:
            default = one["schema"].get("default")
            shown = "required" if one.get("required") else f"`{json.dumps(default)}`"
            text += row(f"`{one['name']}`", one["in"], kind_of_value(one["schema"], schemas), shown)
        text += "\n"
    if body := operation.get("requestBody"):
        text += f"Body: {_content(body)}.\n\n"
    answers = [
        f"{status}: {_content(answer)}"
        for status, answer in operation["responses"].items()
        if status.startswith("2")
    ]
    return text + f"Answer: {'; '.join(answers)}.\n\n" if answers else text


def _content(body: dict[str, Any]) -> str:
    """Return what a body or an answer holds, with links to the messages."""
    kinds = []
    for media, content in body.get("content", {}).items():
        names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(content.get("schema", {})))
        links = " or ".join(f"[`{name}`](#{name.lower()})" for name in dict.fromkeys(names))
        kinds.append(links or f"`{media}`")
    return ", ".join(dict.fromkeys(kinds)) or "nothing"


def _message(name: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    text = f"### `{name}` {{: #{name.lower()} }}\n\n"
    description = schema.get("description", "")
    text += markdown(description) + "\n\n"
    if "enum" in schema:
        return text + f"One of {', '.join(f'`{json.dumps(one)}`' for one in schema['enum'])}.\n\n"
    properties = schema.get("properties", {})
    if not properties:
        return text
    meanings = parameters(description)
    text += head("field", "value", "default", "meaning")
    for field, property_ in properties.items():
        required = field in schema.get("required", ())
        default = "required" if required else f"`{json.dumps(property_.get('default'))}`"
        inner = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(property_))
        links = ", ".join(f"[`{one}`](#{one.lower()})" for one in dict.fromkeys(inner))
        text += row(
            f"`{field}`",
            links or kind_of_value(property_, schemas),
            default,
            meanings.get(field, "").replace("<", "&lt;"),
        )
    return text + "\n"


# -- hooks ---------------------------------------------------------------------------------------


def hooks() -> str:
    """Return the page of all hooks, with the component that each registers."""
    pages = {kind.hook: kind for kind in KINDS}
    text = (
        "# Hooks\n\n"
        "A plugin implements any of these functions, each marked with `@hookimpl`. "
        "[Plugins](../plugins.md) says how they are found and how to start one.\n\n"
    )
    text += head("hook", "registers", "settings")
    specs = [
        (name, function)
        for name, function in inspect.getmembers(spec, inspect.isfunction)
        if name.startswith("ajet_")
    ]
    for name, _ in specs:
        kind = pages.get(name)
        if kind is None:
            text += row(f"[`{name}`](#{name})", "nothing: it observes", "")
        else:
            link = f"[{kind.name}](../plugins/{kind.name}.md)"
            where = kind.set_by.format("NAME") or f"{kind.name}.settings"
            settings = "" if kind.interface is None else f"`{where}`"
            text += row(f"[`{name}`](#{name})", link, settings)
    for name, function in specs:
        signature = str(inspect.signature(function)).replace("'", "")
        since = re.search(r"versionadded:: ([\d.]+)", function.__doc__ or "")
        text += f"\n## `{name}` {{: #{name} }}\n\n```python\n{name}{signature}\n```\n\n"
        text += markdown(function.__doc__) + "\n"
        described = parameters(function.__doc__ or "").items()
        text += "".join(f"\n- `{name}`: {meaning}" for name, meaning in described)
        text += f"\n\nNew in hook API {since[1]}.\n" if since else "\n"
    return text


# -- findings ------------------------------------------------------------------------------------


def findings() -> str:
    """Return the page of findings: those about training, and those about progress."""
    limits = FailureConfig()
    text = (
        "# Findings\n\n"
        "A finding is a sentence about something wrong, with its cause and the way out. `ajet "
        "status`, the [live page](../page.md), the log and `/metrics` show findings by the codes "
        "below. [The health of a run](../health.md) says how those about training are measured.\n\n"
        "## About training\n\n"
    )
    text += head("code", "limits (`failures.`)", "judged", "pauses by default", "the way out")
    for check in sorted(CHECKS, key=lambda one: one.kind):
        values = ", ".join(f"`{name}` {getattr(limits, name)}" for name in check.limits)
        text += row(
            f"`{check.kind}`",
            values,
            "before the step" if check.before else "after the step",
            "yes" if check.kind in limits.pause_on else "no",
            check.way_out,
        )
    silence = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", silence.partition("## Silence")[2], re.M)
    text += (
        "\n## About progress and the machine\n\n"
        "[Silence](../faults.md#silence) says after which time each begins.\n\n"
    )
    text += head("code", "what it says")
    for code, meaning in rows:
        # The links of that page lead from the folder above.
        text += row(f"`{code}`", re.sub(r"\]\((?!\w+:)(#?)", _from_faults, meaning))
    return text


def _from_faults(match: re.Match[str]) -> str:
    return "](../faults.md#" if match[1] else "](../"


# -- errors --------------------------------------------------------------------------------------


def error_codes() -> str:
    """Return the page of error codes, with status, class and meaning."""
    text = (
        "# Error codes\n\n"
        "A server answers a request that it cannot fulfil with a status and a body:\n\n"
        "```json\n"
        '{"error": {"type": "batch_starved", "message": "...", "param": null, "retry_after": 5}}\n'
        "```\n\n"
        "The clients raise the class of the same row, a subclass of `ajet_core.errors.AjetError`. "
        "`retry_after` has the seconds after which a repeat may succeed. Agents' calls get the "
        "errors of their [dialect](../dialects.md) instead.\n\n"
    )
    text += head("type", "status", "class", "meaning")
    known = {cls.type: cls for cls in _classes(errors.AjetError)}
    for code, cls in sorted(known.items()):
        text += row(f"`{code}`", str(cls.status), f"`{cls.__name__}`", markdown(cls.__doc__))
    return text + "\n```\n" + _tree() + "\n```\n"


def _classes(cls: type[errors.AjetError]) -> Iterator[type[errors.AjetError]]:
    if cls.__module__ == errors.__name__:
        yield cls
    for inner in cls.__subclasses__():
        yield from _classes(inner)


def _tree() -> str:
    found = re.search(r"```\n(.*?)\n```", errors.__doc__ or "", re.DOTALL)
    assert found is not None
    return found[1]


# -- Python --------------------------------------------------------------------------------------


def modules(package: str) -> list[str]:
    """Return the public modules of a package: those with an `__all__`."""
    files = sorted((ROOT / package).rglob("*.py"))
    return [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if "\n__all__ = " in file.read_text(encoding="utf-8")
    ]


def python(package: str) -> str:
    """Return the page of a package's public names, which mkdocstrings fills in."""
    text = f"# Python: `{package}`\n\n"
    for module in modules(package):
        text += f"::: {module}\n"
        if module == "agentjet":
            text += "    options: {members: false}\n\n" + _gathered()
        for explaining in EXPLAINED.get(module, ()):
            text += f"\n::: {explaining}\n    options: {{members: false}}\n"
        text += "\n"
    return text


def _gathered() -> str:
    """Return links to the names of `agentjet`, which its modules and the core define."""
    links = []
    for name in agentjet.__all__:
        places = [
            f"{module}.{name}"
            for package in PACKAGES
            for module in modules(package)
            if module != "agentjet" and name in importlib.import_module(module).__all__
        ]
        if places and name != "__version__":
            links.append(f"- [`{name}`][{places[0]}]")
    return "\n".join(links) + "\n"


def pages() -> dict[str, str]:
    """Return all pages of the reference by their place in the site."""
    return {
        "reference/cli.md": commands(),
        "reference/protocol.md": protocol(),
        "reference/hooks.md": hooks(),
        "reference/findings.md": findings(),
        "reference/errors.md": error_codes(),
        **{f"reference/python/{package}.md": python(package) for package in PACKAGES},
    }
