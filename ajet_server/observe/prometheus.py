"""Write the status of a server in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from ajet_core.protocol import ServerState, ServerStatus

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Values of `ServerStatus.counters` that only increase; engines count from their start.
_COUNTED = {
    "episodes": "Episodes that were claimed.",
    "episodes_ended": "Episodes that ended with a reward.",
    "joint_ended": "Parts of joint episodes that ended.",
    "joint_aborted": "Parts of joint episodes that were aborted.",
    "calls": "Model calls.",
    "tokens_raw": "Prompt and sampled tokens of all calls.",
    "tokens_sampled": "Sampled tokens.",
    "engine_prompt_tokens": "Prompt tokens of the engine's requests since it started.",
    "engine_cached_tokens": "Prompt tokens that the engine read from its cache.",
    "engine_sampled_tokens": "Tokens that the engine sampled since it started.",
    "engine_forward_seconds": "Wall time of the engine's forward passes since it started.",
}
_ABORTED = "aborted_"


def exposition(status: ServerStatus) -> bytes:
    """Return `status` as the response to a scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneStatus(status))
    return generate_latest(registry)


@dataclass(frozen=True, slots=True, eq=False)
class _OneStatus(Collector):
    status: ServerStatus

    def collect(self) -> Iterable[Metric]:
        """Return the metric families of the status."""
        return families(self.status)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the families depend on the status."""
        return ()


def families(status: ServerStatus) -> Iterator[Metric]:
    """Yield the metric families of a status."""
    yield from _server(status)
    yield from _totals(status)
    yield from _steps(status)
    yield from _mixture(status)
    yield from _spending(status)
    yield from _evaluations(status)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ajet_{name}", text, value=value)


def _server(status: ServerStatus) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "ajet_state", "1 for the current state of the server.", labels=["state"]
    )
    for state in ServerState:
        states.add_metric([state.value], float(state is status.state))
    yield states
    yield _gauge("uptime_seconds", "Seconds since the server started.", status.uptime_seconds)
    yield _gauge("step", "Number of steps that the current weights have been trained.", status.step)
    yield _gauge("policy_version", "Version of the served weights.", status.policy_version)
    findings = GaugeMetricFamily(
        "ajet_finding_seconds",
        "For how many seconds a finding has existed; stuck findings stop progress.",
        labels=["code", "stuck"],
    )
    for finding in status.findings:
        findings.add_metric([finding.code, str(finding.stuck).lower()], finding.seconds)
    yield findings
    if (batch := status.batch) is not None:
        yield _gauge("batch_needed", "Number of slots in a batch.", batch.needed)
        yield _gauge("batch_ready", "Number of complete slots.", batch.ready)
        yield _gauge("tasks_quarantined", "Number of quarantined tasks.", batch.quarantined)
    if (rollout := status.rollout) is not None:
        training = float(rollout.training_step is not None)
        yield _gauge("training", "1 while a step is trained or published.", training)
        yield _gauge(
            "max_staleness", "Limit of the staleness of trained tokens.", rollout.max_staleness
        )


def _totals(status: ServerStatus) -> Iterator[Metric]:
    counters = status.counters
    for name, text in _COUNTED.items():
        if name in counters:
            yield CounterMetricFamily(f"ajet_{name}", text, value=counters[name])
    aborted = CounterMetricFamily(
        "ajet_episodes_aborted", "Episodes that were aborted.", labels=["cause"]
    )
    for name, value in counters.items():
        if name.startswith(_ABORTED):
            aborted.add_metric([name.removeprefix(_ABORTED)], value)
    yield aborted
    for name, text in (
        ("open_episodes", "Number of open episodes."),
        ("prepared_episodes", "Number of parts of joint episodes that wait for their arbiter."),
        ("waiting_claims", "Number of claims that wait for a slot."),
        ("gateway_processes", "Number of gateway processes that are connected."),
        ("episode_limit", "The most episodes that may be open."),
        ("tokens_missed", "Share of tokens that the engine computed again for an episode."),
    ):
        if name in counters:
            yield _gauge(name, text, counters[name])


def _steps(status: ServerStatus) -> Iterator[Metric]:
    if status.last_step is None:
        return
    step = GaugeMetricFamily(
        "ajet_last_step", "Metrics of the last step, named as in its summary.", labels=["metric"]
    )
    for name, value in sorted(status.last_step.metrics.items()):
        step.add_metric([_label(name)], value)
    yield step


def _spending(status: ServerStatus) -> Iterator[Metric]:
    if (spending := status.spending) is None:
        return
    for name, text, by_phase in (
        ("phase_seconds", "Time that the run has spent in a phase.", spending.seconds),
        ("device_hours", "Hours of a phase times devices.", spending.device_hours),
    ):
        family = CounterMetricFamily(f"ajet_{name}", text, labels=["phase"])
        for phase, value in by_phase.items():
            family.add_metric([phase], value)
        yield family
    yield CounterMetricFamily("ajet_cost_usd", "Cost of all that has a price.", value=spending.usd)
    tokens = CounterMetricFamily(
        "ajet_paid_tokens",
        "Tokens of paid models that clients reported.",
        labels=["source", "model", "kind"],
    )
    paid = CounterMetricFamily(
        "ajet_paid_usd", "Cost that clients reported.", labels=["source", "model"]
    )
    for use in spending.paid:
        of = [_label(use.source), _label(use.model)]
        if use.usd is not None:
            paid.add_metric(of, use.usd)
        if use.model:
            tokens.add_metric([*of, "input"], use.input_tokens)
            tokens.add_metric([*of, "output"], use.output_tokens)
    yield from (tokens, paid)
    budget = GaugeMetricFamily("ajet_budget", "What the run may spend.", labels=["unit"])
    for unit, limit in spending.budget.model_dump().items():
        if limit is not None:
            budget.add_metric([unit], limit)
    yield budget
    if (left := spending.time_left) is not None:
        estimate = GaugeMetricFamily(
            "ajet_seconds_left",
            "Estimate of the time that the remaining steps take, and an interval of 90 %.",
            labels=["bound"],
        )
        for bound in ("seconds", "low", "high"):
            if (value := getattr(left, bound)) is not None:
                estimate.add_metric(["estimate" if bound == "seconds" else bound], value)
        yield estimate


def _mixture(status: ServerStatus) -> Iterator[Metric]:
    if status.mixture is None:
        return
    for field, text in (
        ("ratio", "Share of a tag in the mixture."),
        ("slots", "Number of slots of a tag in the batch."),
        ("ready", "Number of complete slots of a tag."),
        ("under_way", "Number of started slots of a tag that are not complete."),
        ("blocked", "1 for a tag that no client is working on."),
    ):
        family = GaugeMetricFamily(f"ajet_mixture_{field}", text, labels=["tag"])
        for tag, progress in status.mixture.items():
            family.add_metric([_label(tag)], float(getattr(progress, field)))
        yield family


def _evaluations(status: ServerStatus) -> Iterator[Metric]:
    labels = ["client", "tag"]
    passed = GaugeMetricFamily(
        "ajet_evaluation_pass_at", "pass@k of a task set at its last step.", labels=[*labels, "k"]
    )
    reward = GaugeMetricFamily(
        "ajet_evaluation_reward_mean", "Mean reward of a task set at its last step.", labels=labels
    )
    step = GaugeMetricFamily("ajet_evaluation_step", "That step.", labels=labels)
    for evaluation in status.evaluations:
        of = [_label(evaluation.client_id), _label(evaluation.tag)]
        step.add_metric(of, evaluation.step)
        if evaluation.reward_mean is not None:
            reward.add_metric(of, evaluation.reward_mean)
        for k, value in evaluation.pass_at.items():
            passed.add_metric([*of, str(k)], value)
    yield from (passed, reward, step)


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def _label(text: str) -> str:
    """Return a name given by a client as one line."""
    return _UNPRINTABLE.sub("?", text)
