"""The engine's end of the channel ``delta``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ajet_core.errors import EngineError
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
_KEPT = 2
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
    """Makes directories of the versions of a chain. Several processes can share a cache.

    :param url: of the chain, see `Storage`.
    :param cache: a local directory for the last two versions; it is created.
    :raises ConfigError: the URL cannot be used, or a package is missing.
    """

    def __init__(self, url: str, cache: Path) -> None:
        self._storage = Storage(url)
        self._cache = cache
        self._size = 0
        # The last difference is needed again for the directory before the one that it made.
        self._last: tuple[StoredFile | None, bytes] = (None, b"")

    def read(self, version: int | None = None, chain: str | None = None) -> LocalWeights:
        """Return a directory of a version, from as few bytes as possible.

        :param version: None for the newest.
        :param chain: the id of the chain; None for any.
        :raises EngineError: the chain has no such version, or is damaged; or the directory cannot
            be written.
        """
        try:
            with self._locked():
                for attempt in range(1, _ATTEMPTS + 1):
                    try:
                        return self._read(version, chain)
                    except FileNotFoundError:
                        if attempt == _ATTEMPTS:
                            raise
        except EngineError:
            raise
        # Each kind of storage has its own errors.
        except Exception as error:
            raise EngineError(
                f"cannot read version {'' if version is None else version} of the weights at "
                f"{self._storage.url}: {error}"
            ) from error
        raise AssertionError("unreachable")

    def _read(self, version: int | None, expected: str | None) -> LocalWeights:
        chain = read_chain(self._storage)
        if chain is None or chain.newest is None:
            raise EngineError(
                f"there are no weights at {self._storage.url}: check weights.url, and that the "
                "trainer has published"
            )
        if expected is not None and chain.chain != expected:
            raise EngineError(
                f"the weights at {self._storage.url} are those of another trainer, which has "
                "replaced the chain: give each run its own weights.url"
            )
        wanted = chain.newest.version if version is None else version

        def place(of: int) -> Path:
            return self._cache / f"{chain.chain}-v{of:09d}"

        self._size = 0
        needed: list[ChainEntry] = []
        if not place(wanted).is_dir():
            local = sorted(
                entry.version for entry in chain.entries if place(entry.version).is_dir()
            )
            needed, old = _cheapest(chain, wanted, local)
            self._make(place, needed, old)
        self._drop_others(place(wanted), chain.chain)
        differences = sum(entry.base is not None for entry in needed)
        return LocalWeights(place(wanted), self._size, differences)

    def _make(
        self, place: Callable[[int], Path], needed: list[ChainEntry], old: int | None
    ) -> None:
        """Make a directory.

        :param old: a version whose directory is no longer needed, and from which `needed` leads to
            the wanted one: it is changed in place.
        """
        aside = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=self._cache))
        try:
            base: Path | None = None
            if old is not None:
                # This replaces the empty directory.
                base = place(old).rename(aside)
            for entry in needed:
                if entry.base is None:
                    self._download(entry.files, aside)
                else:
                    # Later differences are applied in place, so that the base is copied once.
                    apply_difference(self._difference(entry), base or place(entry.base), aside)
                base = aside
            aside.chmod(0o755)
            aside.rename(place(needed[-1].version))
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    def _download(self, files: tuple[StoredFile, ...], target: Path) -> None:
        def one(file: StoredFile) -> None:
            path = target / file.name
            self._size += file.size
            self._storage.download(file.path, path)
            if path.stat().st_size != file.size or sha256_of(path) != file.sha256:
                raise _damaged(file, self._storage.url)

        with ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="weights") as pool:
            list(pool.map(one, files))

    def _difference(self, entry: ChainEntry) -> bytes:
        if len(entry.files) != 1:
            raise EngineError(f"the index of the weights at {self._storage.url} is damaged")
        file = entry.files[0]
        if self._last[0] == file:
            return self._last[1]
        content = self._storage.read(file.path, file.size + 1)
        if len(content) != file.size or hashlib.sha256(content).hexdigest() != file.sha256:
            raise _damaged(file, self._storage.url)
        self._size += file.size
        self._last = file, content
        return content

    def _drop_others(self, newest: Path, chain: str) -> None:
        """Keep the newest version and the one before, from which the next one may be made."""
        others = [path for path in self._cache.glob("*-v*") if path != newest]
        # Directories of this chain sort by version; those of others are older.
        others.sort(key=lambda path: (path.name.startswith(chain), path.name))
        for path in others[: 1 - _KEPT]:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in self._cache.glob(".unfinished-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield


def _cheapest(chain: Chain, wanted: int, local: list[int]) -> tuple[list[ChainEntry], int | None]:
    """Return what to read, and the version whose directory to change in place, if any.

    Nothing is copied if the older of two directories is changed; the newer one may be in use.

    :raises EngineError: the chain does not lead to `wanted`.
    """
    if len(local) >= _KEPT:
        oldest = local[0]
        with contextlib.suppress(EngineError):
            needed = chain.path_to(wanted, lambda version: version == oldest)
            if all(entry.base is not None for entry in needed):
                return needed, oldest
    return chain.path_to(wanted, lambda version: version in local), None


def _damaged(file: StoredFile, url: str) -> EngineError:
    return EngineError(
        f"{file.path} at {url} is damaged: it is not what its index says; publish the weights again"
    )
