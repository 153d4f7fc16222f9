"""Where a worker waits for the next server: nobody else can pose as one, or as a worker."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from ajet_server.workers.rendezvous import SUPPORTED, find_worker, wait_for_server

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not SUPPORTED, reason="workers are found again on Linux alone"),
]


def look_like_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a connection from this process is one of another user's."""
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)


async def test_a_worker_lets_no_other_user_in_and_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("workers") / "w.sock"
    waiting = asyncio.create_task(wait_for_server(path, 60.0))
    while not path.exists():
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as patched, socket.socket(socket.AF_UNIX) as stranger:
        look_like_another_user(patched)
        stranger.setblocking(False)
        await loop.sock_connect(stranger, str(path))
        # Closed without a byte: nothing is read of what a stranger sends.
        assert await loop.sock_recv(stranger, 1) == b""
        assert not waiting.done()
    found = find_worker(path)
    theirs = await waiting
    assert found is not None
    assert theirs is not None
    found[0].close()
    theirs.close()


def test_a_socket_of_another_user_is_taken_for_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("w.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        found = find_worker(path)
        assert found is not None
        found[0].close()
        look_like_another_user(monkeypatch)
        assert find_worker(path) is None
