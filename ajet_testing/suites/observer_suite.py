"""Conformance tests for observers. Subclass `ObserverSuite` in a test module."""

from __future__ import annotations

import functools
import gc
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from ajet_core.interfaces import EpisodeRecord
from ajet_core.plugin import PluginInfo, PluginManager
from ajet_core.plugin.loading import OBSERVERS
from ajet_core.protocol import ABORT_CAUSES, ServerState, StepSummary
from ajet_installation.check_plugin import HEAVY
from ajet_testing.conformance import ConformanceSuite
from ajet_testing.suites.samples import make_episode

__all__ = ["ObserverSuite"]

_BLOCKING = frozenset({"time.sleep", "socket.connect", "socket.getaddrinfo"}) | {
    *("subprocess.Popen", "os.system", "os.fork", "os.posix_spawn")
}
"""Events of `sys.audit` that stand for waiting."""
_METRICS = {"reward_mean": 0.5, "reward_std": 0.25, "loss": 0.125, "tokens_trained": 512.0}
_TEXTS = ("", "ä\u2028字", "a\nb\x1b[31m\x00", "100 % %s {name}", "x" * 1_000_000)
_MANY = 5000
_KEPT = 1000
_IMPORTED = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""

_Observe = Callable[..., None]
"""Called with the name of a hook and its arguments."""

_watched: dict[int, list[str]] = {}
"""By thread: the events that stand for waiting, while they are noted."""


class ObserverSuite(ConformanceSuite):
    """Conformance tests of the observers of a plugin, called as the server calls them.

    .. code-block:: python

        class TestMyObservers(ObserverSuite):
            plugin = "my-plugin"

    The plugin must be installed. Observers that are not implemented are not tested.

    :cvar plugin: the name of the plugin.
    """

    plugin: ClassVar[str]

    def make_plugins(self) -> PluginManager:
        """Create a plugin manager with the plugin."""
        return PluginManager()

    @pytest.fixture
    def info(self) -> PluginInfo:
        """The plugin, which was loaded."""
        (info,) = [one for one in self.make_plugins().plugins(load=True) if one.name == self.plugin]
        return info

    @pytest.fixture
    def observe(self) -> _Observe:
        """Call the observers of a hook, and raise what they raise."""
        return self._observing()

    def _observing(self) -> _Observe:
        plugins = self.make_plugins()
        errors = _Errors(self.plugin)

        def observe(hook: str, **named: object) -> None:
            logging.getLogger().addHandler(errors)
            try:
                plugins.notify(hook, **named)
            finally:
                logging.getLogger().removeHandler(errors)
            if errors.raised:
                message, error = errors.raised.pop()
                raise AssertionError(message) from error

        return observe

    def test_it_observes(self, info: PluginInfo) -> None:
        """And each name of a hook is spelled right, as agentjet refuses others."""
        assert set(info.hooks) & {*OBSERVERS}

    def test_importing_it_needs_no_heavy_packages(self, info: PluginInfo) -> None:
        """Every `ajet` command imports the hooks of every plugin."""
        done = subprocess.run(  # noqa: S603 - names of modules
            [sys.executable, "-c", _IMPORTED, info.module, *HEAVY],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == []

    def test_it_observes_every_state(self, observe: _Observe) -> None:
        for state in (*ServerState, *reversed(ServerState), ServerState.PAUSED):
            observe("ajet_state_changed", state=state)

    def test_it_observes_every_end_of_an_episode(self, observe: _Observe) -> None:
        for episode in _ended():
            observe("ajet_episode_finished", episode=episode)

    @pytest.mark.parametrize("text", _TEXTS, ids=range(len(_TEXTS)))
    def test_it_observes_any_text(self, observe: _Observe, text: str) -> None:
        """Clients choose the names of tasks, and reasons contain what programs printed."""
        episode = replace(
            make_episode("e"),
            task_id=text,
            group=text,
            tag=text,
            metadata={text: text},
            state="aborted",
            cause="late",
            reason=text,
        )
        observe("ajet_episode_finished", episode=episode)
        summary = StepSummary(step=1, policy_version=1, metrics=_METRICS, findings=[text])
        observe("ajet_step_finished", summary=summary)

    def test_it_observes_steps_with_any_metrics(self, observe: _Observe) -> None:
        """Which there are depends on the trainer and the algorithm, and a loss may diverge."""
        for value in (0.0, -1.5, 1e300, -1e-300):
            metrics = {**dict.fromkeys(_METRICS, value), "of_a_plugin/é": value}
            observe("ajet_step_finished", summary=_step(1, metrics))
        observe("ajet_step_finished", summary=_step(2, {"reward_mean": 0.5}))

    def test_it_observes_a_step_again(self, observe: _Observe) -> None:
        """A run that is restored from a checkpoint repeats steps."""
        for step in (1, 2, 3, 2, 3, 1):
            observe("ajet_step_finished", summary=_step(step))

    def test_it_begins_in_the_middle(self, other_process: Callable[..., None]) -> None:
        """A server that was restarted continues at a later step."""
        other_process("_begin_in_the_middle")

    def _begin_in_the_middle(self) -> None:
        """Observe the first things that a restarted server does."""
        observe = self._observing()
        observe("ajet_state_changed", state=ServerState.PAUSED)
        observe("ajet_step_finished", summary=_step(1000))
        observe("ajet_episode_finished", episode=_ended()[0])

    def test_it_does_not_wait(self, observe: _Observe, monkeypatch: pytest.MonkeyPatch) -> None:
        """For the network, another process or a time: meanwhile the server answers nothing."""
        sleep = time.sleep

        def noted(seconds: float) -> None:
            # Before Python 3.13, it is not audited.
            _note("time.sleep", ())
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", noted)
        with _waits() as waits:
            _observe_much(observe, 100)
        assert waits == []

    def test_it_does_not_keep_what_it_has_seen(self, observe: _Observe) -> None:
        """A run has any number of episodes."""
        before = _records()
        _observe_much(observe, _MANY)
        kept = _records() - before
        assert kept < _KEPT, f"it keeps {kept} of {2 * _MANY} episodes and steps"


class _Errors(logging.Handler):
    """Keeps what observers of a plugin raise, which agentjet logs."""

    def __init__(self, plugin: str) -> None:
        super().__init__(logging.ERROR)
        self._prefix = f"plugin {plugin!r} "
        self.raised: list[tuple[str, BaseException]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an exception."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1] and message.startswith(self._prefix):
            self.raised.append((message, record.exc_info[1]))


def _observe_much(observe: _Observe, count: int) -> None:
    ended = _ended()
    for state in ServerState:
        observe("ajet_state_changed", state=state)
    for number in range(count):
        episode = replace(ended[number % len(ended)], episode_id=f"e{number}")
        observe("ajet_episode_finished", episode=episode)
        observe("ajet_step_finished", summary=_step(number + 1))


def _ended() -> list[EpisodeRecord]:
    episode = make_episode("e")
    ended = [replace(episode, state="ended", reward=reward) for reward in (1.0, 0.0, -2.5)]
    aborted = [
        replace(episode, state="aborted", cause=cause, reason="too slow", final=final)
        for cause in ABORT_CAUSES
        for final in (False, True)
    ]
    evaluation = replace(episode, kind="eval", state="ended", reward=1.0, components={"a": 0.5})
    return [*ended, *aborted, evaluation]


def _step(step: int, metrics: dict[str, float] = _METRICS) -> StepSummary:
    return StepSummary(step=step, policy_version=step, metrics=metrics)


def _records() -> int:
    gc.collect()
    return sum(isinstance(one, EpisodeRecord | StepSummary) for one in gc.get_objects())


@functools.cache
def _listen() -> None:
    """Note events from now on: an audit hook cannot be removed."""
    sys.addaudithook(_note)


def _note(event: str, _: tuple[Any, ...]) -> None:
    if event in _BLOCKING and (noted := _watched.get(threading.get_ident())) is not None:
        noted.append(event)


@contextmanager
def _waits() -> Iterator[list[str]]:
    """Note what this thread waits for."""
    _listen()
    noted = _watched[threading.get_ident()] = []
    try:
        yield noted
    finally:
        del _watched[threading.get_ident()]
