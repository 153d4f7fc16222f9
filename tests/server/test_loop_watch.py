"""A plugin that blocks the server's event loop is named."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ajet_core.plugin import PluginManager
from ajet_server.observe.loop_watch import LoopWatch
from ajet_testing.servers import ServerFactory
from tests.support.sites import Site

# It waits until the watch has named it; the limit only keeps a failing test from hanging.
WAITS = """
import threading
GATE = threading.Event()

@hookimpl
def ajet_state_changed(state):
    if state == "ROLLING":
        assert GATE.wait(60)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty directory of distributions, first on the path."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    site = Site(path)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Said(logging.Handler):
    """Sets an event with the first message that contains a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.heard = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.heard.set()


def test_an_observer_that_takes_long_is_named(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    source = """
    CLOCK = []

    @hookimpl
    def ajet_step_finished(summary):
        CLOCK[0].now += 3.5
    """
    module = importlib.import_module(site.install("ajet-slow", source))
    module.CLOCK.append(clock)
    watch = LoopWatch(PluginManager(), clock)
    assert watch.findings() == []
    watch.notify("ajet_step_finished", summary=None)
    watch.notify("ajet_step_finished", summary=None)
    (found,) = watch.findings()
    assert (found.code, found.seconds, found.stuck) == ("loop_blocked", 3.5, False)
    assert found.message.startswith(
        "plugin 'ajet-slow' (distribution ajet-slow 1.2), hook ajet_step_finished blocked the "
        "event loop for 3.5 s"
    )
    assert "2 such calls, 7.0 s" in found.message
    # The second one within a minute is not logged.
    (said,) = [message for message in caplog.messages if "blocked" in message]
    assert said == (
        "plugin 'ajet-slow' (distribution ajet-slow 1.2), hook ajet_step_finished blocked the "
        "event loop for 3.5 s: the server answered nothing meanwhile"
    )
    clock.now += 601
    assert watch.findings() == []


def test_quick_observers_are_not_reported(site: Site) -> None:
    site.install("ajet-quick", "@hookimpl\ndef ajet_state_changed(state):\n    pass")
    watch = LoopWatch(PluginManager(), Clock())
    watch.notify("ajet_state_changed", state="ROLLING")
    assert watch.findings() == []


def test_the_plugin_on_the_stack_is_the_innermost_one(site: Site) -> None:
    """Whatever library a plugin waits in, and whichever module of the plugin calls it."""
    inner = """
    import sys

    class Store:
        def query(self, call):
            return call()
    """
    source = """
    @hookimpl
    def ajet_register_stores():
        return [StoreSpec(name="slow", target="slow_store:Store")]
    """
    site.install("ajet-slow", source, files={"slow_store": inner})
    watch = LoopWatch(PluginManager(), Clock())
    store = importlib.import_module("slow_store").Store()
    cause = store.query(lambda: watch.cause_of(sys._getframe()))
    assert cause.startswith("plugin 'ajet-slow' (distribution ajet-slow 1.2), in Store.query (")
    assert "slow_store.py:6)" in cause
    assert watch.cause_of(sys._getframe()) == ""


def test_a_package_that_several_plugins_share_names_none_of_them(site: Site) -> None:
    source = """
    @hookimpl
    def ajet_register_stores():
        return [StoreSpec(name="{0}", target="shared.{0}:Store")]
    """
    for name in ("one", "two"):
        site.install(f"ajet-{name}", source.format(name))
    watch = LoopWatch(PluginManager(), Clock())
    assert watch._owner("shared.one.sql").startswith("plugin 'ajet-one'")
    assert watch._owner("shared") == watch._owner("json.decoder") == ""


async def test_a_watch_sees_what_blocks_the_running_loop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No observer: as a store would, the plugin blocks in a coroutine of its own."""
    monkeypatch.setattr("ajet_server.observe.loop_watch._LASTS_SECONDS", 1.0)
    files = {"slow_lib": "async def query(gate):\n    assert gate.wait(60)\n"}
    source = """
    @hookimpl
    def ajet_register_stores():
        return [StoreSpec(name="slow", target="slow_lib:Store")]
    """
    site.install("ajet-slow", source, files=files)
    said = Said("plugin 'ajet-slow' (distribution ajet-slow 1.2), in query (")
    logger = logging.getLogger("ajet.server")
    logger.addHandler(said)
    watch = LoopWatch(PluginManager(), asyncio.get_running_loop().time)
    watch.open()
    try:
        # The watch has named the plugin while the loop is blocked: that is what ends the block.
        await importlib.import_module("slow_lib").query(said.heard)
        while not (findings := watch.findings()):
            await asyncio.sleep(0)
    finally:
        watch.close()
        logger.removeHandler(said)
    assert findings[0].seconds >= 1.0
    assert "plugin 'ajet-slow' (distribution ajet-slow 1.2), in query (" in findings[0].message


async def test_the_status_names_an_observer_that_blocked_the_server(
    site: Site, servers: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By then the observer itself, which may begin a beat later, has blocked for a second.
    monkeypatch.setattr("ajet_server.observe.loop_watch._LASTS_SECONDS", 1.5)
    module = importlib.import_module(site.install("ajet-slow", WAITS))
    said = Said("hook ajet_state_changed has blocked the event loop")
    vars(module)["GATE"] = said.heard
    logger = logging.getLogger("ajet.server")
    logger.addHandler(said)
    try:
        async with servers.running() as server:
            await server.roll()
            status = await server.service.status()
    finally:
        logger.removeHandler(said)
    (found,) = [each for each in status.findings if each.code == "loop_blocked"]
    assert found.message.startswith(
        "plugin 'ajet-slow' (distribution ajet-slow 1.2), hook ajet_state_changed"
    )
