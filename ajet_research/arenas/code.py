"""Code of arms: files that a study names, whose bytes are registered with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_bytes
from ajet_research.arenas.interface import Arena, Splits, TrialBlueprint, TrialEvidence
from ajet_research.study import Scalar

CODE = "code:"
MOST_CODE = 32 * 1024
"""Bytes of a file. Each trial has the whole text, so that it runs wherever it is sent."""
_PATH = re.compile(r"(\w[\w.-]{0,63}/){0,4}\w[\w.-]{0,63}", re.ASCII)


class CodeFiles:
    """The files of a study's code: those of a directory, or the registered ones.

    :ivar texts: by path, those that were needed so far.
    """

    def __init__(self, directory: Path, registered: Mapping[str, str] | None = None) -> None:
        self._directory = directory.resolve()
        self._registered = registered
        self.texts: dict[str, str] = {}

    def filled(self, arena: Arena, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return settings in which the text of each file replaces its path.

        :raises ConfigError: a file cannot be read, or is not in the directory.
        """
        return {
            name: CODE + self.text(value.removeprefix(CODE))
            if name in arena.programs and isinstance(value, str) and value.startswith(CODE)
            else value
            for name, value in settings.items()
        }

    def text(self, path: str) -> str:
        """Return the text of a file.

        :raises ConfigError: it cannot be read, or is not in the directory.
        """
        if path not in self.texts:
            self.texts[path] = self._read(path)
        return self.texts[path]

    def _read(self, path: str) -> str:
        if self._registered is not None:
            if path not in self._registered:
                raise ConfigError(f"There is no code {path} among the given files.")
            return self._registered[path]
        file = self._directory / path
        if not _PATH.fullmatch(path) or not file.resolve().is_relative_to(self._directory):
            raise ConfigError(
                f"The code {path[:200]!r} needs a path below the study file, of letters, digits "
                f"and signs of . - _ /, such as {CODE}arms/first.py"
            )
        try:
            return read_bytes(file, limit=MOST_CODE).decode("utf-8")
        except FileNotFoundError:
            raise ConfigError(f"There is no code {path} in {self._directory}.") from None
        except (UnreadableFileError, UnicodeDecodeError, OSError) as error:
            raise ConfigError(
                f"The code {path} cannot be read as text of at most {MOST_CODE} bytes: {error}"
            ) from error


class CodeArena(Arena):
    """An arena in which a study's files of code are known, so that settings may name them.

    A trial has their text instead, so that the arena itself runs it and reads its evidence.
    """

    def __init__(self, arena: Arena, files: CodeFiles) -> None:
        self._arena = arena
        self._files = files
        self.metrics = arena.metrics
        self.programs = arena.programs

    def resolve(self, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Return all settings, with the text of each file instead of its path.

        :raises ConfigError: also if a file cannot be read, or is not one of the study.
        """
        return self._arena.resolve(self._files.filled(self._arena, settings))

    def splits(self, settings: Mapping[str, Scalar], seed: int) -> Splits:
        """Return the tasks of a trial with resolved settings."""
        return self._arena.splits(settings, seed)

    def evaluator(self, settings: Mapping[str, Scalar]) -> str:
        """Return the fingerprint of what scores a trial with resolved settings."""
        return self._arena.evaluator(settings)

    def check_machine(self, settings: Mapping[str, Scalar]) -> None:
        """Check that trials with resolved settings can run here."""
        self._arena.check_machine(settings)

    def run(self, blueprint: TrialBlueprint, directory: Path) -> None:
        """Run a trial."""
        self._arena.run(blueprint, directory)

    def evidence(self, blueprint: TrialBlueprint, directory: Path) -> TrialEvidence:
        """Read the raw store of a trial."""
        return self._arena.evidence(blueprint, directory)


def changed_code(directory: Path, registered: Mapping[str, str]) -> list[str]:
    """Return the paths of registered files that a directory has with other bytes, or not at all."""
    now = CodeFiles(directory)
    changed = []
    for path, text in registered.items():
        try:
            if now.text(path) != text:
                changed.append(path)
        except ConfigError:
            changed.append(path)
    return changed
