"""The demo's display: a live panel, or plain lines without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ajet_demo.report import Record, Summary

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw the last `width` values, from 0 to 1, as a row of blocks."""
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round(min(max(v, 0.0), 1.0) * top)] for v in values[-width:])


class Display:
    """Shows the progress of the run.

    :param max_steps: maximum number of steps.
    """

    def __init__(self, console: Console, *, target: float, max_steps: int) -> None:
        self._console = console
        self._target = target
        self._max_steps = max_steps
        self._phase = "starting"
        self._success: list[float] = []
        self._evals: list[Record] = []
        self._last: Record | None = None
        self._tokens = (0.0, 0.0)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self._panel(), console=self._console, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def phase(self, text: str) -> None:
        """Show the current phase."""
        if text == self._phase:
            return
        self._phase = text
        self._update(text)

    def note(self, text: str) -> None:
        """Print a line that stays, also above a live panel."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warming_up(self, step: int, steps: int, loss: float) -> None:
        """Show the progress of the supervised warm-up."""
        self._phase = f"warming the model up: step {step}/{steps}, loss {loss:.3f}"
        line = self._phase if step % 60 == 0 or step == steps else None
        self._update(line)

    def record(self, record: Record) -> None:
        """Show a training step or an evaluation, of this session or an earlier one."""
        if record.kind == "eval":
            self._evals.append(record)
            self._update(
                f"held-out success after step {record.step}: {record.success:.0%} "
                f"(target {self._target:.0%})"
            )
            return
        self._success.append(record.success)
        self._last = record
        metrics = record.metrics
        raw, trained = self._tokens
        self._tokens = (
            raw + metrics.get("tokens_raw", 0.0),
            trained + metrics.get("tokens_trained", 0.0),
        )
        self._update(
            f"step {record.step}: success {record.success:.0%}, reward {record.reward:+.2f}, "
            f"tokens {metrics.get('tokens_raw', 0):.0f} recorded, "
            f"{metrics.get('tokens_trained', 0):.0f} trained, "
            f"rollout {metrics.get('rollout_seconds', 0):.2f} s, "
            f"update {metrics.get('update_seconds', 0):.2f} s"
        )

    def summary(self, summary: Summary) -> None:
        """Show the result."""
        verdict = "reached" if summary.reached else "not reached"
        table = Table.grid(padding=(0, 2))
        for name, value in (
            (
                "success",
                (
                    f"{summary.success_before:.0%} before, {summary.success_after:.0%} after "
                    f"{summary.steps} steps (target {summary.target:.0%} {verdict})"
                ),
            ),
            ("episodes", f"{summary.episodes}, {summary.calls} model calls"),
            ("tokens", f"{summary.tokens_raw} recorded, {summary.tokens_trained} trained"),
            (
                "seconds",
                (
                    f"{summary.seconds:.1f} in all: boot {summary.boot_seconds:.1f}, "
                    f"training {summary.training_seconds:.1f}"
                ),
            ),
            (
                "training",
                (
                    f"rollout {summary.rollout_seconds:.1f} s, update {summary.update_seconds:.1f} "
                    f"s, overhead {summary.overhead_seconds:.1f} s ({summary.overhead_share:.0%})"
                ),
            ),
            ("model", summary.model_dir),
            ("plot", f"{summary.run_dir}/reward.png"),
        ):
            table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
        self._console.print(table)

    def _update(self, line: str | None) -> None:
        if self._live is not None:
            self._live.update(self._panel())
        elif line is not None:
            self.note(line)

    def _panel(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_row(
            "step", f"{self._last.step if self._last else 0} of at most {self._max_steps}"
        )
        if self._last is not None:
            metrics = self._last.metrics
            table.add_row("success", f"{self._last.success:.0%} of the last batch")
            table.add_row("reward", f"{self._last.reward:+.3f}")
            table.add_row(
                "seconds",
                f"rollout {metrics.get('rollout_seconds', 0):.2f}, "
                f"update {metrics.get('update_seconds', 0):.2f}",
            )
            table.add_row(
                "tokens", f"{self._tokens[0]:.0f} recorded, {self._tokens[1]:.0f} trained"
            )
        if self._evals:
            shown = self._evals[-6:]
            table.add_row("held-out", ", ".join(f"{r.success:.0%} (step {r.step})" for r in shown))
        body = Group(
            Text(self._phase, style="cyan"),
            Text(""),
            table,
            Text(sparkline(self._success), style="green"),
        )
        return Panel(
            body, title="agentjet demo", border_style="dim", width=min(100, self._console.width)
        )
