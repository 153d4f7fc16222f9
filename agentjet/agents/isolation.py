"""Adapters and judges of plugins, behind calls whose exceptions name the plugin."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from agentjet.client import EpisodeOutcome, SwarmOutcome
from ajet_core.errors import AjetError, PluginError
from ajet_core.interfaces import AgentAdapter, ComponentSettings, Judge
from ajet_core.plugin import AgentSpec, PluginManager
from ajet_core.plugin.discovery import describe, way_out
from ajet_core.plugin.targets import plugin_faults

_log = logging.getLogger("ajet.agents")


class IsolatedAdapter(AgentAdapter):
    """An adapter of a plugin: what it raises becomes one error with the plugin's name and version.

    Exceptions of the agent that `run` and `run_sync` run are the program's own, and are raised as
    they are, as is an `AjetError` with which `fresh`, `run` or `run_sync` refuses an agent or task.

    :param adapter: the plugin's adapter.
    :param owner: the plugin in messages.
    :param advice: what a user can do without the plugin.
    """

    def __init__(self, adapter: AgentAdapter, owner: str, advice: str) -> None:
        super().__init__(getattr(adapter, "settings", ComponentSettings()))
        self._adapter = adapter
        self._owner = owner
        self._advice = advice
        # The modules whose code is the adapter's; this one calls what may not be callable so.
        self._modules = {kind.__module__ for kind in type(adapter).__mro__} | {__name__}
        self._warned = False
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        target: type[AgentAdapter],
        settings: ComponentSettings,
        spec: AgentSpec,
        plugins: PluginManager,
    ) -> IsolatedAdapter:
        """Create the adapter of a spec.

        :raises PluginError: its constructor raised.
        """
        infos = [p for p in plugins.plugins() if f"agent:{spec.name}" in p.components]
        owner = f"the agent adapter {spec.name!r} of {describe(infos[0])}"
        advice = way_out(infos[0])
        try:
            adapter = target(settings)
        # A plugin may raise anything; only what needs it may be affected.
        except Exception as error:
            raise _fault(owner, advice, "its constructor", error) from error
        return cls(adapter, owner, advice)

    def accepts(self, agent: object) -> bool:
        """Ask the adapter.

        :raises PluginError: it raised.
        """
        with self._isolated("accepts"):
            return bool(self._adapter.accepts(agent))

    def fresh(self, agent: object) -> object:
        """Ask the adapter for a copy.

        :raises PluginError: it raised, unless with an `AjetError`, which refuses the agent.
        """
        with self._isolated("fresh", refuses=True):
            return self._adapter.fresh(agent)

    def current_agent(self) -> str | None:
        """Ask the adapter; None, with one warning, if it raises or returns no string."""
        try:
            name: object = self._adapter.current_agent()
        # A call without a name can still be trained.
        except Exception as error:  # noqa: BLE001 - it is logged
            self._warn(f"raised {type(error).__name__}: {error}")
            return None
        if name is None or isinstance(name, str):
            return name
        self._warn(f"returned a {type(name).__name__} instead of a name")
        return None

    def prepare(self) -> None:
        """Let the adapter prepare its framework.

        :raises PluginError: it raised.
        """
        with self._isolated("prepare"):
            self._adapter.prepare()

    async def run(self, agent: object, task: object) -> object:
        """Let the adapter run the agent.

        :raises PluginError: the adapter's own code raised, see `AgentAdapter.run`.
        :raises TypeError: the task cannot be passed to the agent unchanged.
        """
        try:
            return await self._adapter.run(agent, task)
        except Exception as error:
            if (fault := self._fault_of_run("run", error)) is None:
                raise
            raise fault from error

    def run_sync(self, agent: object, task: object) -> object:
        """Let the adapter run the agent, as `run` does."""
        try:
            return self._adapter.run_sync(agent, task)
        except Exception as error:
            if (fault := self._fault_of_run("run_sync", error)) is None:
                raise
            raise fault from error

    @contextmanager
    def _isolated(self, method: str, *, refuses: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if refuses and isinstance(error, AjetError):
                raise
            raise _fault(self._owner, self._advice, method, error) from error

    def _fault_of_run(self, method: str, error: Exception) -> Exception | None:
        """Return the error that names the plugin; None if the program raised it."""
        if isinstance(error, AjetError) or _raising_module(error) not in self._modules:
            return None
        if isinstance(error, TypeError):
            # What a task of the wrong type is refused with; the type is promised.
            return TypeError(f"{self._owner}: {error}")
        return _fault(self._owner, self._advice, method, error)

    def _warn(self, what: str) -> None:
        with self._lock:
            warned, self._warned = self._warned, True
        if not warned:
            _log.warning("%s: current_agent %s; the calls have no agent's name", self._owner, what)


class IsolatedJudge(Judge):
    """A judge of a plugin: what it raises, or a reward that is none, names the plugin.

    An `AjetError` is raised as it is, and a `TypeError`, which refuses the program's result, keeps
    its class.

    :param judge: the plugin's judge.
    :param owner: the judge in messages, as `PluginManager.describe` returns it.
    """

    def __init__(self, judge: Judge, owner: str) -> None:
        super().__init__(getattr(judge, "settings", ComponentSettings()))
        self._judge = judge
        self._owner = owner

    @classmethod
    def of(cls, judge: Judge, owner: str) -> IsolatedJudge:
        """Create one that is async if the judge is."""
        is_async = inspect.iscoroutinefunction(type(judge).__call__)
        return (IsolatedAsyncJudge if is_async else cls)(judge, owner)

    def __call__(self, task: Any, result: Any) -> Any:
        """Judge a result.

        :raises PluginError: the judge raised, or what it returned is not a reward.
        """
        with self._named():
            reward = self._judge(task, result)
            return self._awaited(reward) if inspect.isawaitable(reward) else _checked(reward)

    async def _awaited(self, reward: Awaitable[Any]) -> Any:
        with self._named():
            return _checked(await reward)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with plugin_faults(self._owner, "failed", passed=(AjetError, TypeError)):
                yield
        except TypeError as error:
            raise TypeError(f"{self._owner}: {error}") from error


class IsolatedAsyncJudge(IsolatedJudge):
    """A judge whose rewards must be awaited, which `trainable` sees from its class."""

    async def __call__(self, task: Any, result: Any) -> Any:
        """Judge a result, as `IsolatedJudge` does."""
        with self._named():
            return _checked(await self._judge(task, result))


def _checked(reward: Any) -> Any:
    """Return a reward.

    :raises ValueError: it is not a reward, or not finite.
    """
    rewards = reward.parts if isinstance(reward, SwarmOutcome) else reward
    for part in rewards.values() if isinstance(rewards, Mapping) else [rewards]:
        try:
            value = EpisodeOutcome.of(part).reward
        except TypeError:
            kind = type(part).__name__
            raise ValueError(f"it returned a {kind} instead of a reward") from None
        if not math.isfinite(value):
            raise ValueError(f"the reward is {value}")
    return reward


def _fault(owner: str, advice: str, method: str, error: Exception) -> PluginError:
    message = error.message if isinstance(error, AjetError) else str(error)
    return PluginError(
        f"{owner} failed: {method} raised {type(error).__name__}: {message}\n"
        f"To continue without it, {advice}.",
        param="plugins.blocked",
    )


def _raising_module(error: Exception) -> str:
    """Return the name of the module whose code raised an exception."""
    trace: TracebackType | None = error.__traceback__
    name = ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        trace = trace.tb_next
    return name
