"""Progress of a training loop, on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from agentjet.client import EpisodeFailure, EpisodeResult

_RECENT = 64


class ProgressDisplay:
    """Show how many episodes are done, and the mean reward of the most recent ones.

    :param total: the number of episodes.
    :param show: whether to show progress; None shows it if standard error is a terminal.
    :param also: called with each result too.
    """

    def __init__(
        self,
        total: int,
        epochs: int,
        *,
        show: bool | None,
        also: Callable[[EpisodeResult[Any, Any] | EpisodeFailure], object] | None,
        console: Console | None = None,
    ) -> None:
        self._total = total
        self._epochs = epochs
        self._also = also
        self._rewards: list[float] = []
        self._failed = 0
        console = Console(stderr=True) if console is None else console
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not (console.is_terminal if show is None else show),
        )

    def __enter__(self) -> Self:
        self._bars.start()
        self._task = self._bars.add_task("rolling out", total=self._total)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def note(self, result: EpisodeResult[Any, Any] | EpisodeFailure) -> None:
        """Count an episode that ended or was given up."""
        if isinstance(result, EpisodeFailure):
            self._failed += 1
        else:
            self._rewards = [*self._rewards, result.outcome.reward][-_RECENT:]
        self._bars.update(self._task, advance=1, description=self._text(result))
        if self._also is not None:
            self._also(result)

    def _text(self, result: EpisodeResult[Any, Any] | EpisodeFailure) -> str:
        _, _, epoch = (result.task.group or "").rpartition("@")
        said = [f"epoch {epoch}/{self._epochs}"]
        if self._rewards:
            said.append(f"reward {sum(self._rewards) / len(self._rewards):.3f}")
        if self._failed:
            said.append(f"{self._failed} failed")
        return ", ".join(said)
