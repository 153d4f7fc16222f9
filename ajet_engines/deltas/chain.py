"""The index of a chain, and the files that it names."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import ConfigError, EngineError
from ajet_core.files import write_whole

__all__ = [
    "INDEX",
    "Chain",
    "ChainEntry",
    "ChainPart",
    "ChainPath",
    "FileName",
    "Storage",
    "StoredFile",
    "read_chain",
    "sha256_of",
]

INDEX: Final = "chain.json"
_MOST_INDEX = 16 * 1024 * 1024
# Names become paths below the chain and below the reader's directory.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,254}\Z")


def _plain_name(name: str) -> str:
    """Return a file name; raise `ValueError` if it could lead to another directory."""
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is not a plain file name")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]


class ChainPart(BaseModel):
    """A part of an index or a difference; unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredFile(ChainPart):
    """A file below the chain.

    :param name: name in the directory of the weights; that of a difference is its path.
    :param path: name below the chain.
    :param size: in bytes.
    :param sha256: of its content, in hexadecimal digits.
    """

    name: FileName
    path: FileName
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ChainEntry(ChainPart):
    """A version of the weights. It has a difference, all files, or both.

    :param version: the policy version.
    :param base: the version that the difference is from.
    :param difference: None if there is no version before.
    :param files: all files; empty if the version can only be made from differences.
    """

    version: Annotated[int, Field(ge=0)]
    base: Annotated[int, Field(ge=0)] | None = None
    difference: StoredFile | None = None
    files: tuple[StoredFile, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files; 0 if the entry has none."""
        return sum(file.size for file in self.files)

    @property
    def stored(self) -> list[StoredFile]:
        """Everything that the entry names."""
        return [*self.files, *([] if self.difference is None else [self.difference])]


@dataclass(frozen=True, slots=True)
class ChainPath:
    """What a reader needs for a version.

    :param start: the entry of which all files are read; None if the reader has `base`.
    :param base: the version that the reader has; None if it reads all files of `start`.
    :param steps: entries whose differences follow, in this order.
    """

    start: ChainEntry | None
    base: int | None
    steps: tuple[ChainEntry, ...]


class Chain(ChainPart):
    """The versions that can be read, oldest first, each version once.

    :param chain: random; another chain has other weights for the same versions.
    """

    format: Literal[1] = 1
    chain: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    entries: tuple[ChainEntry, ...] = ()

    @classmethod
    def new(cls) -> Chain:
        """Return a chain without versions."""
        return cls(chain=secrets.token_hex(8))

    @property
    def newest(self) -> ChainEntry | None:
        """The last version."""
        return self.entries[-1] if self.entries else None

    def path_to(self, version: int, has: Container[int] = ()) -> ChainPath:
        """Return the path with the fewest bytes to a version.

        :param has: versions that the reader has.
        :raises EngineError: the chain has no such version, or lacks one that it is based on.
        """
        by_version = {entry.version: entry for entry in self.entries}
        steps: list[ChainEntry] = []
        best: tuple[int, ChainPath] | None = None
        size, at = 0, version
        while at not in has:
            entry = by_version.get(at)
            if entry is None or len(steps) > len(self.entries):
                break
            if entry.files and (best is None or size + entry.size < best[0]):
                best = size + entry.size, ChainPath(entry, None, tuple(reversed(steps)))
            if entry.base is None or entry.difference is None:
                break
            steps.append(entry)
            size += entry.difference.size
            at = entry.base
        if at in has and (best is None or size <= best[0]):
            return ChainPath(None, at, tuple(reversed(steps)))
        if best is None:
            raise EngineError(self._lacks(at, version))
        return best[1]

    def _lacks(self, at: int, version: int) -> str:
        last = (
            "it is empty" if self.newest is None else f"its newest version is {self.newest.version}"
        )
        if at == version:
            return f"the chain of weights has no version {version}; {last}"
        return (
            f"version {version} of the weights is a difference from version {at}, which the chain "
            f"does not have; {last}. Restart the run, so that all files are written again"
        )


class Storage:
    """Files below a URL that ``fsspec`` supports, or in a directory.

    :param url: such as ``/mnt/shared/weights``, ``s3://bucket/run`` or ``https://host/weights``.
    :param setting: name of the setting that has the URL, for errors.
    :raises ConfigError: the URL has a scheme that is not supported, or a package is missing.
    """

    def __init__(self, url: str, setting: str = "weights.url") -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                "the weight channel delta requires fsspec, which is not installed: pip install "
                "'agentjet[delta]>=0.1'",
                param="weight_channel",
            ) from error
        protocol = fsspec.core.split_protocol(url)[0]
        self._is_local = protocol in (None, "file", "local")
        try:
            options = _http_options() if protocol in ("http", "https") else {}
            self._files, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"{setting}: cannot use {url!r}: {error}") from error
        self.url = url

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file.

        :param most: bytes that it may have.
        :raises FileNotFoundError: there is no such file.
        :raises OSError: it cannot be read, or is larger.
        """
        content: bytes = self._files.cat_file(self._path(name))
        if len(content) > most:
            raise OSError(f"{name} has {len(content)} bytes, more than {most}")
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file, or none.

        :raises OSError: it cannot be written.
        """
        if self._is_local:
            path = FilePath(self._path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, content, mode=0o644)
        else:
            self._files.pipe_file(self._path(name), content)

    def upload(self, source: FilePath, name: str) -> None:
        """Copy a local file.

        :raises OSError: it cannot be copied.
        """
        if self._is_local:
            FilePath(self._root).mkdir(parents=True, exist_ok=True)
        self._files.put_file(str(source), self._path(name))

    def download(self, name: str, target: FilePath) -> None:
        """Copy to a local file.

        :raises FileNotFoundError: there is no such file.
        :raises OSError: it cannot be copied.
        """
        self._files.get_file(self._path(name), str(target))

    def names(self) -> list[str]:
        """Return the names of all files; none if the storage cannot list them."""
        try:
            listed = self._files.ls(self._root, detail=False)
        # Each kind of storage has its own errors.
        except Exception:  # noqa: BLE001
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in listed]

    def remove(self, name: str) -> None:
        """Remove a file, if possible."""
        # Each kind of storage has its own errors.
        with contextlib.suppress(Exception):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


def _http_options() -> dict[str, object]:
    import aiohttp

    # The default limits a whole download to five minutes, too few for large files.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    return {"client_kwargs": {"timeout": timeout}}


def read_chain(storage: Storage) -> Chain | None:
    """Return the chain of a storage; None if it has none.

    :raises EngineError: it cannot be read, or is damaged.
    """
    try:
        content = storage.read(INDEX, _MOST_INDEX)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise EngineError(f"cannot read the weights at {storage.url}: {error}") from error
    try:
        return Chain.model_validate_json(content)
    except ValidationError as error:
        raise EngineError(
            f"{INDEX} at {storage.url} is not the index of a chain of weights: "
            f"{error.errors()[0]['msg']}"
        ) from error


def sha256_of(path: FilePath) -> str:
    """Return the SHA-256 of a local file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
