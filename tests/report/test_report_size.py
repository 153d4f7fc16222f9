"""The size of a report is bounded, whatever a run contains."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ajet_cli.charts import PHASES
from ajet_cli.report.evaluations import measured
from ajet_cli.report.past_findings import PastFinding
from ajet_cli.report.reading import POINTS, RunReport
from ajet_cli.report.run_curves import REPORT_CHARTS
from ajet_cli.report.run_page import run_page
from ajet_cli.report.samples import ShownEpisode, StepSample
from ajet_cli.report.survey import EpisodeSurvey
from ajet_core.interfaces import RunRecord
from ajet_core.protocol import EvaluationConfig
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.page.conversation import ConversationLimits, conversation
from ajet_server.page.episode_rows import episode_row
from ajet_server.page.history import StepTable
from ajet_server.page.models import Ending, EpisodeOutput, StepsQuery
from ajet_server.store.evaluation_counts import EvaluationCount
from ajet_testing.suites.samples import make_episode

pytestmark = pytest.mark.processes

# Each of these characters takes six in HTML.
LONG = '\x00"' * 50_000
MOST_BYTES = 8 * 2**20


def _steps() -> StepTable:
    table = StepTable()
    names = [name for _, names, _ in REPORT_CHARTS for name in names] + list(PHASES)
    names += [f"reward_mean/{i}{LONG[:500]}" for i in range(50)]
    for step in range(1, 3001):
        table.add(step, 1e9 + step, dict.fromkeys(names, 1 / 3 + step * 1.7))
    return table


def _calls() -> list[Call]:
    message = PlacedMessage(0, 1, MessageText(LONG, LONG, LONG, LONG, LONG))
    return [
        Call(
            call_id=f"c{i}",
            episode_id="ep",
            index=i,
            suffix_ids=[1],
            sampled_ids=[2],
            logprobs=[-1.0],
            policy_versions=[0],
            temperature=1.0,
            finish_reason="stop",
            agent=LONG,
            messages=(message,) * 50,
            answer=message.text,
        )
        for i in range(30)
    ]


@pytest.mark.slow
def test_the_largest_report_takes_less_than_8_mib() -> None:
    limits = ConversationLimits(calls=12, chars=1500, total_chars=16_000)
    record = replace(
        make_episode("ep"), task_id=LONG, state="ended", reward=1.0, components={LONG: 0.5}
    )
    shown = ShownEpisode(
        "ep", conversation(record, _calls()[:1], limits), conversation(record, _calls(), limits)
    )
    output = EpisodeOutput(calls=1, tokens=3, ending=LONG[:200], repeats=0.5, cut_off=0)
    rows = [episode_row(record, output)] * 100
    endings = [Ending(text=LONG[:200], episodes=2, reward=0.5)] * 10
    findings = [PastFinding("cut_off", LONG, 1, 2)] * 500
    survey = EpisodeSurvey(1.0)
    for cause in range(40):
        survey.add(replace(record, state="aborted", reason=LONG, cause=f"cause-{cause}"))  # type: ignore[arg-type]
    counts = [
        EvaluationCount("c", f"{tag}{LONG[:200]}", step, "t", 2, 1, 0, 1.0, 0)
        for tag, step in itertools.product(range(20), range(300))
    ]
    report = RunReport(
        LONG[:200],
        run=RunRecord("run-1", "", 1e9, paused=LONG),
        curves=_steps().curves(StepsQuery(points=POINTS)),
        config={
            **dict.fromkeys(("model.path", "algorithm.advantage", "trainer.name"), LONG),
            "algorithm.learning_rate": "1",
            "engine.name": LONG,
            **{f"engine.settings.{i}{LONG}": LONG for i in range(600)},
        },
        findings=findings,
        other_findings=findings,
        evaluations=measured(counts, EvaluationConfig(pass_at=[1, 2])),
        survey=survey,
        best=[shown] * 3,
        worst=[replace(shown, episode_id="other")] * 3,
        samples=[StepSample(1, rows, endings), StepSample(9, rows, endings)],
        problems=[LONG] * 100,
    )
    assert len(run_page(report).encode()) < MOST_BYTES
