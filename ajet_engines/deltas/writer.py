"""The trainer's end of the channel ``delta``."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ajet_core.errors import TrainerError
from ajet_engines.deltas.chain import INDEX, Chain, ChainEntry, Storage, StoredFile, sha256_of
from ajet_engines.deltas.difference import difference

__all__ = ["ChainWriter"]

# After this many differences, or this share of all files in bytes, all files are written again: a
# new reader reads at most so much besides them.
_MOST_DIFFERENCES = 64
_MOST_SHARE = 0.5
_KEPT_FULL = 2
_OURS = re.compile(r"[0-9a-f]{16}-v\d{9}[.-]")


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
        self._unnamed: set[str] = set()
        self._attempted: list[str] = []

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
        if self._last is not None and version <= self._last[0]:
            # The run was set back: what was published since is void.
            self._begin_anew()
        self._attempted = []
        try:
            entry = self._written(directory, version)
            entries = _kept([*self._chain.entries, entry])
            chain = self._chain.model_copy(update={"entries": tuple(entries)})
            self._storage.write(INDEX, chain.model_dump_json().encode())
        # Each kind of storage has its own errors.
        except Exception as error:
            # Readers may have seen this version already: do not use its number in this chain again.
            for name in self._attempted:
                self._storage.remove(name)
            self._begin_anew()
            raise TrainerError(
                f"cannot write the weights of version {version} to {self._storage.url}: {error}"
            ) from error
        self._chain, self._last = chain, (version, directory)
        self._clean(keep=[file.path for one in entries for file in one.stored])
        return entry

    def _stored(self, name: str) -> str:
        """Note a name, whose file is removed if the version cannot be published."""
        self._attempted.append(name)
        return name

    def _written(self, directory: Path, version: int) -> ChainEntry:
        name = f"{self._chain.chain}-v{version:09d}"
        entry = ChainEntry(version=version)
        full, since = self._since_full()
        if self._last is not None and self._last[1].is_dir():
            content = difference(self._last[1], directory)
            digest = hashlib.sha256(content).hexdigest()
            path = self._stored(f"{name}.delta")
            self._storage.write(path, content)
            stored = StoredFile(name=path, path=path, size=len(content), sha256=digest)
            entry = ChainEntry(version=version, base=self._last[0], difference=stored)
            sizes = [one.difference.size for one in since if one.difference is not None]
            small = sum(sizes) + len(content) <= _MOST_SHARE * full
            if small and len(since) < _MOST_DIFFERENCES:
                return entry
        return entry.model_copy(update={"files": tuple(self._upload(directory, name))})

    def _since_full(self) -> tuple[int, Sequence[ChainEntry]]:
        """Return the bytes of the last full version, and the entries after it."""
        for number, entry in enumerate(reversed(self._chain.entries)):
            if entry.files:
                return entry.size, self._chain.entries[len(self._chain.entries) - number :]
        return 0, ()

    def _upload(self, directory: Path, name: str) -> Iterable[StoredFile]:
        for source in sorted(path for path in directory.iterdir() if path.is_file()):
            path = self._stored(f"{name}-{source.name}")
            self._storage.upload(source, path)
            size, digest = source.stat().st_size, sha256_of(source)
            yield StoredFile(name=source.name, path=path, size=size, sha256=digest)

    def _begin_anew(self) -> None:
        self._chain, self._last = Chain.new(), None

    def _clean(self, keep: Iterable[str]) -> None:
        """Remove the files of earlier chains and of processes that ended while they wrote.

        Readers may still read what the index has just ceased to name: that is removed next time.
        """
        kept = set(keep)
        unnamed = {name for name in self._storage.names() if _OURS.match(name)} - kept
        for name in unnamed & self._unnamed:
            self._storage.remove(name)
        self._unnamed = unnamed - self._unnamed


def _kept(entries: Sequence[ChainEntry]) -> list[ChainEntry]:
    """Return the entries from the last full versions on."""
    full = [number for number, entry in enumerate(entries) if entry.files]
    return list(entries[full[-_KEPT_FULL:][0] :])
