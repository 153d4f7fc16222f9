"""The engine's end of the channel ``delta``."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
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
_VERSIONS = "[0-9a-f]*-v*"
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
    """Makes directories of the versions of a chain. Several processes can share a cache.

    :param url: of the chain, see `Storage`.
    :param cache: a local directory for the last two versions; it is created.
    :raises ConfigError: the URL cannot be used, or a package is missing.
    """

    def __init__(self, url: str, cache: Path) -> None:
        self._storage = Storage(url)
        self._cache = cache
        self._size = 0
        # The last difference is needed again for the spare directory.
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

    def prepare(self, weights: LocalWeights) -> None:
        """Make a spare directory, which the next `read` changes instead of copying this one.

        It is the directory of the version before, brought up to date, or a copy.

        :param weights: what `read` returned, once the version before is no longer needed.
        :raises EngineError: it cannot be made; `read` works without it.
        """
        newest = weights.directory
        try:
            with self._locked(), self._aside(newest.with_name(newest.name + _SPARE)) as aside:
                before = [path for path in self._cache.glob(_VERSIONS) if path != newest]
                chain = read_chain(self._storage)
                if not (chain is not None and self._advance(chain, before, newest, aside)):
                    shutil.copytree(newest, aside, dirs_exist_ok=True)
                for path in before:
                    shutil.rmtree(path, ignore_errors=True)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"cannot make a spare directory of {newest}: {error}") from error

    def _advance(self, chain: Chain, before: list[Path], newest: Path, aside: Path) -> bool:
        """Turn a directory of `before` into the newest version; return False if none can be."""
        for entry in chain.entries:
            if newest == self._place(chain, entry.version) and entry.base is not None:
                old = self._place(chain, entry.base)
                if old in before:
                    old.rename(aside)
                    self._apply([entry], aside, aside)
                    return True
        return False

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
        self._size = 0
        needed: list[ChainEntry] = []
        if not self._place(chain, wanted).is_dir():
            needed = self._make(chain, wanted)
        self._drop_others(self._place(chain, wanted))
        differences = sum(entry.base is not None for entry in needed)
        return LocalWeights(self._place(chain, wanted), self._size, differences)

    def _place(self, chain: Chain, version: int) -> Path:
        return self._cache / f"{chain.chain}-v{version:09d}"

    def _make(self, chain: Chain, wanted: int) -> list[ChainEntry]:
        """Make the directory of a version, and return what that took."""
        for spare in self._cache.glob(f"{chain.chain}-v*{_SPARE}"):
            version = int(spare.name.removesuffix(_SPARE)[-9:])
            with contextlib.suppress(EngineError):
                needed = chain.path_to(wanted, version.__eq__)
                if all(entry.base is not None for entry in needed):
                    with self._aside(self._place(chain, wanted)) as aside:
                        spare.rename(aside)
                        self._apply(needed, aside, aside)
                    return needed
        needed = chain.path_to(wanted, lambda of: self._place(chain, of).is_dir())
        with self._aside(self._place(chain, wanted)) as aside:
            first, *rest = needed
            if first.base is None:
                self._download(first.files, aside)
                self._apply(rest, aside, aside)
            else:
                self._apply(needed, self._place(chain, first.base), aside)
        return needed

    def _apply(self, entries: Sequence[ChainEntry], base: Path, target: Path) -> None:
        for number, entry in enumerate(entries, 1):
            last = number == len(entries)
            apply_difference(self._difference(entry), base, target, check=last)
            base = target

    @contextlib.contextmanager
    def _aside(self, target: Path) -> Iterator[Path]:
        """Yield an empty directory that becomes `target`, or is removed after an error."""
        aside = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self._cache))
        try:
            yield aside
            aside.chmod(0o755)
            aside.rename(target)
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

    def _drop_others(self, newest: Path) -> None:
        """Keep one other directory: that of the version before, or the spare one."""
        others = [path for path in self._cache.glob(_VERSIONS) if path != newest]
        # Directories of this chain sort by version; those of others are older.
        chain, _, _ = newest.name.partition("-")
        others.sort(key=lambda path: (path.name.startswith(chain), path.name))
        for path in others[:-1]:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._cache.mkdir(parents=True, exist_ok=True)
        with (self._cache / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in self._cache.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)
            yield


def _damaged(file: StoredFile, url: str) -> EngineError:
    return EngineError(
        f"{file.path} at {url} is damaged: it is not what its index says; publish the weights again"
    )
