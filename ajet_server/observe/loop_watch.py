"""Name the plugin that blocks the server's event loop.

While the loop is blocked, the server answers nothing. Observers and the coroutines of a store run
in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from ajet_core.errors import AjetError
from ajet_core.plugin import PluginManager
from ajet_core.plugin.targets import CORE_DISTRIBUTION
from ajet_core.protocol import Finding

_log = logging.getLogger("ajet.server")

BLOCKED_SECONDS = 1.0
"""Longer blocks are reported."""

_BEAT_SECONDS = 0.25
# After this time, a block is reported although it has not ended.
_LASTS_SECONDS = 10.0
# Shorter blocks by the same plugin are logged once in this time.
_QUIET_SECONDS = 60.0
# How long a finding remains.
_KEPT_SECONDS = 600.0


@dataclass(slots=True)
class _LoopBlocks:
    """The blocks by one cause.

    :ivar ends: when they ended, and how long they took.
    """

    ends: list[tuple[float, float]] = field(default_factory=list)
    logged_at: float | None = None


class LoopWatch:
    """Measures how long plugins block the event loop.

    Calls of observers are measured (`calling`). For everything else, a thread looks at the stack of
    the event loop's thread while the loop does not respond.

    :param clock: seconds, monotonic.
    """

    def __init__(self, plugins: PluginManager, clock: Callable[[], float]) -> None:
        self._plugins = plugins
        self._clock = clock
        self._owners: dict[str, str] | None = None
        self._blocks: dict[str, _LoopBlocks] = {}
        self._calling = ""
        self._loop_thread = 0
        self._beaten = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._seen: Counter[str] = Counter()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def open(self) -> None:
        """Start to watch the running event loop."""
        self._loop_thread = threading.get_ident()
        self._beaten = self._clock()
        self._handle = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        if self._handle is not None:
            self._handle.cancel()

    def notify(self, hook_name: str, **kwargs: object) -> None:
        """Call an observer hook of all plugins, as `PluginManager.notify` does, and measure it."""
        self._plugins.notify(hook_name, self.calling, **kwargs)

    @contextlib.contextmanager
    def calling(self, observer: str) -> Iterator[None]:
        """Measure the call of an observer within the context.

        :param observer: its plugin and hook.
        """
        started, outer, self._calling = self._clock(), self._calling, observer
        try:
            yield
        finally:
            self._calling = outer
            self.took(observer, self._clock() - started)

    def took(self, cause: str, seconds: float) -> None:
        """Note that `cause` kept the event loop for `seconds`."""
        if seconds < BLOCKED_SECONDS:
            return
        now = self._clock()
        blocks = self._blocks.setdefault(cause, _LoopBlocks())
        blocks.ends.append((now, seconds))
        quiet = blocks.logged_at is not None and now - blocks.logged_at < _QUIET_SECONDS
        if seconds >= _LASTS_SECONDS or not quiet:
            blocks.logged_at = now
            _log.warning(
                "%s blocked the event loop for %.1f s: the server answered nothing meanwhile",
                cause,
                seconds,
            )

    def findings(self) -> list[Finding]:
        """Return which plugins have blocked the event loop lately."""
        now = self._clock()
        texts, longest = [], 0.0
        for cause, blocks in list(self._blocks.items()):
            blocks.ends = [end for end in blocks.ends if now - end[0] < _KEPT_SECONDS]
            if not blocks.ends:
                del self._blocks[cause]
                continue
            took = [seconds for _, seconds in blocks.ends]
            longest = max(longest, *took)
            texts.append(
                f"{cause} blocked the event loop for {max(took):.1f} s, during which the server "
                f"answered nothing (in the last {_KEPT_SECONDS / 60:.0f} minutes: {len(took)} "
                f"such calls, {sum(took):.1f} s)"
            )
        if not texts:
            return []
        message = "; ".join(texts)
        return [
            Finding(code="loop_blocked", message=message, seconds=round(longest, 3), stuck=False)
        ]

    def cause_of(self, frame: FrameType | None) -> str:
        """Return the plugin of the innermost frame that belongs to one, and where that is.

        :return: "" if no frame on the stack belongs to a plugin.
        """
        while frame is not None:
            if owner := self._owner(str(frame.f_globals.get("__name__", ""))):
                code = frame.f_code
                return f"{owner}, in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
            frame = frame.f_back
        return ""

    def _owner(self, module: str) -> str:
        """Return the plugin that a module belongs to, "" if there is none."""
        if self._owners is None:
            self._owners = _owners(self._plugins)
        while module:
            if (owner := self._owners.get(module)) is not None:
                return owner
            module = module.rpartition(".")[0]
        return ""

    def _beat(self) -> None:
        now = self._clock()
        if self._seen:
            ((cause, _),) = self._seen.most_common(1)
            self._seen = Counter()
            self.took(cause, now - self._beaten)
        self._beaten = now
        self._handle = asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        looked, lasting = self._clock(), False
        while not self._closed.wait(_BEAT_SECONDS):
            now = self._clock()
            # If this thread did not run either, the process was stopped.
            ran, looked = now - looked < BLOCKED_SECONDS, now
            blocked = now - self._beaten
            if blocked < BLOCKED_SECONDS:
                lasting = False
                continue
            if not ran:
                continue
            # Calls of observers are measured in any case.
            if not (cause := self._calling):
                cause = self.cause_of(sys._current_frames().get(self._loop_thread))
                if not cause:
                    continue
                self._seen[cause] += 1
            if blocked >= _LASTS_SECONDS and not lasting:
                lasting = True
                _log.warning(
                    "%s has blocked the event loop for %.1f s: the server answers nothing",
                    cause,
                    blocked,
                )


def _owners(plugins: PluginManager) -> dict[str, str]:
    """Return the plugin of each package and module; those of several plugins are left out."""
    owners: dict[str, set[str]] = {}
    for info in plugins.plugins(load=True):
        if info.distribution == CORE_DISTRIBUTION:
            continue
        modules = {info.module}
        for component in info.components:
            kind, _, name = component.partition(":")
            with contextlib.suppress(AjetError):
                target = plugins.component(kind, name).target  # type: ignore[arg-type]
                modules.add(target.partition(":")[0])
        label = f"plugin {info.name!r} (distribution {info.distribution} {info.version})"
        for module in modules:
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                owners.setdefault(".".join(parts[:end]), set()).add(label)
    return {module: min(lines) for module, lines in owners.items() if len(lines) == 1}
