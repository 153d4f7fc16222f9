"""Checks of a plugin's project: what is missing before it can be published."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ajet_cli.plugin_projects.probe import Probed
from ajet_cli.plugin_projects.shown_settings import (
    is_replaced,
    read_blocks,
    texts_of_template,
)
from ajet_core import __version__
from ajet_core.errors import ConfigError
from ajet_core.plugin import spec
from ajet_core.plugin.compat import format_hook_api, hook_api_problem, parse_hook_api
from ajet_core.plugin.kinds import BY_NAME, KindName
from ajet_core.plugin.loading import OBSERVERS
from ajet_installation.check_plugin import HEAVY

SUITES: dict[KindName, tuple[str, ...]] = {
    "engine": ("EngineSuite", "ServedEngineSuite"),
    "trainer": ("TrainerSuite", "LossSuite"),
    "store": ("SampleStoreSuite",),
    "merger": ("MergerSuite",),
    "advantage": ("AdvantageSuite",),
    "agent": ("AgentSuite",),
    "world": ("WorldSuite",),
    "reader": ("ReaderSuite",),
    "judge": ("JudgeSuite",),
    "sandbox": ("SandboxSuite",),
    "source": ("SourceSuite",),
    "logger": ("LoggerSuite",),
    "command": ("CommandSuite",),
}
"""The suites of `ajet_testing.suites` for a kind, of which one has to be subclassed."""

GROUPS = ("agentjet", "agentjet.hook_api")
Weight = Literal["error", "advice"]


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a project lacks.

    :param weight: ``error`` if users of the plugin would notice, ``advice`` for the rest.
    :param text: what is missing, and what to do.
    """

    weight: Weight
    text: str


def check_project(directory: Path) -> list[Lack]:
    """Return what a project lacks, errors first.

    :raises ConfigError: there is no ``pyproject.toml`` with a table ``project`` and a name.
    """
    project = PluginProject(directory)
    return sorted(project.find_lacks(), key=lambda lack: lack.weight == "advice")


class PluginProject:
    """The project of a plugin in a directory.

    :raises ConfigError: as for `check_project`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        path = directory / "pyproject.toml"
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            self.table: dict[str, Any] = document["project"]
            self.name = str(self.table["name"])
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        except KeyError as error:
            raise ConfigError(f"{path} lacks {error} (the table `project`, or its name)") from error
        self.points: dict[str, dict[str, str]] = self.table.get("entry-points", {})
        self.hooks_modules = self.points.get("agentjet", {})
        self.sources = [path for path in (self.directory / "src", self.directory) if path.is_dir()]
        self.wheel = self._find_wheel()
        version = self.table.get("version") or (self.wheel and self.wheel[1])
        self.version = None if version is None else str(version)

    def find_lacks(self) -> Iterator[Lack]:
        """Iterate over what the project lacks."""
        yield from self._check_metadata()
        yield from self._check_agentjet()
        yield from self._check_files()
        yield from self._check_wheel()
        refusals = list(self._check_entry_points())
        yield from refusals
        if not refusals:
            yield from self._check_plugin(self._probe())

    def _check_metadata(self) -> Iterator[Lack]:
        table = self.table
        if not canonicalize_name(self.name).startswith(("ajet-", "agentjet-")):
            yield _advice(f"the name {self.name!r} does not begin with `ajet-`, as is customary")
        if self.version is None:
            yield _advice("the version is dynamic and there is no wheel to read it from")
        else:
            yield from _check_version(self.version)
        for key in ("description", "readme", "requires-python", "license"):
            if not table.get(key) and key not in table.get("dynamic", ()):
                yield _error(f"pyproject.toml: `project.{key}` is missing")
        classifiers = table.get("classifiers", [])
        for prefix, example in (
            ("Development Status ::", "Development Status :: 3 - Alpha"),
            ("Programming Language :: Python :: 3.", "Programming Language :: Python :: 3.11"),
            ("Typing :: Typed", "Typing :: Typed"),
        ):
            if not any(str(line).startswith(prefix) for line in classifiers):
                yield _advice(f"pyproject.toml: there is no classifier such as {example!r}")

    def _check_agentjet(self) -> Iterator[Lack]:
        """Check the bounds on agentjet."""
        example = '"agentjet>=0.1,<1"'
        try:
            needed = [Requirement(line) for line in self.table.get("dependencies", [])]
        except InvalidRequirement as error:
            yield _error(f"pyproject.toml: a dependency is not valid: {error}")
            return
        bounds = [need.specifier for need in needed if canonicalize_name(need.name) == "agentjet"]
        if not bounds:
            yield _error(f"pyproject.toml: agentjet is not a dependency: add {example}")
            return
        operators = {bound.operator for specifier in bounds for bound in specifier}
        if not operators & {">=", ">", "~=", "=="}:
            yield _error(f"pyproject.toml: agentjet has no lower bound: write {example}")
        if not operators & {"<", "<=", "~=", "=="}:
            yield _advice(f"pyproject.toml: agentjet has no upper bound: write {example}")
        if not all(specifier.contains(__version__, prereleases=True) for specifier in bounds):
            yield _error(
                f"pyproject.toml: the bounds of agentjet exclude {__version__}, the installed one"
            )

    def _check_files(self) -> Iterator[Lack]:
        for what, patterns in (
            ("license file", ("LICEN[SC]E*", "COPYING*")),
            ("changelog", ("CHANGELOG*", "CHANGES*", "HISTORY*")),
        ):
            if not self._find(*patterns):
                yield _error(f"there is no {what}: add {patterns[0].replace('[SC]', 'S')[:-1]}")
        for path in self._find("CHANGELOG*", "CHANGES*", "HISTORY*"):
            if self.version and self.version not in path.read_text(encoding="utf-8"):
                yield _advice(f"{path.name} has no entry for {self.version}")
        if self._readme_path() is not None and not self.readme.strip():
            yield _error(f"{self._readme_path()} is missing or empty")
        for package in self._packages():
            if not (package / "py.typed").is_file():
                yield _advice(
                    f"{package.name}/py.typed is missing, so that type checkers ignore its types"
                )

    def _check_entry_points(self) -> Iterator[Lack]:
        if not self.hooks_modules:
            yield _error(
                "pyproject.toml: there is no plugin: add [project.entry-points.agentjet] with "
                f'{self.name.removeprefix("ajet-")} = "{self.name.replace("-", "_")}.hooks"'
            )
        for module in self.hooks_modules.values():
            declared = self._declared(module)
            if problem := hook_api_problem(declared, module):
                yield _error(f"pyproject.toml: {problem}")

    def _check_plugin(self, probed: Probed) -> Iterator[Lack]:
        if probed.problem:
            yield _error(probed.problem)
        for module in probed.imported:
            note = f"the hooks module imports {module}: import it where a component is made"
            yield _error(note) if module in HEAVY else _advice(note)
        for module in probed.targets:
            yield _advice(f"the hooks module imports {module}: its specs name it as a text")
        for setting in probed.undocumented:
            yield _error(f"the setting {setting} has no description: add `:param NAME:`")
        for hook in probed.hooks:
            yield from self._check_age(hook)
        for kind, name in probed.components:
            if not _in_code(self.readme, name):
                yield _error(
                    f"the README does not show how to use {kind} {name!r}: {_usage(kind, name)}"
                )
        for problem in (*read_blocks(self.readme)[1], *probed.refused):
            yield _error(f"the README shows what is refused: {problem}")
        yield from self._check_texts(probed)
        yield from self._check_tests(probed)

    def _check_texts(self, probed: Probed) -> Iterator[Lack]:
        """Check that nothing describes the template's component if another one is in its place."""
        paths = [path for package in self._packages() for path in sorted(package.rglob("*.py"))]
        code = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
        texts = {"README": self.readme, "pyproject.toml": str(self.table.get("description", ""))}
        texts |= {path.name: text for path, text in code.items()}
        for kind in dict.fromkeys(kind for kind, _ in probed.components):
            if is_replaced(kind, "\n".join(code.values())):
                for phrase in texts_of_template(kind):
                    for name, text in texts.items():
                        if phrase in text:
                            yield _advice(
                                f"{name}: {phrase!r} is left from the template: describe your own "
                                "component"
                            )

    def _check_age(self, hook: str) -> Iterator[Lack]:
        """Check that no declared hook API is older than a hook."""
        documented = re.search(r"versionadded:: ([\d.]+)", getattr(spec, hook).__doc__ or "")
        since = parse_hook_api(documented.group(1)) if documented else None
        for module in self.hooks_modules.values():
            versions = [v for text in self._declared(module) if (v := parse_hook_api(text))]
            if since and versions and max(versions) < since:
                yield _error(
                    f"pyproject.toml: {hook} is new in hook API {format_hook_api(since)}, but "
                    f"only {format_hook_api(max(versions))} is declared"
                )

    def _check_tests(self, probed: Probed) -> Iterator[Lack]:
        tests = sorted((self.directory / "tests").rglob("*.py"))
        if not any(path.name.startswith("test_") for path in tests):
            yield _error("there are no tests: add tests/test_*.py")
        bases = {base for path in tests for base in _base_classes(path)}
        for kind in dict.fromkeys(kind for kind, _ in probed.components):
            suites = SUITES.get(kind, ())
            if suites and not bases & {*suites}:
                yield _error(f"no test subclasses {suites[0]}, the suite for kind {kind}")
        if {*probed.hooks} & {*OBSERVERS} and "ObserverSuite" not in bases:
            yield _error("no test subclasses ObserverSuite, the suite for observers")

    def _check_wheel(self) -> Iterator[Lack]:
        if self.wheel is None:
            version = f" of {self.version}" if self.version else ""
            yield _advice(f"dist contains no wheel{version} to check: `python -m build`")
            return
        path, _ = self.wheel
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
            pure = b"Root-Is-Purelib: true" in archive.read(f"{info}/WHEEL")
            text = ""
            if f"{info}/entry_points.txt" in names:
                text = archive.read(f"{info}/entry_points.txt").decode()
        if not pure:
            yield _advice(f"{path.name} is not pure: publish a wheel for each platform")
        points = configparser.ConfigParser(delimiters="=")
        points.optionxform = str  # type: ignore[assignment, method-assign]
        points.read_string(text)
        for group in GROUPS:
            if dict(points.items(group) if points.has_section(group) else ()) != self.points.get(
                group, {}
            ):
                yield _error(
                    f"{path.name}: the entry points {group} are not those of pyproject.toml: "
                    "build it again"
                )
        for package in self._packages():
            for file in sorted(package.rglob("*")):
                name = file.relative_to(package.parent).as_posix()
                skipped = "__pycache__" in file.parts or not file.is_file()
                if not skipped and name not in names:
                    yield _error(f"{path.name} lacks {name}")

    def _find_wheel(self) -> tuple[Path, str] | None:
        """Return the newest wheel of the project, and its version."""
        version = self.table.get("version")
        wheels = []
        for path in (self.directory / "dist").glob("*.whl"):
            try:
                name, its_version, *_ = parse_wheel_filename(path.name)
            except InvalidWheelFilename:
                continue
            if name == canonicalize_name(self.name) and version in (None, str(its_version)):
                wheels.append((its_version, path))
        if not wheels:
            return None
        newest, path = max(wheels)
        return path, str(newest)

    def _declared(self, module: str) -> list[str]:
        apis = self.points.get("agentjet.hook_api", {})
        return [text for text, its_module in apis.items() if its_module == module]

    def _packages(self) -> list[Path]:
        """Return the directories of the packages with hooks."""
        names = sorted({module.partition(".")[0] for module in self.hooks_modules.values()})
        paths = [next((s / n for s in self.sources if (s / n).is_dir()), None) for n in names]
        return [path for path in paths if path is not None]

    def _find(self, *patterns: str) -> list[Path]:
        return sorted(path for pattern in patterns for path in self.directory.glob(pattern))

    def _readme_path(self) -> str | None:
        readme = self.table.get("readme")
        path = readme.get("file") if isinstance(readme, dict) else readme
        return None if path is None else str(path)

    @property
    def readme(self) -> str:
        """The text of the README, "" if there is none."""
        path = self._readme_path()
        try:
            return (self.directory / path).read_text(encoding="utf-8") if path else ""
        except OSError:
            return ""

    def _probe(self) -> Probed:
        """Import the plugin in another process, as if it were installed."""
        with tempfile.TemporaryDirectory() as site:
            info = Path(site) / f"{canonicalize_name(self.name).replace('-', '_')}-0.dist-info"
            info.mkdir()
            metadata = f"Metadata-Version: 2.1\nName: {self.name}\nVersion: {self.version or 0}\n"
            (info / "METADATA").write_text(metadata, encoding="utf-8")
            lines = [
                line
                for group in GROUPS
                for line in (
                    f"[{group}]",
                    *(f"{n} = {m}" for n, m in self.points.get(group, {}).items()),
                )
            ]
            (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
            path = [site, *map(str, self.sources), os.environ.get("PYTHONPATH", "")]
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-m", "ajet_cli.plugin_projects.probe", self.name],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
                cwd=site,
                # TOML has dates, which no settings of the README need as such.
                input=json.dumps(read_blocks(self.readme)[0], default=str),
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            return Probed(problem=f"the plugin cannot be imported: {' '.join(last)}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return Probed(**result)


def _error(text: str) -> Lack:
    return Lack("error", text)


def _advice(text: str) -> Lack:
    return Lack("advice", text)


def _check_version(version: str) -> Iterator[Lack]:
    try:
        if Version(version).release == (0, 0, 0):
            yield _error(f"the version is {version}: give it a number above 0.0.0")
    except InvalidVersion:
        yield _error(f"the version {version!r} is not valid")


def _in_code(text: str, name: str) -> bool:
    """Return whether a README has a name in code, in a line or a block."""
    code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
    return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", part) for part in code)


def _usage(kind: KindName, name: str) -> str:
    """Return what a user writes to use a component."""
    known = BY_NAME[kind]
    if kind == "command":
        return f"`ajet {name}`"
    if kind in {"world", "reader", "judge", "sandbox", "source", "agent", "logger"}:
        return f"`[{known.set_by.format(name)}]` in ajet.toml"
    return f'`{known.chosen_by or f"{kind}.name"} = "{name}"`'


def _base_classes(path: Path) -> set[str]:
    """Return the last names of all base classes in a file."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return set()
    return {
        ast.unparse(base).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
