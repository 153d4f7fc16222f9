"""The parts of a server in several processes that need no process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from ajet_core.interfaces import EpisodeRecord
from ajet_core.timeline import Call, MessageText, PlacedMessage, SampledFrom
from ajet_installation.settings import ServerSettings
from ajet_server.http.connection import ConnectionLimits
from ajet_server.processes.gateway_episodes import GatewayEpisodes, Unreported
from ajet_server.processes.mailbox import Mailboxes, make_mailboxes
from ajet_server.processes.methods import OPEN_EPISODE, Opened
from ajet_server.processes.passing import PassingProtocol
from ajet_server.processes.places import SERVER, place_of_episode, place_of_request
from ajet_server.processes.wire import (
    TokensElsewhereError,
    digest,
    pack_call,
    unpack_call,
    without_base,
)
from ajet_server.security.api_keys import episode_of, hash_secret, new_episode_key
from ajet_server.security.tenants import TenantLimits
from ajet_server.serve import http_config
from ajet_server.workers import frames
from ajet_server.workers.methods import Method
from ajet_stores import codec
from ajet_testing.servers import Running

linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")

# With lone surrogates, too.
TEXT = st.text(st.characters(), max_size=8)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call, with a base or without one."""
    tools = draw(st.sampled_from(["", "[1]"]))
    base = replace(a_call("base", draw), tools=draw(st.sampled_from(["", "[1]"])))
    call = replace(a_call("call", draw), tools=tools)
    if draw(st.booleans()):
        return call
    return replace(call, base=base, shared=draw(st.integers(0, base.length)))


def a_call(call_id: str, draw: st.DrawFn) -> Call:
    ids = st.lists(st.integers(0, 2**32 - 1), max_size=4)
    sampled = draw(ids)
    size = len(sampled)
    logprobs = draw(st.lists(st.floats(-9, 0), min_size=size, max_size=size))
    suffix = draw(ids)
    texts = st.builds(MessageText, st.sampled_from(["user", "tool"]), TEXT, TEXT)
    messages = draw(st.lists(texts, max_size=2))
    return Call(
        call_id=call_id,
        episode_id="e",
        index=draw(st.integers(0, 5)),
        suffix_ids=suffix,
        sampled_ids=sampled,
        logprobs=logprobs,
        policy_versions=draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)),
        temperature=draw(st.floats(0, 2)),
        finish_reason="stop",
        agent=draw(TEXT),
        created_at=draw(st.floats(0, 1e10)),
        top_k=draw(st.integers(0, 9)),
        metadata=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
        messages=tuple(PlacedMessage(0, len(suffix), text) for text in messages),
        answer=draw(st.none() | texts),
        sampled_from=draw(st.none() | st.just(SampledFrom([-1.0] * size, [b"abcd"], [0] * size))),
    )


@given(calls())
def test_a_call_survives_the_way_to_another_process(call: Call) -> None:
    (plain,) = frames._unpacked(memoryview(frames.pack([pack_call(call)])[4:]))
    tools = {digest(call.tools): call.tools}
    assert unpack_call(plain, lambda *_: call.base, tools.__getitem__) == call


@given(calls())
def test_the_server_knows_enough_of_a_base(call: Call) -> None:
    tools = {digest(call.tools): call.tools}
    received = unpack_call(pack_call(call), lambda *_: None, tools.__getitem__)
    assert received.length == call.length
    assert received.tools == call.tools
    if call.base is not None:
        assert received.base is not None
        assert (received.base.call_id, received.base.length) == ("base", call.base.length)
        # A store writes tools only if they differ from those of the base.
        assert (received.base.tools == received.tools) == (call.base.tools == call.tools)
    if call.shared:
        # A store that lacks the base must not write tokens that nobody has sampled.
        with pytest.raises(TokensElsewhereError):
            codec.call_row(received, 1, None)
    whole = without_base(call)
    assert (whole.base, whole) == (None, replace(call, index=call.index))
    assert unpack_call(pack_call(whole), lambda *_: None, tools.__getitem__) == call


def test_requests_go_to_the_process_of_their_episode() -> None:
    key = new_episode_key("episode1", None)
    assert episode_of(key) == "episode1"
    place = place_of_episode("episode1", 4)
    headers = [(b"authorization", f"Bearer {key}".encode())]
    chat = b"/v1/chat/completions"
    assert place_of_request(chat, headers, 4) == place
    assert place_of_request(chat, [(b"x-api-key", key.encode())], 4) == place
    assert place_of_request(f"/e/{key}/v1/messages?beta=true".encode(), [], 4) == place
    assert place_of_request(f"/%65/{key}/v1/messages".encode(), [], 4) == place
    for version in ("v1", "v1beta"):
        content = f"/{version}/models/m:generateContent?alt=sse&key={key}".encode()
        assert place_of_request(content, [], 4) == place
        assert place_of_request(content, [(b"x-goog-api-key", b"none")], 4) != SERVER
    for odd in (b"http://host/v1/chat/completions", b"/v1/chat/completions#fragment"):
        assert place_of_request(odd, headers, 4) == place
    # Clients' requests go to the server process, whatever key they have.
    for path in (b"/v1/episodes", b"/metrics", b"/", b"/v1/episodes?/v1/chat/"):
        assert place_of_request(path, headers, 4) == SERVER
    # Keys that are none go anywhere, and get an error there.
    for strange in (b"", b"\xff\xfe", b"Bearer", b"Bearer ajet-ep-", b"Basic x"):
        assert place_of_request(chat, [(b"authorization", strange)], 4) in range(1, 5)


def test_episodes_are_divided_evenly() -> None:
    counts = Counter(place_of_episode(os.urandom(12).hex(), 4) for _ in range(4000))
    assert set(counts) == {1, 2, 3, 4}
    assert min(counts.values()) > 800


@linux
@pytest.mark.parametrize("size", [0, 1, 70_000, 300_000])
async def test_a_connection_arrives_with_what_was_read(size: int) -> None:
    ends = make_mailboxes(2)
    sending = Mailboxes(ends[0][0], [end for _, end in ends])
    receiving = Mailboxes(ends[1][0], [end for _, end in ends])
    ours, theirs = socket.socketpair()
    read = os.urandom(size)
    arrived: asyncio.Future[tuple[socket.socket, bytes]] = asyncio.Future()
    receiving.receive(lambda connection, data: arrived.set_result((connection, data)))
    sending.send(1, theirs.fileno(), read)
    theirs.close()
    connection, data = await arrived
    assert data == read
    # A process that is started later must not hold it open.
    assert not connection.get_inheritable()
    connection.sendall(b"answer")
    assert ours.recv(10) == b"answer"
    receiving.close()
    for one in (ours, connection, *(end for pair in ends for end in pair)):
        one.close()


@pytest.mark.slow
@linux
async def test_connections_wait_while_their_process_restarts() -> None:
    ends = make_mailboxes(2)
    sending = Mailboxes(ends[0][0], [end for _, end in ends])
    pairs = [socket.socketpair() for _ in range(600)]
    for number, (_, theirs) in enumerate(pairs):
        sending.send(1, theirs.fileno(), str(number).encode())
        theirs.close()
    arrived: list[tuple[socket.socket, bytes]] = []
    all_arrived = asyncio.Event()

    def take(connection: socket.socket, data: bytes) -> None:
        arrived.append((connection, data))
        if len(arrived) == len(pairs):
            all_arrived.set()

    receiving = Mailboxes(ends[1][0], [end for _, end in ends])
    receiving.receive(take)
    await all_arrived.wait()
    # In order, and open until the last process closes them.
    assert [int(data) for _, data in arrived] == list(range(600))
    receiving.close()
    for one in (*(ours for ours, _ in pairs), *(c for c, _ in arrived)):
        one.close()
    for one in (end for pair in ends for end in pair):
        one.close()


@linux
@pytest.mark.parametrize(
    "read", [b"", b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 9\r\n\r\n"]
)
async def test_a_connection_that_arrives_while_its_process_ends_is_passed_on(read: bytes) -> None:
    ends = make_mailboxes(3)
    ending, following = (Mailboxes(ends[n][0], [end for _, end in ends]) for n in (1, 2))
    attributes = {
        "limits": ConnectionLimits(10, 60.0),
        "place": 1,
        "gateways": 2,
        "mailboxes": ending,
    }
    protocol = type("EndingProtocol", (PassingProtocol,), attributes)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it is answered by the process that ends")

    config = http_config(app, ServerSettings(), protocol)
    config.load()
    state = ServerState()
    ending.receive(lambda *_: None)
    ending.close()
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: protocol(config, state, {}, received=read), theirs
    )
    arrived: asyncio.Future[tuple[socket.socket, bytes]] = asyncio.Future()
    following.receive(lambda connection, data: arrived.set_result((connection, data)))
    connection, data = await arrived
    assert data == read
    connection.sendall(b"answer")
    assert ours.recv(10) == b"answer"
    # Nothing holds up the end of the process.
    assert not state.connections
    following.close()
    for one in (ours, connection, *(end for pair in ends for end in pair)):
        one.close()


async def test_a_gateway_process_that_stays_away_is_a_finding(server: Running) -> None:
    missing = {"gateway process 1 is not connected": 0.2, "gateway process 2 is missing": 7.0}
    server.service.missing_gateways = lambda: missing
    (finding,) = (f for f in server.service.findings() if f.code == "gateway_missing")
    assert finding.message == "gateway process 2 is missing"
    assert finding.seconds == 7.0


class _HeldServer:
    """A server that answers OPEN_EPISODE when it is let, and nothing else."""

    def __init__(self) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def call(self, method: Method[Any, Any], key: str) -> Opened:
        assert method is OPEN_EPISODE
        self.asked.set()
        await self.answered.wait()
        record = EpisodeRecord(
            episode_id=episode_of(key),
            key_hash=hash_secret(key),
            task_id="a",
            group="a",
            kind="train",
            tag="",
            client_id="client",
            claim_version=0,
            lease_seconds=60.0,
            created_at=0.0,
        )
        return Opened(record=record, calls=[], tools=[], next_index=0, counts_calls=False)


def gateway_episodes(server: Any) -> GatewayEpisodes:
    limits = TenantLimits(8, 8, 8, 8, 8)
    return GatewayEpisodes(server, Unreported(), limits, 30.0, check=lambda: None)


async def test_a_release_waits_for_a_request_whose_episode_is_being_opened() -> None:
    server = _HeldServer()
    episodes = gateway_episodes(server)
    ended = asyncio.Event()

    async def request() -> str:
        episode = await episodes.authenticate(new_episode_key("e", None))
        async with episodes.counted(episode):

            async def answer() -> str:
                await ended.wait()
                return "answer"

            with episodes.running_call(episode, answer()) as call:
                return await call

    calling = asyncio.create_task(request())
    await server.asked.wait()
    # The gateway leaves, and another one asks for the episode before this one's answer arrives.
    releasing = asyncio.create_task(episodes.release("e"))
    await asyncio.sleep(0)
    server.answered.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (calling.done(), releasing.done()) == (False, False)
    ended.set()
    assert await calling == "answer"
    await releasing
    assert episodes.failures == {}


async def test_a_release_waits_for_an_opening_whose_request_has_gone() -> None:
    server = _HeldServer()
    episodes = gateway_episodes(server)
    request = asyncio.create_task(episodes.authenticate(new_episode_key("e", None)))
    await server.asked.wait()
    request.cancel()
    await asyncio.wait([request])
    releasing = asyncio.create_task(episodes.release("e"))
    await asyncio.sleep(0)
    server.answered.set()
    await releasing
    # The other gateway has it: a copy here would answer from an old conversation.
    assert episodes.failures == {}
