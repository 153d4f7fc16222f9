"""Files without a secret."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MASK = b"***"
_CHUNK = 2**20


def redact_file(path: Path, secret: str, *, chunk: int = _CHUNK) -> None:
    """Replace a secret by ``***`` wherever a file has it.

    :param chunk: bytes that are read at once; the file may be larger than memory.
    """
    sought = secret.encode()
    if not sought:
        return
    with path.open("rb") as source:
        if not any(piece is MASK for piece in _pieces(source, sought, chunk)):
            return
        source.seek(0)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as target:
                target.writelines(_pieces(source, sought, chunk))
            shutil.copymode(path, name)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink()
            raise


def _pieces(source: BinaryIO, secret: bytes, chunk: int) -> Iterator[bytes]:
    """Yield what a file contains, with `MASK` in place of the secret."""
    rest = b""
    while data := source.read(chunk):
        data = rest + data
        start = 0
        while (at := data.find(secret, start)) >= 0:
            yield data[start:at]
            yield MASK
            start = at + len(secret)
        # The secret may begin in this chunk and end in the next one.
        kept = max(start, len(data) - len(secret) + 1)
        yield data[start:kept]
        rest = data[kept:]
    yield rest
