"""The hook API version, and compatibility of plugins.

This module uses declared data only: an incompatible plugin is refused before it is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

HOOK_API: tuple[int, int] = (1, 5)
"""(major, minor) of the hook specifications in `ajet_core.plugin.spec`.

The minor version increases when a hook, a hook argument, a spec field or a method with a default is
added, the major version when one is changed or removed. A plugin therefore works with its major
version and any minor version that is not older than its own.
"""

DEPRECATED_HOOKS: dict[str, str] = {}
"""Hooks that the next major version removes: since when they are deprecated, and what to use."""


def parse_hook_api(text: str) -> tuple[int, int] | None:
    """Parse ``"1.0"`` as (1, 0); None if the text is not two decimal numbers joined by a dot."""
    major, dot, minor = text.partition(".")
    if not (dot and text.isascii() and major.isdigit() and minor.isdigit()):
        return None
    return int(major), int(minor)


def format_hook_api(version: tuple[int, int]) -> str:
    """Format (1, 0) as ``"1.0"``."""
    return f"{version[0]}.{version[1]}"


def hook_api_problem(
    declared: Sequence[str], module: str, offered: tuple[int, int] = HOOK_API
) -> str:
    """Explain why a plugin with these hook API versions is refused, and what to do; "" if it fits.

    A plugin may declare several versions; one that fits is enough.

    :param declared: entry-point names of the group ``agentjet.hook_api`` that point to `module`.
    """
    ours = format_hook_api(offered)
    if not declared:
        return (
            "it declares no hook API version. Its author must add these lines to "
            "pyproject.toml:\n"
            '    [project.entry-points."agentjet.hook_api"]\n'
            f'    "{ours}" = "{module}"'
        )
    reasons = []
    for text in declared:
        version = parse_hook_api(text)
        if version is None:
            reasons.append(
                f"{text!r} is not a hook API version (expected MAJOR.MINOR, such as {ours})"
            )
        elif version > offered:
            reasons.append(
                f"it needs hook API {text}, but this agentjet offers {ours}: upgrade agentjet"
            )
        elif version[0] < offered[0]:
            reasons.append(
                f"it was written for hook API {text}, but this agentjet offers {ours}: "
                "upgrade the plugin"
            )
        else:
            return ""
    return "; ".join(reasons)
