"""Real throw-away distributions: metadata and modules in a directory on ``sys.path``."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOOKS_HEADER = """
from ajet_core.interfaces import EngineCapabilities, TrainerCapabilities
from ajet_core.plugin import (
    CommandSpec, EngineSpec, LoggerSpec, StoreSpec, TrainerSpec, hookimpl
)
CHANNELS = EngineCapabilities(weight_channels=("safetensors_dir",))
"""


@dataclass
class Site:
    """A directory of installed distributions."""

    path: Path
    modules: list[str] = field(default_factory=list)

    def install(
        self,
        distribution: str,
        source: str = "",
        *,
        name: str | None = None,
        version: str = "1.2",
        hook_api: tuple[str, ...] = ("1.0",),
        files: Mapping[str, str] | None = None,
        requires: tuple[str, ...] = (),
    ) -> str:
        """Install a distribution with one plugin; returns the name of its hooks module.

        :param requires: distributions that it depends on.
        """
        package = distribution.replace("-", "_")
        module = f"{package}_hooks"
        self.write(module, HOOKS_HEADER + textwrap.dedent(source))
        for other, text in (files or {}).items():
            self.write(other, textwrap.dedent(text))
        info = self.path / f"{package}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {name}\n" for name in requires)
        )
        lines = ["[agentjet]", f"{name or distribution} = {module}"]
        if hook_api:
            lines += ["[agentjet.hook_api]", *(f"{api} = {module}" for api in hook_api)]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        importlib.invalidate_caches()
        return module

    def install_library(self, distribution: str, module: str, text: str) -> None:
        """Install a distribution that consists of a module and is no plugin."""
        self.write(module, text)
        info = self.path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "RECORD").write_text(f"{module}.py,,\n")
        importlib.invalidate_caches()

    def write(self, module: str, text: str) -> None:
        """Add a module."""
        (self.path / f"{module}.py").write_text(text)
        self.modules.append(module)
