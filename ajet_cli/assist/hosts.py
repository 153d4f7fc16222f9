"""What each coding assistant needs in its configuration to start `ajet mcp`.

Each entry avoids what is known to go wrong with its assistant. Assistants start servers with almost
no PATH, so the interpreter has an absolute path. ``-P`` keeps modules of the project from being
imported instead of those of agentjet.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ajet_core.errors import ConfigError

NAME = "agentjet"
"""The name of the server in every configuration."""
_MODULE = "ajet_cli.main"
_STARTS = frozenset({"command", "args", "env", "environment"})
"""The keys of an entry that say how the server starts."""
_PASSED = "env_vars"
"""Codex's key for the names of variables that it passes to the server."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How an assistant starts `ajet mcp`.

    :param read_only: offer only tools that change nothing.
    :param environ: variables that the assistant might not pass; no secrets.
    :param on: absolute path of the file of places in which studies run; "" for this machine.
    """

    read_only: bool
    environ: Mapping[str, str]
    on: str = ""

    @property
    def program(self) -> list[str]:
        """The command line."""
        options = ["--read-only"] if self.read_only else []
        options += ["--on", self.on] if self.on else []
        return [sys.executable, "-P", "-m", _MODULE, "mcp", *options]


@dataclass(frozen=True, slots=True)
class Host:
    """A coding assistant.

    :param files: where its configuration may be; the first is for a new one.
    :param section: the key of the object that has its MCP servers.
    :param skills: the folder from which it reads skills.
    """

    name: str
    files: tuple[str, ...]
    format: Literal["json", "toml"]
    section: str
    skills: str

    def file(self, root: Path) -> str:
        """Return the file of its configuration in a project."""
        return next((file for file in self.files if (root / file).exists()), self.files[0])

    def changes(self, command: ServerCommand, before: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is merged into its configuration.

        In an entry that is there, only how the server starts is replaced; missing keys are added.

        :param before: the present configuration.
        :raises ConfigError: it has a server of this name that is not ours.
        """
        present = before.get(self.section, {})
        entry = present.get(NAME) if isinstance(present, dict) else None
        if entry is not None and not _is_ours(entry):
            raise ConfigError(
                f"{self.section}.{NAME} is another program: rename or remove it, and install again"
            )
        whole = self._entry(command)
        if entry is not None:
            whole = _update(whole, entry)
        changes: dict[str, Any] = {self.section: {NAME: whole}}
        if self.name == "opencode":
            changes |= _opencode_permission(before)
        return changes

    def _entry(self, command: ServerCommand) -> dict[str, Any]:
        """Return the entry of a new installation."""
        program = command.program
        environ = {"env": dict(command.environ)} if command.environ else {}
        split: dict[str, Any] = {"command": program[0], "args": program[1:]}
        if self.name == "claude":
            return {"type": "stdio", **split, **environ}
        if self.name == "cursor":
            return {**split, **environ}
        if self.name == "codex":
            # `codex exec` cancels calls of tools that need an approval.
            limits = {"startup_timeout_sec": 60, "tool_timeout_sec": 60}
            approval = {"default_tools_approval_mode": "approve", _PASSED: ["AJET_TOKEN"]}
            return {**split, **limits, **approval, **environ}
        entry = {"type": "local", "command": program, "enabled": True, "timeout": 60_000}
        if command.environ:
            entry["environment"] = dict(command.environ)
        return entry


def _update(whole: Mapping[str, Any], present: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an entry is merged into a present one.

    How the server starts is updated. The rest may be choices of the user, such as to be asked about
    each call.
    """
    update = {key: value for key, value in whole.items() if key in _STARTS or key not in present}
    passed = present.get(_PASSED)
    if _PASSED in whole and isinstance(passed, list):
        # An item is a name, or a table that also says where the variable is read.
        names = [item.get("name") if isinstance(item, dict) else item for item in passed]
        update[_PASSED] = [*passed, *(name for name in whole[_PASSED] if name not in names)]
    return update


def _opencode_permission(before: Mapping[str, Any]) -> dict[str, Any]:
    """Allow our tools and repeated calls, each unless the user has decided about them.

    `opencode run` waits forever where it would have to ask, and it asks about the third equal call,
    such as one of `swarm_wait`. A permission for everything stays as it is. The last pattern that
    matches a tool decides, so ours, added after one for a single tool, would override it.
    """
    permission = before.get("permission", {})
    if not isinstance(permission, dict):
        return {}
    decided = any(pattern.startswith(NAME) for pattern in permission)
    tools = {} if decided else {f"{NAME}_*": "allow"}
    loops = {} if "doom_loop" in permission else {"doom_loop": "allow"}
    return {"permission": {**tools, **loops}}


def _is_ours(entry: object) -> bool:
    """Whether an entry starts `ajet mcp`."""
    if not isinstance(entry, dict):
        return False
    command = entry.get("command")
    parts = command if isinstance(command, list) else entry.get("args")
    return isinstance(parts, list) and _MODULE in parts and "mcp" in parts


HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host("claude", (".mcp.json",), "json", "mcpServers", ".claude/skills"),
        Host("codex", (".codex/config.toml",), "toml", "mcp_servers", ".agents/skills"),
        Host("cursor", (".cursor/mcp.json",), "json", "mcpServers", ".agents/skills"),
        Host("opencode", ("opencode.json", "opencode.jsonc"), "json", "mcp", ".agents/skills"),
    )
}
"""Assistants by name."""
