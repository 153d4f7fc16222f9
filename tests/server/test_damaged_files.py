"""Files of a run directory that hold anything: a start goes on without them, or says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet_core.errors import AjetError
from ajet_core.plugin import PluginManager
from ajet_core.protocol import ServerState
from ajet_installation.settings import Settings, StoreSettings
from ajet_server.build import build_service
from ajet_server.store.checkpoints import CheckpointFolder, Position
from ajet_server.store.chosen_store import store_of_run
from ajet_server.store.run_facts import RunFacts
from ajet_server.store.store_reader import EpisodeChoice, StoreReader
from ajet_testing.plugins import scripted_plugins
from ajet_testing.servers import CONTROL, Running, ServerFactory

NESTED = b'{"step":' + b"[" * 200_000


async def recorded(servers: ServerFactory) -> None:
    """A run directory with all that a run leaves behind."""
    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        for _ in range(2):
            await server.batch()
        await server.end(await server.claim("e", kind="eval"), 1.0)
        await server.http.post("/v1/tokens", headers=CONTROL, json={"name": "alice"})
        await server.claim("open")
        await server.http.post("/v1/run/stop", headers=CONTROL)


async def test_a_manifest_nested_beyond_all_bounds_is_passed_over_for_the_checkpoint_before(
    servers: ServerFactory,
) -> None:
    async with servers.running() as server:
        await server.roll(checkpoint_every=1)
        for _ in range(2):
            await server.batch()
    (servers.run_dir / "checkpoints" / "step-000002" / "checkpoint.json").write_bytes(NESTED)
    async with servers.running() as server:
        await trained_again(server)


async def trained_again(server: Running) -> None:
    await server.service.board.wait_until(
        lambda: (
            server.service.coordinator.step == 2
            and server.service.board.state is ServerState.ROLLING
        )
    )
    assert server.service.coordinator.error is None


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1},
        {"step": "two"},
        {"step": 1e999},
        {"files": {}},
        {"files": {"../../server.json": "0"}},
        {"credit": {"a": "b"}},
        {"run_id": "another"},
    ],
)
async def test_a_manifest_that_cannot_be_is_no_checkpoint(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = CheckpointFolder(tmp_path)

    async def save(directory: Path) -> None:
        (directory / "weights").write_bytes(b"1234")

    for step in (1, 2):
        await folder.write(step, Position("run", "batch", {"a": 0.5}), save)
    path = tmp_path / "checkpoints" / "step-000002" / "checkpoint.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, **change}))
    found = folder.latest("run")
    assert found is not None and found.step == 1


Damage = Callable[[bytes], bytes]


def _flip(where: float, bit: int) -> Damage:
    def flip(content: bytes) -> bytes:
        place = min(len(content) - 1, int(where * len(content)))
        changed = bytearray(content)
        if changed:
            changed[place] ^= 1 << bit
        return bytes(changed)

    return flip


def _retype(which: int, value: Any) -> Damage:
    """Put another value into a place of a JSON document."""

    def retype(content: bytes) -> bytes:
        try:
            document = json.loads(content)
        except ValueError:
            return json.dumps(value).encode()
        places: list[tuple[Any, Any]] = []

        def walk(inner: Any) -> None:
            items = inner.items() if isinstance(inner, dict) else enumerate(inner)
            for name, below in items:
                places.append((inner, name))
                if isinstance(below, dict | list):
                    walk(below)

        if not isinstance(document, dict | list):
            return json.dumps(value).encode()
        walk(document)
        if places:
            inner, name = places[which % len(places)]
            inner[name] = value
        return json.dumps(document).encode()

    return retype


VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 10**400, 0.5, 1e999, "", "x", "\x00", [], [[]], {}]
)
DAMAGES = st.one_of(
    st.builds(_flip, st.floats(0, 1), st.integers(0, 7)),
    st.builds(_retype, st.integers(0, 999), VALUES),
    st.floats(0, 1).map(lambda share: lambda content: content[: int(share * len(content))]),
    st.sampled_from([b"", NESTED, b"\xff\xfe\x00", b"null", b"[]", b"{}", b"\xef\xbb\xbf{}"]).map(
        lambda instead: lambda _: instead
    ),
    st.binary(max_size=300).map(lambda instead: lambda _: instead),
    st.binary(min_size=1, max_size=40).map(lambda more: lambda content: content + more),
)


async def start(run_dir: Path, model_dir: Path) -> None:
    """Open a server on a run directory, read its state, close it; only `AjetError` is raised."""
    chosen = Settings(server={"run_dir": run_dir, "model_roots": [model_dir.parent], "port": 0})
    try:
        service = build_service(chosen, scripted_plugins())
        await service.open()
    except AjetError:
        return
    try:
        for look in (service.status, _read_all(service.store)):
            try:
                await look()
            except AjetError:
                continue
    finally:
        await service.close()


def _read_all(store: Any) -> Callable[[], Any]:
    async def read() -> None:
        for record in await store.episodes():
            await store.calls([record.episode_id])
            await store.scores(record.episode_id)
        await store.batches(after_step=0)
        await store.steps()

    return read


def inspect(run_dir: Path) -> None:
    """What `ajet inspect` and `ajet export` read."""

    async def read() -> None:
        store = store_of_run(run_dir, StoreSettings(), PluginManager())
        async with StoreReader(store, run_dir) as reader:
            RunFacts.of(await reader.run())
            for episode in await reader.episode_ids(EpisodeChoice()):
                await reader.load(episode)

    with contextlib.suppress(AjetError):
        asyncio.run(read())


@pytest.mark.timeout(3600)
def test_no_damaged_file_ends_a_start_with_an_unexpected_exception(
    servers: ServerFactory, tmp_path: Path
) -> None:
    asyncio.run(recorded(servers))
    whole = servers.run_dir
    names = sorted(
        str(path.relative_to(whole))
        for path in whole.rglob("*")
        if path.is_file() and path.suffix not in {".log", ".lock"}
    )
    assert {"samples.sqlite3", "tokens.json"} <= set(names)
    assert any(name.endswith("checkpoint.json") for name in names)
    many = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

    @settings(
        max_examples=3000 if many else 40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(names), DAMAGES)
    def damaged(name: str, damage: Damage) -> None:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(whole, copy)
        path = copy / name
        path.write_bytes(damage(path.read_bytes()))
        inspect(copy)
        asyncio.run(start(copy, servers.model_dir))

    damaged()
