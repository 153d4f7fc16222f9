"""The trainer's end of the channel ``delta``."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

from ajet_core.errors import EngineError, TrainerError
from ajet_engines.deltas.chain import (
    INDEX,
    Chain,
    ChainEntry,
    Storage,
    StoredFile,
    read_chain,
    sha256_of,
)
from ajet_engines.deltas.difference import difference

__all__ = ["ChainWriter"]

# After this many differences, or this share of all files in bytes, all files are written again: a
# new reader reads at most so much.
_MOST_DIFFERENCES = 64
_MOST_SHARE = 0.5
_KEPT_FULL = 2


class ChainWriter:
    """Writes versions of the weights to a chain.

    It begins a new chain, which replaces the one that another process wrote.

    :param url: of the chain, see `Storage`.
    :raises ConfigError: the URL cannot be used, or a package is missing.
    """

    def __init__(self, url: str) -> None:
        self._storage = Storage(url)
        self._chain = Chain.new()
        self._last: tuple[int, Path] | None = None
        self._old: list[str] = []
        self._void: list[str] = []
        with contextlib.suppress(EngineError):
            if (before := read_chain(self._storage)) is not None:
                self._old = _paths(before.entries)

    @property
    def chain(self) -> str:
        """The id of the chain of the last version."""
        return self._chain.chain

    def publish(self, directory: Path, version: int) -> ChainEntry:
        """Add a version.

        :param directory: of the weights. It must not change until the next version is published,
            which is written as a difference from it; if it is gone then, all files are written.
        :raises TrainerError: the directory cannot be read, or the chain not written.
        """
        try:
            entry = self._written(directory, version)
            kept, dropped = _split([*self._chain.entries, entry])
            chain = self._chain.model_copy(update={"entries": tuple(kept)})
            self._storage.write(INDEX, chain.model_dump_json().encode())
        # Each kind of storage has its own errors.
        except Exception as error:
            self._last = None
            raise TrainerError(
                f"cannot write the weights of version {version} to {self._storage.url}: {error}"
            ) from error
        self._chain, self._last = chain, (version, directory)
        # Files that the index no longer names may still be read: remove them next time.
        for path in self._old:
            self._storage.remove(path)
        self._old = self._void + _paths(dropped)
        self._void = []
        return entry

    def _written(self, directory: Path, version: int) -> ChainEntry:
        last = self._last
        if last is None or version <= last[0] or not last[1].is_dir() or self._is_long():
            if last is not None and version <= last[0]:
                # The run was set back: what was published since is void.
                self._void = _paths(self._chain.entries)
                self._chain = Chain.new()
            return self._full(directory, version)
        content = difference(last[1], directory)
        name = f"{self._chain.chain}-v{version:09d}.delta"
        self._storage.write(name, content)
        file = StoredFile(
            name=name, path=name, size=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
        return ChainEntry(version=version, base=last[0], files=(file,))

    def _full(self, directory: Path, version: int) -> ChainEntry:
        files = []
        for source in sorted(path for path in directory.iterdir() if path.is_file()):
            path = f"{self._chain.chain}-v{version:09d}-{source.name}"
            self._storage.upload(source, path)
            size = source.stat().st_size
            digest = sha256_of(source)
            files.append(StoredFile(name=source.name, path=path, size=size, sha256=digest))
        return ChainEntry(version=version, files=tuple(files))

    def _is_long(self) -> bool:
        since: list[ChainEntry] = []
        for entry in reversed(self._chain.entries):
            if entry.base is None:
                size = sum(one.size for one in since)
                return len(since) >= _MOST_DIFFERENCES or size > _MOST_SHARE * entry.size
            since.append(entry)
        return True


def _paths(entries: Iterable[ChainEntry]) -> list[str]:
    return [file.path for entry in entries for file in entry.files]


def _split(entries: Iterable[ChainEntry]) -> tuple[list[ChainEntry], list[ChainEntry]]:
    """Return the entries from the last full versions on, and those before."""
    kept: list[ChainEntry] = []
    dropped: list[ChainEntry] = []
    full = 0
    for entry in reversed(list(entries)):
        (kept if full < _KEPT_FULL else dropped).append(entry)
        full += entry.base is None
    return kept[::-1], dropped[::-1]
