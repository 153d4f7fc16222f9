"""The report of one run as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

from ajet_cli.charts import PHASES
from ajet_cli.report.costs import costs
from ajet_cli.report.episode_parts import episodes, failures, hacking
from ajet_cli.report.markup import (
    NAME_CHARS,
    TEXT_CHARS,
    Html,
    between,
    clock,
    cut,
    document,
    items,
    joined,
    section,
    table,
    tag,
)
from ajet_cli.report.past_findings import PastFinding
from ajet_cli.report.reading import RunReport
from ajet_cli.report.run_curves import REPORT_CHARTS, charts, evaluations, last_of_each
from ajet_cli.words import duration, number

_FINDINGS = 60
MOST_SETTINGS = 300
"""How many settings a page has."""


def run_page(report: RunReport) -> str:
    """Return the page of one run; the same report gives the same page."""
    parts: list[tuple[str, str, Html]] = [
        ("findings", "Findings", _findings(report)),
        ("curves", "Curves", charts(report)),
        ("evaluations", "Evaluations", evaluations(report)),
        ("hacking", "Signs of reward hacking", hacking(report.samples)),
        ("failures", "Failures", failures(report)),
        ("best", "Best and worst episodes", episodes(report)),
        ("spending", "Time and money", costs(report.spending)),
        ("configuration", "Configuration", _configuration(report)),
        ("versions", "Versions and hardware", versions(report)),
    ]
    shown = [(key, title, content) for key, title, content in parts if content]
    links = [joined(tag("a", {"href": f"#{key}"}, title), " ") for key, title, _ in shown]
    content = joined(
        tag("h1", {}, f"Run {report.run_id}"),
        tag("p", {"class": "sentence"}, sentence(report)),
        problems(report.problems),
        tag("nav", {"aria-label": "Parts of this report"}, *links),
        tag(
            "main",
            {},
            *(
                tag("section", {"id": key}, tag("h2", {}, title), content)
                for key, title, content in shown
            ),
        ),
    )
    return document(f"{report.run_id}: report", style(), content, [comparable(report)])


def style() -> str:
    """Return the rules of reports in addition to those of the live page."""
    return (resources.files("ajet_cli.report") / "report.css").read_text(encoding="utf-8")


def comparable(report: RunReport) -> dict[str, object]:
    """Return the curves, settings and evaluations with which the live page compares runs."""
    curves = report.curves
    wanted = {name for _, names, _ in REPORT_CHARTS for name in names} | set(PHASES)
    return {
        "name": report.name,
        "run_id": report.run_id,
        "sentence": sentence(report),
        "curves": {
            "names": curves.names,
            "total": curves.total,
            "steps": curves.steps,
            "times": curves.times,
            "curves": {
                name: curve.model_dump() for name, curve in curves.curves.items() if name in wanted
            },
        },
        "config": {
            name: cut(_normal(report.config[full]), TEXT_CHARS)
            for name, full in _shown_settings(report)
        },
        "evaluations": [
            {
                "tag": one.evaluation.tag,
                "client": one.evaluation.client_id,
                "step": one.evaluation.step,
                "tasks": one.evaluation.tasks,
                "reward": [one.reward_mean, one.reward_ends],
                "pass_at": {
                    str(k): [value, one.pass_ends.get(k)]
                    for k, value in one.evaluation.pass_at.items()
                },
            }
            for one in last_of_each(report.evaluations)
        ],
        "final": {
            name: [one.mean, one.ends, one.steps]
            for name, one in report.final.items()
            if name in wanted
        },
    }


def sentence(report: RunReport) -> str:
    """Return what the run was in a few sentences."""
    config, survey = report.config, report.survey
    total = report.curves.total
    model = f" {cut(config['model.path'], NAME_CHARS)}" if "model.path" in config else " a model"
    how = ""
    if config:
        how = (
            f" with {config['algorithm.advantage']} advantages and learning rate "
            f"{config['algorithm.learning_rate']}, trainer {config['trainer.name']} and engine "
            f"{config['engine.name']}"
        )
    trained = (
        f"This run trained{model} for {number(total)} {'step' if total == 1 else 'steps'}{how}"
    )
    when = ""
    if survey.first_at is not None and survey.last_at is not None:
        took = duration(max(0.0, survey.last_at - survey.first_at))
        when = f", from {clock(survey.first_at)} to {clock(survey.last_at)} ({took})"
    ended = sum(count for (_, state), count in survey.totals.items() if state == "ended")
    aborted = sum(count for (_, state), count in survey.totals.items() if state == "aborted")
    counts = (
        f" Of its episodes, {number(ended)} ended and {number(aborted)} failed."
        if survey.totals
        else ""
    )
    return f"{trained}{when}.{counts}{_rewards(report)}{_state(report)}"


def _rewards(report: RunReport) -> str:
    curve = report.curves.curves.get("reward_mean")
    values = [value for value in curve.mean if value is not None] if curve else []
    if not values or "reward_mean" not in report.final:
        return ""
    last = report.final["reward_mean"]
    return (
        f" The mean reward went from {number(values[0])} to {number(last.mean)}"
        f"{between(last.ends)} in the last {_steps(last.steps)}."
    )


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{number(count)} steps"


def _state(report: RunReport) -> str:
    if report.run is None:
        return ""
    if report.run.paused and not report.texts:
        return " It is paused."
    if report.run.paused:
        # The end of a reason is the command that continues the run.
        return f" It is paused: {cut(report.run.paused, 4 * TEXT_CHARS)}."
    return " It was not stopped: it continues when its server runs." if report.run.active else ""


def problems(noted: Sequence[str]) -> Html:
    """Return what is missing or damaged."""
    shown = [cut(problem, 2 * TEXT_CHARS) for problem in noted[:_FINDINGS]]
    return section("Missing or damaged", items(shown, "findings")) if shown else Html("")


def _findings(report: RunReport) -> Html:
    paused = report.run is not None and bool(report.run.paused)
    if report.curves.total == 0 and not report.other_findings:
        return tag("p", {"class": "dim"}, "No step has ended, so nothing was judged.")
    given = [*report.findings, *report.other_findings]
    off = [
        f"{name.replace('_', ' ')}: {state}"
        for name, state in report.checks.items()
        if state not in ("ok", "found")
    ]
    return joined(
        items(map(_finding, given[:_FINDINGS]), "findings")
        if given
        else tag(
            "p",
            {"class": "dim" if paused else "good"},
            "No findings about training; the run is paused for the reason above."
            if paused
            else "No findings: no check that could judge found anything wrong.",
        ),
        tag("p", {"class": "dim"}, f"{len(given) - _FINDINGS} more are left out.")
        if len(given) > _FINDINGS
        else None,
        tag(
            "p",
            {"class": "dim"},
            "Findings about training are computed from the stored metrics of the steps, with "
            "the limits that the run has now; docs/health.md explains them.",
        ),
        tag("details", {}, tag("summary", {}, "checks that could not judge"), items(off))
        if off
        else None,
    )


def _finding(finding: PastFinding) -> Html:
    until = "still so after the last step" if finding.last is None else f"until step {finding.last}"
    when = f" (from step {finding.first}, {until}"
    if finding.good_step is not None:
        good = (
            f"the checkpoint of step {finding.good_step}"
            if finding.good_step
            else "the model that the run began with"
        )
        when += f"; the last weights from before it are those of {good}"
    if finding.times > 1:
        when += f"; {number(finding.times)} times"
    return joined(
        tag("strong", {}, finding.code.replace("_", " ")),
        f" {cut(finding.sentence, 2 * TEXT_CHARS)}" if finding.sentence else None,
        tag("span", {"class": "dim"}, f"{when})"),
    )


def settings(report: RunReport) -> list[tuple[str, str]]:
    """Return at most 300 settings of a run, those that differ from the defaults first."""
    return [(name, cut(report.config[full], TEXT_CHARS)) for name, full in _shown_settings(report)]


def _shown_settings(report: RunReport) -> list[tuple[str, str]]:
    """Return the shown and the full names of these settings."""
    changed = set(report.changed)
    names = sorted(report.config, key=lambda name: (name not in changed, name))
    return [(cut(name, NAME_CHARS), name) for name in names[:MOST_SETTINGS]]


def _normal(text: str) -> str:
    """Return JSON as JavaScript writes it, because the live page compares what is left of it."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _configuration(report: RunReport) -> Html:
    if not report.config:
        return Html("")
    rows = settings(report)
    changed = min(len(report.changed), len(rows))
    left = len(report.config) - len(rows)
    return joined(
        table("Settings that differ from the defaults", ["setting", "value"], rows[:changed]),
        tag(
            "details",
            {},
            tag("summary", {}, "settings that are defaults"),
            table("Defaults", ["setting", "value"], rows[changed:]),
        ),
        tag("p", {"class": "dim"}, f"{number(left)} more settings are left out.") if left else None,
        tag("p", {"class": "dim"}, "Secrets are masked. docs/settings.md explains the settings."),
    )


def versions(report: RunReport) -> Html:
    """Return the software and the machine that served a run."""
    if not report.provenance:
        return Html("")
    last = report.provenance[-1]
    gpus = ", ".join(last.gpus[:16]) or "none that NVML lists"
    rows: list[list[str]] = [
        ["machine of the server", cut(last.platform, TEXT_CHARS)],
        ["CPU cores", number(last.cpus)],
        ["memory", f"{last.memory_bytes / 2**30:.1f} GiB"],
        ["GPUs", cut(gpus, TEXT_CHARS)],
        ["Python", last.python],
        *([name, version] for name, version in list(last.packages.items())[:60]),
    ]
    for name, packages in list(last.environments.items())[:10]:
        listed = ", ".join(f"{package} {version}" for package, version in packages.items())
        rows.append([f"environment {name}", cut(listed, 2 * TEXT_CHARS)])
    earlier = list(report.provenance[:-1])[-10:]
    return joined(
        table(
            f"Since the server was started at {clock(last.at)}",
            ["", "version"],
            [[cut(name, NAME_CHARS), cut(value, 2 * TEXT_CHARS)] for name, value in rows],
        ),
        tag(
            "p",
            {"class": "dim"},
            "Before, it was served with other software or on another machine: "
            + "; ".join(f"since {clock(one.at)} agentjet {one.agentjet}" for one in earlier)
            + ".",
        )
        if earlier
        else None,
    )
