"""Reads what a run directory has, and notes what it lacks."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ajet_cli.report.evaluations import MeasuredEvaluation, logged, measured
from ajet_cli.report.past_findings import FindingReplay, PastFinding, logged_findings
from ajet_cli.report.samples import ShownEpisode, StepSample, shown_episodes, step_sample
from ajet_cli.report.survey import EpisodeSurvey
from ajet_core.errors import AjetError, RequestError, StoreError
from ajet_core.interfaces import LoggedRun, RunRecord, SampleStore, StepRecord
from ajet_core.protocol import Evaluation, EvaluationConfig, FailureConfig, ModelConfig, RunConfig
from ajet_installation.settings import CostSettings
from ajet_loggers.tracking import flat_config
from ajet_server.averages import mean
from ajet_server.observe.provenance import Provenance, read_provenance
from ajet_server.page.history import StepTable
from ajet_server.page.models import StepCurves, StepsQuery
from ajet_server.page.token_texts import TokenTexts
from ajet_server.security.secrets import without_secrets
from ajet_server.spending.ledger import read_ledger
from ajet_server.spending.totals import SpendingTotals
from ajet_server.store.run_facts import RunFacts
from ajet_server.store.store_reader import EpisodeChoice, StoreReader
from ajet_sources.evaluating import interval

POINTS = 200
# Final numbers are means of a fifth of the steps, within these limits.
_LEAST_LAST, _MOST_LAST = 5, 20
_MOST_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Final:
    """The mean of a metric over the last steps of a run.

    :param ends: the interval of 95 % if steps were independent; None for a single step.
    :param steps: how many steps have the metric.
    """

    mean: float
    ends: tuple[float, float] | None
    steps: int


@dataclass(slots=True)
class RunReport:
    """What a report shows of a run.

    :ivar config: settings by dotted name without secrets; empty if they cannot be read.
    :ivar changed: names of those that differ from the defaults.
    :ivar limits: of findings about training.
    :ivar spending: None if none is recorded.
    :ivar problems: what is missing or damaged.
    :ivar texts: whether what agents and the model wrote is shown, also where a server quotes it.
    """

    name: str
    texts: bool = True
    run: RunRecord | None = None
    curves: StepCurves = field(default_factory=lambda: StepTable().curves(StepsQuery()))
    final: Mapping[str, Final] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    changed: Sequence[str] = field(default_factory=list)
    limits: FailureConfig = field(default_factory=FailureConfig)
    provenance: Sequence[Provenance] = field(default_factory=list)
    findings: Sequence[PastFinding] = field(default_factory=list)
    checks: Mapping[str, str] = field(default_factory=dict)
    other_findings: Sequence[PastFinding] = field(default_factory=list)
    evaluations: Sequence[MeasuredEvaluation] = field(default_factory=list)
    survey: EpisodeSurvey = field(default_factory=lambda: EpisodeSurvey(1.0))
    best: Sequence[ShownEpisode] = field(default_factory=list)
    worst: Sequence[ShownEpisode] = field(default_factory=list)
    samples: Sequence[StepSample] = field(default_factory=list)
    spending: SpendingTotals | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        """Id of the run, or else the name of its directory."""
        return self.run.run_id if self.run is not None else self.name

    def note(self, problem: str) -> None:
        """Note what is missing or damaged, once."""
        if problem not in self.problems:
            self.problems.append(problem)


async def read_report(
    store: SampleStore, run_dir: Path, name: str, episodes: int, prices: CostSettings
) -> RunReport:
    """Read a run, also while its server writes to it.

    Steps are read into columns, and episodes one after the other. What is damaged is noted.

    :param store: of the run; this opens and closes it.
    :param name: of the run, for readers.
    :param episodes: how many of the best and of the worst episodes to read with their messages;
        with 0, no text of an agent or of the model is in the report.
    :param prices: of what the run has spent.
    :raises RequestError: there is nothing to report: neither a store nor logged steps.
    """
    report = RunReport(name, texts=episodes > 0, provenance=read_provenance(run_dir))
    with _warnings_in(report.note):
        try:
            async with StoreReader(store, run_dir) as reader:
                await _read_store(report, reader, episodes)
        except AjetError as error:
            in_logs = report.curves.total == 0 and _read_logs(report, run_dir, error)
            if not in_logs and report.run is None:
                raise RequestError(
                    f"there is no run to report in {run_dir}: {error.message}"
                ) from error
            if not in_logs:
                report.note(f"The records of the run could not be read to the end: {error.message}")
    report.other_findings = logged_findings(run_dir / "findings.jsonl", sentences=report.texts)
    try:
        if (entries := read_ledger(run_dir)) is not None:
            report.spending = SpendingTotals(entries.seconds, entries.paid, prices)
    except StoreError as error:
        report.note(f"What the run has spent is not shown: {error.message}")
    if not report.provenance:
        report.note(
            "The run directory does not say with which versions and on which machine the run was "
            "served (provenance.jsonl is missing)."
        )
    return report


async def _read_store(report: RunReport, reader: StoreReader, episodes: int) -> None:
    report.run = await reader.run()
    config = _configured(report)
    steps = await reader.steps()
    _take_steps(report, steps)
    last = steps[-1].step if steps else 0
    del steps
    evaluation = config.evaluation if config else EvaluationConfig()
    report.survey = EpisodeSurvey(evaluation.pass_reward, reasons=episodes > 0)
    async for record in reader.episodes(EpisodeChoice()):
        report.survey.add(record)
    report.evaluations = measured(report.survey.evaluations, evaluation)
    if report.survey.problem:
        report.note(report.survey.problem)
    report.best = await shown_episodes(reader, report.survey.best(episodes))
    report.worst = await shown_episodes(reader, report.survey.worst(episodes))
    if episodes:
        await _take_samples(report, reader, last)


async def _take_samples(report: RunReport, reader: StoreReader, last: int) -> None:
    batches = [batch for batch in await reader.batches() if batch.step <= last]
    if not batches:
        return
    try:
        texts = TokenTexts.load(RunFacts.of(report.run).model)
    except AjetError as error:
        texts = TokenTexts(None, error.message)
    if texts.problem:
        report.note(f"Endings are shown as token ids: {texts.problem}")
    taken = []
    for step in sorted({batches[0].step, batches[-1].step}):
        of_step = [batch for batch in batches if batch.step == step]
        taken.append(await step_sample(reader, of_step, texts))
    report.samples = taken
    for sample in taken:
        for problem in sample.problems:
            report.note(problem)


def _configured(report: RunReport) -> RunConfig | None:
    """Return the configuration, and note it without secrets."""
    if report.run is None:
        report.note("The store has no run: it was never configured.")
        return None
    try:
        config = RunConfig.model_validate_json(report.run.config_json)
    except ValidationError as error:
        (first, *_) = error.errors()
        report.note(
            "The configuration of the run is damaged or of another version of agentjet, so it is "
            f"not shown, and defaults are used for checks and evaluations ({first['msg']} at "
            f"{'.'.join(map(str, first['loc'])) or 'the beginning'})."
        )
        return None
    flat = _flat(config)
    usual = _flat(RunConfig(model=ModelConfig(path="-")))
    report.limits = config.failures
    report.config = flat
    report.changed = [name for name, value in flat.items() if usual.get(name) != value]
    return config


def _flat(config: RunConfig) -> dict[str, str]:
    return flat_config(LoggedRun("", without_secrets(config), 0))


def _take_steps(report: RunReport, steps: Iterable[StepRecord]) -> None:
    table, replay = StepTable(), FindingReplay(report.limits)
    for step in steps:
        table.add(step.step, step.finished_at, step.metrics)
        replay.add(step)
    report.curves = table.curves(StepsQuery(points=POINTS))
    report.findings, report.checks = replay.findings(), replay.checks()
    count = min(_MOST_LAST, max(_LEAST_LAST, report.curves.total // 5))
    report.final = {
        name: _final(values)
        for name, column in sorted(table.columns.items())
        if (values := [value for value in column[-count:] if math.isfinite(value)])
    }


def _final(values: Sequence[float]) -> Final:
    return Final(mean(values), interval(values), len(values))


def _read_logs(report: RunReport, run_dir: Path, error: AjetError) -> bool:
    """Read what the logger `jsonl` has written, if the store cannot be read.

    :return: whether it has written a step.
    """
    steps: dict[int, StepRecord] = {}
    for line in _json_lines(run_dir / "metrics.jsonl"):
        step = line.pop("step", None)
        if isinstance(step, int):
            numbers = {
                str(name): float(value)
                for name, value in line.items()
                if isinstance(value, int | float)
            }
            steps[step] = StepRecord(step, "", numbers, 0.0)
    if not steps:
        return False
    missing = "episodes are" if report.config else "the configuration and episodes are"
    report.note(
        f"The records of the run cannot be read: {error.message}. Curves and evaluations come from "
        f"metrics.jsonl and evaluations.jsonl; {missing} missing."
    )
    _take_steps(report, [steps[step] for step in sorted(steps)])
    evaluations = []
    for line in _json_lines(run_dir / "evaluations.jsonl"):
        with contextlib.suppress(ValidationError):
            evaluations.append(Evaluation.model_validate(line))
    report.evaluations = report.evaluations or logged(evaluations)
    return True


def _json_lines(path: Path) -> Iterator[dict[str, object]]:
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return


@contextlib.contextmanager
def _warnings_in(note: Callable[[str], None]) -> Iterator[None]:
    """Note what stores log about records that they skip."""
    handler = _Noting(note)
    log = logging.getLogger("ajet.server")
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


class _Noting(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            self._note(record.getMessage())
