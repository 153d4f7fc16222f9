"""Frames as they come out of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ajet_core.errors import WorkerError
from ajet_core.interfaces import GenerateRequest, SamplingParams
from ajet_server.workers import frames
from ajet_server.workers.codec import pack_request, unpack_request


async def frames_of(*pieces: bytes) -> list[list[Any]]:
    """Frames of a stream that comes in pieces."""
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for piece in pieces:
            reader.feed_data(piece)
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.ensure_future(feed())
    found = [frame async for frame in frames.read(reader)]
    await feeding
    return found


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_frames_do_not_depend_on_how_the_stream_is_cut(size: int) -> None:
    sent = [[1, "a" * n, list(range(n))] for n in range(20)]
    data = b"".join(map(frames.pack, sent))
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    assert await frames_of(*pieces) == sent


async def test_a_stream_that_ends_in_a_frame_has_those_before_it() -> None:
    data = frames.pack([1]) + frames.pack([2, "cut off"])
    assert await frames_of(data[:-1]) == [[1]]


async def test_frames_that_make_no_sense_are_refused() -> None:
    with pytest.raises(WorkerError, match="more than the limit"):
        await frames_of(b"\xff\xff\xff\xff")
    with pytest.raises(WorkerError, match="expected the frame to be an array"):
        await frames_of(b"\0\0\0\1\x05")


def test_a_request_crosses_unchanged() -> None:
    sampling = SamplingParams(
        5, 0.5, top_p=0.9, top_k=3, seed=7, stop_token_ids=(1, 2), top_logprobs=4
    )
    request = GenerateRequest("r", [1, 2, 3], sampling, stream=True, sampled=2)
    assert unpack_request(pack_request(request)) == request
