"""The engine's end of the channel ``delta``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import AjetError, EngineError
from ajet_engines.deltas.chain import (
    Chain,
    ChainEntry,
    Storage,
    StoredFile,
    read_chain,
    sha256_of,
)
from ajet_engines.deltas.difference import apply_difference

__all__ = ["ChainReader", "LocalWeights"]

_DOWNLOADS = 4
_PLACE = "reader-"
_LOCK = ".lock"
_VERSION = re.compile(r"[0-9a-f]{16}-v\d{9}\Z")
_SPARE = ".spare"
_UNFINISHED = ".unfinished-"
# Files disappear from a chain while it is read if two full versions follow in that time.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class LocalWeights:
    """A version of the weights in a local directory.

    :param size: bytes that were read from the chain.
    :param differences: number of differences that were applied.
    """

    directory: Path
    size: int = 0
    differences: int = 0


class ChainReader:
    """Makes directories of the versions of a chain.

    Each reader has a directory of its own in the cache, and takes over what a process that ended
    has left there.

    :param url: of the chain, see `Storage`.
    :param cache: a local directory; it is created. It needs room for two versions.
    :param setting: name of the setting that has the URL, for errors.
    :raises ConfigError: the URL cannot be used, or a package is missing.
    """

    def __init__(self, url: str, cache: Path, setting: str = "weights.url") -> None:
        self._storage = Storage(url, setting)
        self._cache = cache
        self._place: Path | None = None
        self._lock: int | None = None
        self._busy = threading.Lock()
        self._size = 0
        # The last difference is needed again for the spare directory.
        self._last: tuple[StoredFile | None, bytes] = (None, b"")

    def read(self, version: int | None = None, chain: str | None = None) -> LocalWeights:
        """Return a directory of a version, from as few bytes as possible.

        It stays as it is until the call after the next.

        :param version: None for the newest.
        :param chain: the id of the chain; None for any.
        :raises EngineError: the chain has no such version, or is damaged; or the directory cannot
            be written.
        """
        named = "the newest version" if version is None else f"version {version}"
        with self._busy, _explained(f"read {named} of the weights at {self._storage.url}"):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return self._read(version, chain)
                except FileNotFoundError:
                    if attempt == _ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    def prepare(self, weights: LocalWeights) -> None:
        """Make a spare directory, which the next `read` changes instead of copying this one.

        It is the directory of the version before, brought up to date, or a copy.

        :param weights: what `read` returned, once the version before is no longer needed.
        :raises EngineError: it cannot be made; `read` works without it.
        """
        newest = weights.directory
        with self._busy, _explained(f"make a spare directory of {newest}"):
            with self._aside(newest.with_name(newest.name + _SPARE)) as aside:
                before = self._others(newest)
                chain = read_chain(self._storage)
                if chain is None or not self._advance(chain, before, newest, aside):
                    for path in before:
                        shutil.rmtree(path, ignore_errors=True)
                    shutil.copytree(newest, aside, dirs_exist_ok=True)
            self._last = (None, b"")

    def close(self) -> None:
        """Leave the directory in the cache to another reader."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._place = None

    def _read(self, version: int | None, expected: str | None) -> LocalWeights:
        chain = read_chain(self._storage)
        if chain is None or chain.newest is None:
            raise EngineError(
                f"there are no weights at {self._storage.url}: check weights.url, and that the "
                "trainer has published"
            )
        if expected is not None and chain.chain != expected:
            raise EngineError(
                f"the weights at {self._storage.url} are those of another trainer, or an old index "
                "from a cache: give each run its own weights.url, and let no cache keep chain.json"
            )
        wanted = chain.newest.version if version is None else version
        directory = self._directory(chain, wanted)
        self._size = 0
        differences = 0 if directory.is_dir() else self._make(chain, wanted, directory)
        # The version before may be in service until the engine has loaded this one.
        others = self._others(directory)
        others.sort(
            key=lambda path: (
                _VERSION.match(path.name) is not None,
                path.name.startswith(chain.chain),
                path.name,
            )
        )
        for path in others[:-1]:
            shutil.rmtree(path, ignore_errors=True)
        return LocalWeights(directory, self._size, differences)

    def _make(self, chain: Chain, wanted: int, directory: Path) -> int:
        """Make the directory of a version, and return the number of differences applied."""
        spares, local = self._versions(chain, _SPARE), self._versions(chain)
        # What is local could be damaged. As a last resort, read the files of the chain.
        for has in (*filter(None, (spares, local)), {}):
            try:
                path = chain.path_to(wanted, has)
            except EngineError:
                if has:
                    continue
                raise
            if has and path.base is None:
                continue
            if not has:
                # Free disk space: no spare directory leads to this version.
                for one in self._others(directory):
                    if one.name.endswith(_SPARE):
                        shutil.rmtree(one, ignore_errors=True)
            try:
                with self._aside(directory) as aside:
                    base = aside
                    if path.start is not None:
                        self._download(path.start.files, aside)
                    elif has is spares:
                        has[path.base or 0].rename(aside)
                    else:
                        base = has[path.base or 0]
                    self._apply(path.steps, base, aside)
                return len(path.steps)
            except _DamagedBaseError:
                if path.base is None:
                    raise
                shutil.rmtree(has[path.base], ignore_errors=True)
        raise AssertionError("unreachable")

    def _advance(self, chain: Chain, before: list[Path], newest: Path, aside: Path) -> bool:
        """Turn a directory of `before` into the newest version; return False if none can be."""
        for entry in chain.entries:
            if newest == self._directory(chain, entry.version) and entry.base is not None:
                old = self._directory(chain, entry.base)
                if old in before:
                    old.rename(aside)
                    self._apply([entry], aside, aside)
                    return True
        return False

    def _apply(self, steps: Sequence[ChainEntry], base: Path, target: Path) -> None:
        for number, entry in enumerate(steps, 1):
            content, last = self._difference(entry), number == len(steps)
            try:
                apply_difference(content, base, target, check=last)
            except EngineError as error:
                # The difference itself has its digest.
                raise _DamagedBaseError(error.message) from error
            base = target

    @contextlib.contextmanager
    def _aside(self, target: Path) -> Iterator[Path]:
        """Yield an empty directory that becomes `target`, or is removed after an error."""
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._home()))
        try:
            yield aside
            aside.rename(target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _download(self, files: tuple[StoredFile, ...], target: Path) -> None:
        def one(file: StoredFile) -> None:
            path = target / file.name
            self._storage.download(file.path, path)
            if path.stat().st_size != file.size or sha256_of(path) != file.sha256:
                raise _damaged(file, self._storage.url)

        with ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="weights") as pool:
            list(pool.map(one, files))
        self._size += sum(file.size for file in files)

    def _difference(self, entry: ChainEntry) -> bytes:
        file = entry.difference
        if file is None:
            raise EngineError(f"the index of the weights at {self._storage.url} is damaged")
        if self._last[0] == file:
            return self._last[1]
        content = self._storage.read(file.path, file.size)
        if len(content) != file.size or hashlib.sha256(content).hexdigest() != file.sha256:
            raise _damaged(file, self._storage.url)
        self._size += file.size
        self._last = file, content
        return content

    def _directory(self, chain: Chain, version: int) -> Path:
        return self._home() / f"{chain.chain}-v{version:09d}"

    def _versions(self, chain: Chain, suffix: str = "") -> dict[int, Path]:
        """Return the local directories of a chain by their version."""
        paths = {e.version: self._directory(chain, e.version) for e in chain.entries}
        places = {v: path.with_name(path.name + suffix) for v, path in paths.items()}
        return {v: path for v, path in places.items() if path.is_dir()}

    def _others(self, newest: Path) -> list[Path]:
        """Return all other directories with weights."""
        return [
            path
            for path in self._home().iterdir()
            if path != newest and _VERSION.match(path.name.removesuffix(_SPARE))
        ]

    def _home(self) -> Path:
        """Return this reader's directory.

        :raises EngineError: the cache belongs to another user.
        """
        while self._place is None:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._cache.stat().st_uid != os.geteuid():
                raise EngineError(f"weights.cache: {self._cache} belongs to another user")
            for path in sorted(self._cache.glob(f"{_PLACE}*")):
                if (lock := _locked(path)) is None:
                    continue
                if self._place is None:
                    self._place, self._lock = path, lock
                else:
                    shutil.rmtree(path, ignore_errors=True)
                    os.close(lock)
            if self._place is None:
                # The next pass takes it, unless another reader is faster.
                tempfile.mkdtemp(prefix=_PLACE, dir=self._cache)
            else:
                for left in self._place.glob(f"{_UNFINISHED}*"):
                    shutil.rmtree(left, ignore_errors=True)
        return self._place


class _DamagedBaseError(Exception):
    """A difference does not lead from a local directory to the published weights."""


def _locked(place: Path) -> int | None:
    """Lock a reader's directory until the descriptor is closed; None if its reader is alive."""
    try:
        lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another reader may have removed the directory between the two calls.
        if os.fstat(lock).st_ino == (place / _LOCK).stat().st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Convert all errors to `AjetError`."""
    try:
        yield
    except AjetError:
        raise
    except FileNotFoundError as error:
        raise EngineError(
            f"cannot {what}: {error.filename or error} is missing; restart the run, so that all "
            "files are written again"
        ) from error
    # Each kind of storage has its own errors.
    except Exception as error:
        raise EngineError(f"cannot {what}: {error}") from error


def _damaged(file: StoredFile, url: str) -> EngineError:
    return EngineError(
        f"{file.path} at {url} is damaged: it is not what its index says; restart the run, so that "
        "all files are written again"
    )
