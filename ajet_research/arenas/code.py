"""Code of arms: files that a study names, whose bytes are registered with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ajet_core.errors import ConfigError, UnreadableFileError
from ajet_core.files import read_bytes
from ajet_research.arenas.interface import Arena
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
