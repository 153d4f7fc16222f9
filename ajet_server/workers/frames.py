"""Frames between server and worker: a 4-byte big-endian length, then a msgpack array.

| frame | direction | meaning |
|---|---|---|
| ``[CALL, id, method, params]`` | to the worker | call a method; one RESULT or ERROR answers |
| ``[CANCEL, id]`` | to the worker | stop the call `id` early; it is still answered |
| ``[END]`` | to the worker | the worker is no longer needed |
| ``[RESULT, id, value]`` | to the server | |
| ``[ERROR, id, payload]`` | to the server | payload as `AjetError.to_payload` |
| ``[CHUNKS, [[id, chunk], ...]]`` | to the server | output of running ``generate`` calls |

CHUNKS of a call precede its RESULT.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgpack

from ajet_core.errors import WorkerError

CALL, CANCEL, RESULT, ERROR, CHUNKS, END = range(6)

_HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 1 << 31
_READ_BYTES = 1 << 20
_SURROGATES = "surrogatepass"


def pack(frame: list[Any]) -> bytes:
    """Return one frame as bytes, preceded by its length.

    :raises WorkerError: the frame is larger than `MAX_FRAME_BYTES`.
    """
    # A model may write a lone surrogate as an escape in arguments.
    body: bytes = msgpack.packb(frame, use_bin_type=True, unicode_errors=_SURROGATES)
    if len(body) > MAX_FRAME_BYTES:
        raise WorkerError(
            f"the frame has {len(body)} bytes, more than the limit of {MAX_FRAME_BYTES}"
        )
    return _HEADER.pack(len(body)) + body


class FrameWriter:
    """Sends all frames of one event loop iteration together, to wake the receiver only once.

    It does not wait until frames are sent. The buffer is bounded by the calls in progress, each of
    which waits for its response.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: list[bytes] = []

    def write(self, frame: bytes) -> None:
        """Send a frame at the end of this loop iteration, after those written before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(frame)

    def close(self) -> None:
        """Send all frames, and close the connection."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._waiting and not self._writer.is_closing():
            self._writer.write(b"".join(self._waiting))
        self._waiting = []


async def read(reader: asyncio.StreamReader) -> AsyncIterator[list[Any]]:
    """Yield frames until the end of the stream; ignore a partial frame at the end."""
    buffer = bytearray()
    while data := await _some(reader):
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            if size > MAX_FRAME_BYTES:
                raise WorkerError(
                    f"the frame announces {size} bytes, more than the limit of {MAX_FRAME_BYTES}"
                )
            begin = start + _HEADER.size
            if len(buffer) < begin + size:
                break
            start = begin + size
            yield _unpacked(memoryview(buffer)[begin:start])
        del buffer[:start]


async def _some(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_READ_BYTES)
    except ConnectionError:
        return b""


def _unpacked(body: memoryview) -> list[Any]:
    with body:
        frame = msgpack.unpackb(body, raw=False, strict_map_key=False, unicode_errors=_SURROGATES)
    if not isinstance(frame, list):
        raise WorkerError(f"expected the frame to be an array, but it is a {type(frame).__name__}")
    return frame
