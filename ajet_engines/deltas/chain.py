"""The index of a chain, and the files that it names."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ajet_core.errors import ConfigError, EngineError

__all__ = [
    "INDEX",
    "Chain",
    "ChainEntry",
    "ChainPart",
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

    :param name: name in the directory of the weights; that of a difference is not used.
    :param path: name below the chain.
    :param size: in bytes.
    :param sha256: of its content, in hexadecimal digits.
    """

    name: FileName
    path: FileName
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ChainEntry(ChainPart):
    """A version of the weights.

    :param version: the policy version.
    :param base: the version that the difference is from; None if `files` are all files.
    :param files: all files of the version, or one difference.
    """

    version: Annotated[int, Field(ge=0)]
    base: Annotated[int, Field(ge=0)] | None = None
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


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

    def path_to(self, version: int, has: Callable[[int], bool]) -> list[ChainEntry]:
        """Return what to read for a version: differences, and all files of a version before them.

        :param has: whether the reader has a version, from which it can continue.
        :return: in the order of reading; empty if the reader has the version.
        :raises EngineError: the chain has no such version, or lacks one that it is based on.
        """
        by_version = {entry.version: entry for entry in self.entries}
        needed: list[ChainEntry] = []
        wanted: int | None = version
        while wanted is not None and not has(wanted):
            entry = by_version.get(wanted)
            if entry is None:
                raise EngineError(_lacks(wanted, version, self.newest))
            needed.append(entry)
            wanted = entry.base
            if len(needed) > len(self.entries):
                raise EngineError("the index of the weights is circular: it is damaged")
        return needed[::-1]


def _lacks(wanted: int, version: int, newest: ChainEntry | None) -> str:
    last = "it is empty" if newest is None else f"its newest version is {newest.version}"
    if wanted == version:
        return f"the chain of weights has no version {version}; {last}"
    return (
        f"version {version} of the weights is a difference from version {wanted}, which the chain "
        f"no longer has; {last}"
    )


class Storage:
    """Files below a URL that ``fsspec`` supports, or in a directory.

    :param url: such as ``/mnt/shared/weights``, ``s3://bucket/run`` or ``https://host/weights``.
    :raises ConfigError: the URL has a scheme that is not supported, or a package is missing.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                "the weight channel delta requires fsspec, which is not installed: pip install "
                "'agentjet[delta]'",
                param="weight_channel",
            ) from error
        # Other kinds pass unknown options to their clients, which refuse them.
        local = fsspec.core.split_protocol(url)[0] in (None, "file", "local")
        options = {"auto_mkdir": True} if local else {}
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"weights.url: cannot use {url!r}: {error}") from error
        self.url = url

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file.

        :param most: bytes that are read at most.
        :raises FileNotFoundError: there is no such file.
        :raises OSError: it cannot be read.
        """
        with self._files.open(self._path(name), "rb") as file:
            content: bytes = file.read(most)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file, or none.

        :raises OSError: it cannot be written.
        """
        with self._files.transaction, self._files.open(self._path(name), "wb") as file:
            file.write(content)

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file.

        :raises OSError: it cannot be copied.
        """
        self._files.put_file(str(source), self._path(name))

    def download(self, name: str, target: Path) -> None:
        """Copy to a local file.

        :raises FileNotFoundError: there is no such file.
        :raises OSError: it cannot be copied.
        """
        self._files.get_file(self._path(name), str(target))

    def remove(self, name: str) -> None:
        """Remove a file, unless it is gone."""
        with contextlib.suppress(OSError, NotImplementedError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"


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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a local file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
