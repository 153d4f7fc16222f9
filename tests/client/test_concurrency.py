"""One client, many threads, and a fork."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentjet.client import SwarmClient

from .swarm_stub import SwarmStub, serve

pytestmark = pytest.mark.processes


def test_threads_may_share_a_client() -> None:
    stub = SwarmStub()
    with serve(stub.app) as url, SwarmClient(url, "token") as client:

        def one(number: int) -> str:
            episode = client.begin_episode(f"task-{number}")
            return client.end_episode(episode, 1.0).state

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(40))) == ["ended"] * 40
    assert stub.still_open() == set()


def test_a_forked_child_makes_connections_of_its_own() -> None:
    stub = SwarmStub()
    with serve(stub.app) as url, SwarmClient(url, "token") as client:
        client.begin_episode("parent")
        child = os.fork()
        if child == 0:
            try:
                client.begin_episode("child")
                client.close()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        client.begin_episode("parent again")
    assert sorted(stub.tasks.values()) == ["child", "parent", "parent again"]
