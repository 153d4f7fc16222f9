"""What a program prints: its beginning and its end in a file of limited size."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from ajet_core.errors import SandboxError

_CHUNK = 65536
_LINGER_SECONDS = 1.0


class CappedFile:
    """A file of at most `limit` bytes: the first and the last half of what is written to it.

    The last half is a ring in the file itself, so that nothing is kept in memory.

    :ivar error: of the first write that failed, such as that of a full disk.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._file = path.open("w+b", buffering=0)
        self._written = 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> None:
        """Append bytes, unless an earlier write has failed.

        The program need not wait for what cannot be kept.
        """
        if self.error is None:
            try:
                self._append(data)
            except OSError as error:
                self.error = error

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._written < self._half:
                at, room = self._written, self._half - self._written
            else:
                offset = (self._written - self._half) % self._half
                at, room = self._half + offset, self._half - offset
            self._file.seek(at)
            # A disk that becomes full takes a part.
            count = self._file.write(view[:room])
            self._written += count
            view = view[count:]

    def close(self) -> None:
        """Put the ring in order, with a line where bytes were left out.

        :raises SandboxError: not everything that is to be kept could be written.
        """
        try:
            self._complete()
        except OSError as error:
            self.error = self.error or error
        if self.error is not None:
            raise SandboxError(
                f"cannot keep what the program printed: {self.error}"
            ) from self.error

    def _complete(self) -> None:
        with self._file:
            omitted = self._written - 2 * self._half
            if omitted <= 0:
                return
            start = omitted % self._half
            self._file.seek(self._half)
            ring = self._file.read(self._half)
            self._file.seek(self._half)
            self._file.write(f"\n[{omitted} bytes left out]\n".encode())
            self._file.write(ring[start:])
            self._file.write(ring[:start])


@contextlib.asynccontextmanager
async def captured(path: Path, limit: int) -> AsyncIterator[BinaryIO]:
    """Yield a pipe for a program's output, which goes to a capped file.

    The caller closes the pipe once the program has it. At the end, what is still in the pipe
    is read; a process that escaped and holds the other end is not waited for.
    """
    read_end, write_end = os.pipe()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", buffering=0)
    )
    file = CappedFile(path, limit)
    copying = asyncio.create_task(_copy(reader, file))
    pipe = os.fdopen(write_end, "wb", buffering=0)
    try:
        yield pipe
    finally:
        pipe.close()
        await asyncio.wait([copying], timeout=_LINGER_SECONDS)
        copying.cancel()
        await asyncio.wait([copying])
        transport.close()
        file.close()


async def _copy(reader: asyncio.StreamReader, file: CappedFile) -> None:
    while data := await reader.read(_CHUNK):
        file.write(data)
