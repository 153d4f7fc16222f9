"""Plugin hooks that register the command."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_core.plugin import CommandSpec, hookimpl


@hookimpl
def ajet_register_commands() -> Sequence[CommandSpec]:
    """Register the command ``ajet demo``."""
    return (
        CommandSpec(
            name="demo",
            target="ajet_demo.command:demo",
            summary="Train a tiny model on this machine, from end to end.",
        ),
    )
