"""Is it learning, and if not, why? The lines of the overview."""

from __future__ import annotations

from collections.abc import Iterator

from ajet_cli.charts import CHARTS, PHASES
from ajet_cli.commands.run.status import evaluation_text, tag_text
from ajet_cli.monitor.layout import Column, Columns, Glyphs, Line, Tone, fit, line, paragraph
from ajet_cli.monitor.plots import sparkline
from ajet_cli.monitor.watch import ServerWatch, problem
from ajet_cli.words import clock, count, duration, number
from ajet_core.errors import AjetError, AuthError, ServerUnreachableError
from ajet_core.protocol import Finding, ServerState
from ajet_server.page.models import Overview, StepCurves

_TITLE = 26
_VALUE = 16
_BAR = 20
_ABORTED = "aborted_"


def headline(
    watch: ServerWatch, width: int, glyphs: Glyphs, *, sentence: bool = True
) -> list[Line]:
    """Return which server it is and of when its state is, and the state in a sentence."""
    overview = watch.overview
    asked = f"state as of {clock(overview.time)}" if overview else "asking"
    url = fit(glyphs.text(watch.url), max(8, width - len(asked) - 1), glyphs)
    lines = paragraph([(f"{url} {asked}", "dim")], width)
    if watch.failure:
        lines += paragraph(away(watch, watch.failure, glyphs), width, "  ")
    if overview and sentence:
        tone: Tone = "dim" if watch.failure else _tone(overview)
        lines += paragraph([(glyphs.text(overview.sentence), tone)], width, "  ")
    return lines


def away(watch: ServerWatch, failure: AjetError, glyphs: Glyphs) -> list[tuple[str, Tone]]:
    """Return why there is no news of a server, and since when."""
    why = glyphs.text(problem(failure))
    if isinstance(failure, AuthError):
        return [("No access: ", "bad"), (why, "")]
    since = watch.failing_since
    lasted = duration(max(0.0, watch.clock() - since))
    what = "Gone" if isinstance(failure, ServerUnreachableError) else "Failing"
    return [(f"{what} since {clock(since)} ({lasted}): ", "bad"), (f"{why} Trying again.", "")]


def overview_lines(watch: ServerWatch, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what the overview shows below the sentence."""
    overview = watch.overview
    if overview is None:
        return _no_answer(watch, width)
    parts = [
        _findings(overview, width, glyphs),
        [*_batch(overview, width, glyphs), *_clients(overview, width, glyphs)],
        _curves(overview, watch.curves, width, glyphs),
        _evaluations(overview, width, glyphs),
        _failures(overview, width, glyphs),
    ]
    lines: list[Line] = []
    for part in parts:
        if part:
            lines += [*([line()] if lines else []), *part]
    return lines


def findings_count(overview: Overview) -> int:
    """Return how many findings there are, with that of the pause, which the sentence has."""
    return len(overview.status.findings) + len(list(_other_findings(overview)))


def newest(overview: Overview, curves: StepCurves | None, metric: str) -> float | None:
    """Return the newest value of a metric."""
    last = overview.status.last_step
    if last is not None and metric in last.metrics:
        return last.metrics[metric]
    curve = curves.curves.get(metric) if curves else None
    values = reversed(curve.mean) if curve else iter(())
    return next((value for value in values if value is not None), None)


def _tone(overview: Overview) -> Tone:
    status = overview.status
    if status.error is not None or any(finding.stuck for finding in status.findings):
        return "bad"
    if status.paused is not None:
        return "warn"
    return "good" if status.state is ServerState.ROLLING else "strong"


def _no_answer(watch: ServerWatch, width: int) -> list[Line]:
    if not isinstance(watch.failure, AuthError):
        return []
    texts = (
        "The monitor shows everything that agents sent, so it needs a token of the scope view:",
        "  ajet token create --scope view --name NAME",
        "Give it in AJET_TOKEN, or in the file of --servers.",
    )
    return [each for text in texts for each in paragraph([(text, "")], width, "  ")]


def _findings(overview: Overview, width: int, glyphs: Glyphs) -> list[Line]:
    status = overview.status
    lines: list[Line] = []
    for finding in _present(overview):
        tone: Tone = "bad" if finding.stuck else "warn"
        name = glyphs.text(finding.code.replace("_", " "))
        parts: list[tuple[str, Tone]] = [("! ", tone), (f"{name}: ", tone)]
        parts += [(glyphs.text(finding.message), ""), (_since(finding), "dim")]
        lines += paragraph(parts, width, "  ")
    for text in _other_findings(overview):
        lines += paragraph([("! ", "warn"), (glyphs.text(text), "")], width, "  ")
    if lines:
        for text in status.last_step.forks if status.last_step else ():
            lines += paragraph([("  ", ""), (glyphs.text(text), "dim")], width, "  ")
        return [line("Findings", "strong"), *lines]
    if status.state is ServerState.OFFLINE or status.paused:
        return []
    return paragraph([("No findings: nothing that is watched looks wrong.", "good")], width)


def _present(overview: Overview) -> list[Finding]:
    """Return the server's findings; the sentence above them has why the run is paused."""
    return [finding for finding in overview.status.findings if finding.code != "paused"]


def _other_findings(overview: Overview) -> Iterator[str]:
    """Yield the findings of the last step that are none of the server's."""
    last = overview.status.last_step
    shown = {finding.message for finding in overview.status.findings}
    return (text for text in (last.findings if last else ()) if text not in shown)


def _since(finding: Finding) -> str:
    if finding.since_step is not None:
        good = finding.good_step
        last = f"; the last good checkpoint is that of step {good}" if good else ""
        return f" since step {finding.since_step}{last}"
    return f" (for {duration(finding.seconds)})" if finding.seconds >= 1 else ""


def _batch(overview: Overview, width: int, glyphs: Glyphs) -> list[Line]:
    status = overview.status
    lines: list[Line] = []
    if (batch := status.batch) is not None:
        size = min(_BAR, width // 3)
        full = min(size, size * batch.ready // batch.needed) if batch.needed else size
        bar = glyphs.full * full + glyphs.empty * (size - full)
        of = "episodes" if batch.full_by == "episodes" else "tasks"
        text = f" {batch.ready} of {batch.needed} {of} of the next batch, "
        text += f"{count(batch.open_episodes, 'episode')} open"
        if batch.quarantined:
            text += f", {count(batch.quarantined, 'task')} quarantined"
        lines += paragraph([(bar, "good"), (text, "")], width, "  ")
    for tag, progress in (status.mixture or {}).items():
        tone: Tone = "warn" if progress.blocked else ""
        lines += paragraph([(f"{glyphs.text(tag)}: {tag_text(progress)}", tone)], width, "  ")
    facts = [f"model {glyphs.text(status.model or 'none')}", f"step {status.step:,}"]
    if overview.seconds_per_step is not None:
        facts.append(f"{duration(overview.seconds_per_step)} per step")
    facts.append(f"up {duration(status.uptime_seconds)}")
    return lines + paragraph([(", ".join(facts), "dim")], width, "  ")


def _clients(overview: Overview, width: int, glyphs: Glyphs) -> list[Line]:
    if not overview.clients:
        return [line("No client has an open episode.", "dim")]
    columns = Columns(
        (
            Column("client"),
            Column("open episodes", 13, right=True),
            Column("oldest claimed", 26, keep=False),
        ),
        width,
        glyphs,
    )
    rows = [
        columns.row(
            (
                glyphs.text(client.name or client.client),
                number(client.open_episodes),
                _ago(overview.time, client.oldest_seconds),
            )
        )
        for client in overview.clients
    ]
    return [line(columns.head(), "dim"), *map(line, rows)]


def _ago(now: float, seconds: float) -> str:
    return f"{clock(now - seconds)} ({duration(seconds)} ago)"


def _curves(
    overview: Overview, curves: StepCurves | None, width: int, glyphs: Glyphs
) -> list[Line]:
    if curves is None:
        return []
    if curves.total == 0:
        return [line("No step has ended yet, so there are no curves.", "dim")]
    tags = [name for name in curves.names if name.startswith("reward_mean/")]
    reward, *others = CHARTS
    charts = [reward, *((f"Reward, {tag[12:]}", (tag,), "") for tag in tags), *others]
    last = overview.status.last_step
    lines: list[Line] = []
    for title, (name, *_), unit in charts:
        if (curve := curves.curves.get(name)) is None:
            continue
        value = f"{number(newest(overview, curves, name))} {unit}"
        drawn = sparkline(curve.mean, max(1, width - _TITLE - _VALUE - 2), glyphs)
        columns = Columns((Column("", _TITLE), Column("", _VALUE)), width, glyphs)
        lines.append(((columns.row((glyphs.text(title), value)), ""), (f" {drawn}", "good")))
    if last and (phases := _phases(last.metrics)):
        lines += paragraph([("Time by phase".ljust(_TITLE + 1), ""), (phases, "")], width, "  ")
    return lines


def _phases(metrics: dict[str, float]) -> str:
    timed = [(name.removesuffix("_seconds"), metrics.get(name)) for name in PHASES]
    return ", ".join(f"{phase} {duration(value)}" for phase, value in timed if value is not None)


def _evaluations(overview: Overview, width: int, glyphs: Glyphs) -> list[Line]:
    evaluations = overview.status.evaluations
    if not evaluations:
        return []
    lines = [line("Evaluations", "strong")]
    for evaluation in evaluations:
        lines += paragraph([(glyphs.text(evaluation_text(evaluation)), "")], width, "  ")
    return lines


def _failures(overview: Overview, width: int, glyphs: Glyphs) -> list[Line]:
    status = overview.status
    causes = {
        name.removeprefix(_ABORTED): int(value)
        for name, value in status.counters.items()
        if name.startswith(_ABORTED) and value
    }
    lines: list[Line] = []
    if causes:
        ordered = sorted(causes.items(), key=lambda each: -each[1])
        text = ", ".join(
            f"{number(times)} {glyphs.text(cause.replace('_', ' '))}" for cause, times in ordered
        )
        lines += paragraph([(f"Aborted episodes by cause: {text}", "")], width, "  ")
    for row in status.quarantined:
        task = glyphs.text(row.task_id) or f"all tasks of {glyphs.text(row.client_id)}"
        text = f"Not tried again: {task}, {count(row.aborts, 'failure')}, last: "
        lines += paragraph([(text, "warn"), (glyphs.text(row.reason), "")], width, "  ")
    return [line("Failures", "strong"), *lines] if lines else []
