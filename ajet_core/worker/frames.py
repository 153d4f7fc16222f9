"""Frames between server and worker: a 4-byte big-endian length, then a msgpack array.

| frame | direction | meaning |
|---|---|---|
| ``[CALL, id, method, params]`` | to the worker | call a method; exactly one RESULT or ERROR answers |
| ``[CANCEL, id]`` | to the worker | stop the call `id` early; it is still answered |
| ``[RESULT, id, value]`` | to the server | |
| ``[ERROR, id, payload]`` | to the server | payload as `AjetError.to_payload` |
| ``[CHUNKS, [[id, chunk], ...]]`` | to the server | what running ``generate`` calls produced, before their RESULT |
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack

from ajet_core.errors import WorkerError

CALL, CANCEL, RESULT, ERROR, CHUNKS = range(5)

_HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 1 << 31


def pack(frame: list[Any]) -> bytes:
    """One frame as bytes, the length in front.

    :raises WorkerError: the frame is larger than `MAX_FRAME_BYTES`.
    """
    body: bytes = msgpack.packb(frame, use_bin_type=True)
    if len(body) > MAX_FRAME_BYTES:
        raise WorkerError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _HEADER.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> list[Any] | None:
    """The next frame, or None at the end of the stream (also in the middle of a frame)."""
    try:
        header = await reader.readexactly(_HEADER.size)
        (size,) = _HEADER.unpack(header)
        if size > MAX_FRAME_BYTES:
            raise WorkerError(
                f"a frame announces {size} bytes, over the limit of {MAX_FRAME_BYTES}"
            )
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    frame = msgpack.unpackb(body, raw=False, strict_map_key=False)
    if not isinstance(frame, list):
        raise WorkerError(f"a frame is a {type(frame).__name__}, expected an array")
    return frame
