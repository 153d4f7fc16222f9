"""What a run spends: time by phase, the cost of its devices, and what clients report."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from ajet_core.errors import StoreError
from ajet_core.protocol import BudgetConfig, Spending, SpendingReport
from ajet_installation.settings import CostSettings
from ajet_server.spending.devices import devices_of_machine
from ajet_server.spending.ledger import NANO, WHOLE_PHASE, Paid, SpendingLedger
from ajet_server.spending.time_left import WINDOW, time_left
from ajet_server.spending.totals import PAUSED, SpendingTotals

_log = logging.getLogger("ajet.server")

ROLLOUT = "rollout"
IDLE = "idle"
# Models that a finding names.
_SHOWN = 3
# Phases that do not count towards the duration of a step.
_BETWEEN_STEPS = frozenset({"boot", PAUSED})


class SpendingMeter:
    """Counts what the run of a server spends, over all starts of the server.

    Time passes in one phase at a time. Times are counted in memory, and written by `save` as
    totals: a write that is repeated changes nothing, and a server that is killed loses only the
    time since the last one.

    :param phase: returns the present phase; None while no run is active, when nothing counts.
    :param clock: seconds, monotonic.
    :param wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        run_dir: Path,
        costs: CostSettings,
        *,
        phase: Callable[[], str | None],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._ledger = SpendingLedger(run_dir)
        self._costs = costs
        self._phase_now = phase
        self._clock = clock
        self._wall_clock = wall_clock
        self._devices: dict[str, int] = dict(costs.devices)
        self._phase: str | None = None
        self._since = clock()
        # As in `Entries`.
        self._spent: dict[tuple[str, str], float] = {}
        self._written: dict[tuple[str, str], float] = {}
        self._paid: dict[tuple[str, str], Paid] = {}
        self._chosen: tuple[BudgetConfig, BudgetConfig] | None = None
        self._steps: deque[float] = deque(maxlen=WINDOW)
        # By phase.
        self._at_step: dict[str, float] = {}
        self._saving = asyncio.Lock()
        self._unwritten = False

    async def open(self) -> None:
        """Read what was spent before.

        :raises StoreError: the record of it cannot be used.
        """
        entries = await asyncio.to_thread(self._ledger.open)
        self._spent, self._paid, self._chosen = entries.seconds, entries.paid, entries.chosen
        self._written = dict(self._spent)
        if not self._devices:
            self._devices = await devices_of_machine()
        self._phase, self._since = self._phase_now(), self._clock()
        self._at_step = self._seconds()

    async def close(self) -> None:
        """Write the time until now, and close the record."""
        try:
            await self.save()
        finally:
            await asyncio.to_thread(self._ledger.close)

    def mark(self) -> None:
        """Count the time since the last call; must be called whenever the phase changes."""
        now = self._clock()
        passed, self._since = max(0.0, now - self._since), now
        phase, self._phase = self._phase, self._phase_now()
        if phase is None or not passed:
            return
        for kind, number in {WHOLE_PHASE: 1, **self._devices}.items():
            key = (phase, kind)
            self._spent[key] = self._spent.get(key, 0.0) + passed * number

    async def save(self) -> None:
        """Write the time until now, if it has changed.

        A failure is logged, and made up for by the next call.
        """
        async with self._saving:
            self.mark()
            if (spent := dict(self._spent)) == self._written:
                return
            try:
                await asyncio.to_thread(self._ledger.put_seconds, spent)
                self._written, self._unwritten = spent, False
            except StoreError as error:
                if not self._unwritten:
                    _log.error("%s; the time is written once that is possible", error.message)
                self._unwritten = True

    async def report(self, report: SpendingReport, client: str) -> bool:
        """Count a client's report once; it is durable when this returns.

        :return: whether it was not counted before.
        :raises RequestError: another report of this client has its id, or there are too many
            sources and models.
        :raises StoreUnavailableError: send it again.
        """
        # To the end even if the client is gone: what is written must be counted.
        return await asyncio.shield(asyncio.ensure_future(self._report(report, client)))

    async def _report(self, report: SpendingReport, client: str) -> bool:
        new = await asyncio.to_thread(self._ledger.add, report, client, self._wall_clock())
        if new:
            paid = self._paid.setdefault((report.source, report.model or ""), Paid())
            paid.nano_usd += round((report.usd or 0.0) * NANO)
            paid.input_tokens += report.input_tokens
            paid.output_tokens += report.output_tokens
        return new

    def begin(self, durations: Iterable[float]) -> None:
        """Take over the durations of the steps of the present weights, in seconds."""
        self._steps = deque(durations, maxlen=WINDOW)

    def begin_step(self) -> None:
        """Note that a step begins, or begins again."""
        self.mark()
        self._at_step = self._seconds()

    def step_phases(self) -> dict[str, float]:
        """Return the seconds since `begin_step`, by phase."""
        self.mark()
        before = self._at_step
        return {phase: value - before.get(phase, 0.0) for phase, value in self._seconds().items()}

    def step_seconds(self) -> float:
        """Return the time since `begin_step`, without pauses and starts of workers."""
        phases = self.step_phases()
        return math.fsum(value for phase, value in phases.items() if phase not in _BETWEEN_STEPS)

    def stepped(self, seconds: float) -> None:
        """Note that a step has ended after so many seconds."""
        self._steps.append(seconds)

    def _seconds(self) -> dict[str, float]:
        """Return the time of each phase."""
        return self._totals.seconds()

    @property
    def _totals(self) -> SpendingTotals:
        return SpendingTotals(self._spent, self._paid, self._costs)

    def budget(self, configured: BudgetConfig) -> BudgetConfig:
        """Return the budget in force: the configured one, or what was chosen in its place."""
        if self._chosen is not None and self._chosen[0] == configured:
            return self._chosen[1]
        return configured

    async def choose_budget(self, configured: BudgetConfig, chosen: BudgetConfig) -> None:
        """Use another budget, also after a restart, until another one is configured.

        :raises StoreUnavailableError: it is not written, and not used.
        """
        await asyncio.to_thread(self._ledger.choose, configured, chosen)
        self._chosen = (configured, chosen)

    def overspent(self, configured: BudgetConfig) -> str:
        """Return why the run is to be paused, with the way out; "" unless its budget is spent."""
        self.mark()
        budget = self.budget(configured)
        over = []
        if budget.usd is not None and (usd := self._totals.usd()) >= budget.usd:
            over.append(f"it has cost {usd:.2f} of {budget.usd:g} USD (budget.usd)")
        if budget.hours is not None and (hours := self._totals.active_hours()) >= budget.hours:
            over.append(f"it has taken {hours:.3g} of {budget.hours:g} hours (budget.hours)")
        if not over:
            return ""
        return f"the budget of the run is spent: {' and '.join(over)}. Raise it with `ajet budget`"

    def spending(self, configured: BudgetConfig, steps_left: int | None) -> Spending:
        """Return the totals.

        :param steps_left: None if the run has no last step.
        """
        # This counts the time until now, once for all that follows.
        this_step = self.step_seconds()
        left = None
        if steps_left is not None:
            left = time_left(list(self._steps), steps_left, this_step)
        priced = all(kind in self._costs.device_hour for kind in self._devices)
        totals = self._totals
        return Spending(
            seconds=dict(sorted(totals.seconds().items())),
            devices=self._devices,
            device_hours=totals.device_hours(),
            device_usd=totals.device_usd() if priced else None,
            paid=totals.uses(),
            usd=totals.usd(),
            active_hours=totals.active_hours(),
            budget=self.budget(configured),
            time_left=left,
        )

    def unpriced(self, configured: BudgetConfig) -> list[str]:
        """Return what a budget in USD does not cover because it has no price.

        Of many models, it names the first.
        """
        if self.budget(configured).usd is None:
            return []
        kinds = [
            f"the device {kind!r} (setting costs.device_hour)"
            for kind in self._devices
            if kind not in self._costs.device_hour
        ]
        models = sorted(
            {model for (_, model) in self._paid if model and model not in self._costs.models}
        )
        shown = [f"the model {model!r} (setting costs.models)" for model in models[:_SHOWN]]
        more = [f"{len(models) - _SHOWN} more models"] if len(models) > _SHOWN else []
        return kinds + shown + more
