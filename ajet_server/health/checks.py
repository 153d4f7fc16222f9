"""Health checks: each is a pure function of the metrics of a run's steps and of its limits.

A reading has a *level*: 1 means the measured value is at its limit, more means it is beyond it. A
finding starts at level 1 or above and ends when the level falls below `CLEAR`. In between, an
existing finding stays and no new one starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from ajet_core.protocol import FailureConfig, HealthKind
from ajet_server.health import series
from ajet_server.health.past import Past

CLEAR = 0.5

History = Sequence[Mapping[str, float]]
"""Metrics of consecutive steps by name, the newest last."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of a check's measurement.

    :param level: 1 if the measured value is at its limit, more if it is beyond it.
    :param cause: a description of what was measured.
    :param pauses: whether it is severe enough to pause a run.
    :param span: as `Check.span`; the larger of the two applies.
    :param way_out: what to do for this cause, in place of `Check.way_out`; "" for that.
    """

    level: float
    cause: str
    pauses: bool = True
    span: int = 1
    way_out: str = ""


Measure = Callable[[History, FailureConfig], Reading | str]
"""Returns a reading of the newest step, or why there is none."""


@dataclass(frozen=True, slots=True)
class Check:
    """A kind of finding and how it is made.

    :param limits: fields of `FailureConfig`; if all are None, the check is off.
    :param before: whether the check needs only the batch and can therefore run before the batch is
        trained.
    :param span: number of steps that one reading covers; the trouble may have begun at the first of
        them.
    :param of_answers: whether the check judges the weights from before the step, usually by answers
        that they sampled; a finding then makes those weights suspect, too.
    :param by_tag: whether each tag of a mixture is judged separately: a mean over all tags would
        change with the mixture.
    :param way_out: what to do.
    """

    kind: HealthKind
    limits: tuple[str, ...]
    measure: Measure
    way_out: str
    before: bool = False
    span: int = 1
    of_answers: bool = False
    by_tag: bool = False

    def read(self, past: Past, limits: FailureConfig) -> Reading | str:
        """Measure the newest step so that changes of the mixture do not affect the result."""
        tags = past.by_tag if self.by_tag else {}
        if not tags:
            # The limits of checks of whole batches fit any mixture. Other checks may compare steps.
            any_mixture = self.before and not self.by_tag
            return self.measure(past.steps if any_mixture else past.of_like_tags, limits)
        highest: Reading | None = None
        why = ""
        for tag, known in tags.items():
            reading = self.measure([metrics for _, metrics in known], limits)
            if isinstance(reading, str):
                why = why or reading
            elif highest is None or reading.level > highest.level:
                # Steps between the tag's steps may have none of its tasks.
                first, _ = known[-self.span :][0]
                highest = replace(
                    reading, cause=f"tag {tag}: {reading.cause}", span=len(past) - first
                )
        return highest or why

    def is_off(self, limits: FailureConfig) -> bool:
        """Return whether the run turns the check off."""
        return all(getattr(limits, name) is None for name in self.limits)


def zero_signal(history: History, limits: FailureConfig) -> Reading | str:
    """Measure batches in a row without any advantage."""
    assert limits.zero_signal_steps is not None
    flags = series.values(history, "no_signal")
    silent = 0
    while silent < len(flags) and flags[-1 - silent]:
        silent += 1
    which = "the batch has" if silent == 1 else f"{silent} batches in a row have"
    newest = history[-1]
    equal = "within each task all rewards are equal"
    if newest.get("reward_std") == 0 and "reward_mean" in newest:
        equal = f"all rewards of the last one are {newest['reward_mean']:.3g}"
    way_out = ""
    if "tasks_alike" in newest and newest.get("tasks"):
        # Different troubles: the sampling, the reward and the tasks, or the weights.
        if newest["tasks_alike"] == newest["tasks"]:
            equal += (
                ", because all answers to each task are identical: the sampling is greedy, or the "
                "policy has become deterministic"
            )
            way_out = _SAMPLE
        else:
            equal += ", although the answers differ"
            way_out = _OTHER_REWARDS
            before = series.values(history[: len(history) - silent], "reward_mean")
            if before and newest.get("reward_mean", 0.0) < min(before):
                equal += f"; in the batches before, the mean reward was at least {min(before):.3g}"
                way_out = f"if tasks and rewards are unchanged, {_GO_BACK}; else {_OTHER_REWARDS}"
    cause = f"{which} no signal: {equal}"
    if solved := series.solved(history):
        cause += ". The mean reward is close to the best so far, so little is left to learn"
    level = silent / limits.zero_signal_steps
    return Reading(level, cause, pauses=not solved, span=max(1, silent), way_out=way_out)


def equal_rewards(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of tasks with equal rewards in several batches in a row."""
    assert limits.max_equal_rewards is not None
    shares = series.ratios(history, "tasks_equal", "tasks")[-_SPAN:]
    if len(shares) < _SPAN:
        return series.too_few(len(shares), _SPAN)
    share = min(shares)
    if series.solved(history) or share == 1:
        # Nothing is left to learn, or there is no signal at all, which `zero_signal` finds.
        share = 0.0
    cause = f"all rewards are equal in {_percent(share)} of the tasks of the last {_SPAN} batches"
    return Reading(share / limits.max_equal_rewards, cause)


def cut_off(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of responses that were cut off, also those of aborted episodes."""
    assert limits.max_cut_off is not None
    answers = [
        {
            "cut_off": metrics["calls_cut_off"] + metrics.get("calls_lost_cut_off", 0.0),
            "all": metrics["calls"] + metrics.get("calls_lost", 0.0),
        }
        for metrics in history
        if "calls_cut_off" in metrics and "calls" in metrics
    ]
    shares = series.ratios(answers, "cut_off", "all")
    if not shares:
        return "no step has measured it"
    cause = (
        f"{_percent(shares[-1])} of the answers were cut off by max_tokens or the context length"
    )
    way_out = ""
    # As in `malformed`: a single early step may be chance.
    if len(shares) > _SPAN and shares[-1] >= 2 * (first := median(shares[:_PAST])):
        cause += f"; in the first steps, it was {_percent(first)}"
        way_out = (
            "the model may have unlearnt to end its answers: if the agent is unchanged, "
            f"{_GO_BACK}; otherwise raise max_tokens of its calls or model.max_context"
        )
    return Reading(shares[-1] / limits.max_cut_off, cause, way_out=way_out)


def trimmed(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of sampled tokens that are not trained."""
    assert limits.max_trimmed is not None
    newest = history[-1]
    if not {"tokens_dropped", "tokens_stale", "tokens_sampled"} <= newest.keys():
        return "the last step did not measure it"
    dropped, too_old, sampled = (
        newest[name] for name in ("tokens_dropped", "tokens_stale", "tokens_sampled")
    )
    share = (dropped + too_old) / sampled if sampled > 0 else 0.0
    cause = (
        f"{_percent(share)} of the sampled tokens are not trained on: {dropped:.0f} exceed the "
        f"limits in `timelines`, and {too_old:.0f} were sampled by weights that are too old"
    )
    return Reading(share / limits.max_trimmed, cause)


def malformed(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of responses with a tool call that cannot be parsed."""
    assert limits.max_malformed is not None
    shares = series.ratios(history, "calls_malformed", "calls")
    if not shares:
        return "no step has measured it"
    cause = f"{_percent(shares[-1])} of the answers contain a tool call that cannot be parsed"
    # Do not pause for a model that has yet to learn the format.
    lost = len(shares) > _SPAN and shares[-1] >= 2 * median(shares[:_PAST])
    return Reading(shares[-1] / limits.max_malformed, cause, pauses=lost)


def stale(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of episodes that are left out because they are too old."""
    assert limits.max_stale is not None
    newest = history[-1]
    if not {"episodes_stale", "episodes"} <= newest.keys():
        return "the last step did not measure it"
    too_old = newest["episodes_stale"]
    share = too_old / (too_old + newest["episodes"]) if too_old > 0 else 0.0
    cause = (
        f"{_percent(share)} of the episodes are not trained on, because they were sampled by "
        "weights that are too old"
    )
    return Reading(share / limits.max_stale, cause)


def advantage_bias(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the mean advantage of a trained token, relative to its mean absolute value."""
    assert limits.max_advantage_bias is not None
    biases = series.values(history, "advantage_bias")[-_SPAN:]
    if len(biases) < _SPAN:
        return series.too_few(len(biases), _SPAN)
    mean = fmean(biases)
    sign = "negative" if mean < 0 else "positive"
    cause = (
        f"in the last {_SPAN} batches, on average {_percent((1 + abs(mean)) / 2)} of the total "
        f"absolute advantage is on tokens with {sign} advantage (advantage_bias {mean:.2f})"
    )
    return Reading(abs(mean) / limits.max_advantage_bias, cause)


def logprob_gap(history: History, limits: FailureConfig) -> Reading | str:
    """Measure how far the engine's logprobs are from the trainer's."""
    gaps = series.values(history, "logprob_gap_mean")
    if not gaps:
        return "the trainer reports no logprob_gap_mean"
    gap, most, growth = gaps[-1], limits.max_logprob_gap, limits.max_logprob_gap_growth
    level = gap / most if most is not None else 0.0
    cause = f"the engine's logprobs differ from the trainer's by {gap:.3g} nats per token"
    return _or_growth(Reading(level, cause), gaps, growth, _SMALL_GAP)


def kl(history: History, limits: FailureConfig) -> Reading | str:
    """Measure growth or collapse of the KL divergence to the reference model."""
    assert limits.max_kl_growth is not None
    values = series.values(history, "kl")
    if not values:
        return "the trainer reports no kl (algorithm.kl_coef is 0)"
    change = series.change(values)
    if change is None:
        return series.too_few(len(values), series.ENOUGH)
    limit = limits.max_kl_growth
    cause = (
        f"the KL divergence from the reference is {change.newest:.3g} nats; before, it was "
        f"{change.before:.3g}, and in the first steps {change.first:.3g}"
    )
    # A KL divergence near 0 means that the weights are the reference's again: the trained weights
    # were lost.
    level = max(change.growth(limit, _SMALL_KL), change.fall(limit, _NO_KL))
    return Reading(level, cause)


def entropy(history: History, limits: FailureConfig) -> Reading | str:
    """Measure growth or collapse of the entropy of all answers, estimated from their logprobs."""
    values = series.values(history, "sampled_entropy")
    if not values:
        return "no step has measured it"
    least, growth = limits.min_entropy, limits.max_entropy_growth
    level, cause = 0.0, f"the entropy of the answers is {values[-1]:.3g} nats per token"
    # Once the tasks are solved, the model may be certain of every answer. Then most of them have
    # equal rewards.
    equal = series.ratios(history, "tasks_equal", "tasks")[-_SPAN:]
    over = series.solved(history) and fmean(equal or [0.0]) >= _MOST
    if least is not None and len(values) >= _SPAN and not over:
        level = least / max(median(values[-_SPAN:]), least / 100)
    change = series.change(values)
    if growth is not None and change is not None and not over:
        # Entropy falls as the model learns, but not as fast as when sampling becomes greedy.
        usual = max(change.before, change.recent)
        fallen = usual / max(change.now, _NO_ENTROPY) / growth**2
        if fallen >= max(level, 1.0):
            cause = f"{cause}; before, it was {usual:.3g}"
        level = max(level, fallen)
    return _or_growth(Reading(level, cause), values, growth, _SMALL_ENTROPY)


def length(history: History, limits: FailureConfig) -> Reading | str:
    """Measure growth or collapse of the tokens per response."""
    assert limits.max_length_growth is not None
    lengths = series.values(history, "tokens_per_call")
    change = series.change(lengths)
    if change is None:
        return series.too_few(len(lengths), series.ENOUGH)
    limit = limits.max_length_growth
    level = max(change.growth(limit, _SMALL_LENGTH), change.fall(limit, _SMALL_LENGTH))
    cause = (
        f"answers have {change.now:.0f} tokens on average; before, they had {change.before:.0f}, "
        f"and in the first steps {change.first:.0f}"
    )
    return Reading(level, cause)


def grad_norm(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the second highest gradient norm of the last steps, relative to those before.

    A single rare answer can give one step a large gradient. `AlgorithmConfig.max_grad_norm` bounds
    its effect.
    """
    assert limits.max_grad_growth is not None
    norms = [norm for norm in series.values(history, "grad_norm") if norm > 0]
    if not history[-1].get("grad_norm"):
        return "the last step had no gradient, or its trainer reports no grad_norm"
    before, last = norms[:-_SPAN], norms[-_SPAN:]
    if len(before) < series.ENOUGH:
        return series.too_few(len(norms), series.ENOUGH + _SPAN)
    usual = max(median(before[-series.WINDOW :]), median(before))
    twice = sorted(last)[-2]
    cause = (
        f"the gradient norm was at least {twice:.3g} in two of the last {_SPAN} steps; in the "
        f"steps before, it was {usual:.3g}"
    )
    return Reading(twice / usual / limits.max_grad_growth, cause)


def shortened(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of shortened optimiser updates in several steps in a row."""
    assert limits.max_shortened is not None
    shares = series.ratios(history, "updates_shortened", "updates")[-_STEADY:]
    if not shares:
        return "the trainer reports no updates_shortened: it never shortens updates"
    if len(shares) < _STEADY:
        return series.too_few(len(shares), _STEADY)
    cause = (
        f"at least {_percent(min(shares))} of the updates in each of the last {_STEADY} "
        "steps were shortened, because they moved the policy by more than "
        "algorithm.max_update_kl (0.01 nats per token if it is null)"
    )
    if rates := series.values(history, "learning_rate"):
        cause += f"; the learning rate is {rates[-1]:.3g}"
    return Reading(min(shares) / limits.max_shortened, cause)


def reward_drop(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the fall of the mean reward from the best so far."""
    assert limits.max_reward_drop is not None
    trend = series.reward_trend(history)
    if trend is None:
        return series.too_few(len(series.values(history, "reward_mean")), series.ENOUGH)
    fallen = trend.best - trend.now
    # A fall within the sampling noise of the mean does not count.
    level = min(
        fallen / (limits.max_reward_drop * trend.height) if trend.height else 0.0,
        fallen / (_NOISE * trend.noise) if trend.noise else float(fallen > 0),
    )
    cause = f"the mean reward fell from {trend.best:.3g} to {trend.now:.3g}"
    return Reading(max(0.0, level), cause)


def reward_mismatch(history: History, limits: FailureConfig) -> Reading | str:
    """Measure batches in a row whose rewards follow the length of episodes, not their success.

    It also measures whether success falls while the mean reward rises.
    """
    steps = limits.reward_mismatch_steps
    assert steps is not None
    known = [metrics for metrics in history if _SUCCESS in metrics]
    if not known:
        return "no episode reports the component success, a number from 0 to 1"
    # In the other batches, all rewards or all successes are the same.
    measured = [metrics for metrics in known if {_OF_SUCCESS, _OF_LENGTH} <= metrics.keys()]
    closely, loosely = (_following_length(measured, least) for least in (_CLOSELY, _LOOSELY))
    newest = measured[-1] if measured else {}
    cause = (
        f"in the last {loosely} batches, rewards follow the length of episodes (correlation "
        f"{newest.get(_OF_LENGTH, 0.0):.2f}) and not their component success (correlation "
        f"{newest.get(_OF_SUCCESS, 0.0):.2f}, mean success {known[-1][_SUCCESS]:.3g})"
    )
    # A batch in which most episodes are as long as they can be does not end the finding.
    level = max(closely / steps, CLEAR * min(1.0, loosely / steps))
    reading = Reading(level, cause, span=max(1, loosely))
    recent = known[-series.WINDOW :]
    half = len(recent) // 2
    if half < steps:
        return reading
    rewards, successes = (
        _shift([metrics[name] for metrics in recent], half) for name in ("reward_mean", _SUCCESS)
    )
    level = min(rewards.level, -successes.level)
    if level <= reading.level:
        return reading
    cause = (
        f"in the last {2 * half} batches, the mean reward rose from {rewards.before:.3g} to "
        f"{rewards.now:.3g}, but the component success fell from {successes.before:.3g} to "
        f"{successes.now:.3g}"
    )
    return Reading(level, cause, span=half)


def _following_length(measured: History, least: float) -> int:
    """Count the newest batches in a row whose rewards follow the length and not the success."""
    row = 0
    for metrics in reversed(measured):
        if metrics[_OF_SUCCESS] > 0 or metrics[_OF_LENGTH] < least:
            break
        row += 1
    return row


@dataclass(frozen=True, slots=True)
class _Shift:
    """The means of two halves of a series.

    :param level: their difference, 1 if it is just larger than the noise.
    """

    before: float
    now: float
    level: float


def _shift(values: Sequence[float], half: int) -> _Shift:
    """Compare the last `half` values with those before them."""
    before, now = values[-2 * half : -half], values[-half:]
    difference = fmean(now) - fmean(before)
    noise = math.hypot(stdev(before), stdev(now)) / math.sqrt(half)
    # Two means of equal steps differ by any difference.
    least = max(_NOISE * noise, _TINY * max(abs(fmean(before)), abs(fmean(now))))
    return _Shift(fmean(before), fmean(now), difference / least if least else 0.0)


def tools_alike(history: History, limits: FailureConfig) -> Reading | str:
    """Measure the share of tool answers that are errors or have the most frequent text."""
    assert limits.max_tools_alike is not None
    recent = [m for m in history if m.get("tool_answers")][-_SPAN:]
    if not recent:
        return "no episode has an answer of a tool"
    answers = sum(metrics["tool_answers"] for metrics in recent)
    if answers < _ANSWERS:
        return f"{answers:.0f} answers of tools are too few to judge ({_ANSWERS} are needed)"
    share = sum(metrics["tool_answers_alike"] for metrics in recent) / answers
    cause = (
        f"{_percent(share)} of the tools' answers in the last batches begin with an error, or have "
        "the same text"
    )
    return Reading(share / limits.max_tools_alike, cause)


# Steps averaged (mean or median) for values that fluctuate.
_SPAN = 3
# Consecutive steps that must all show a symptom that a single step can show by chance.
_STEADY = 5
# Steps at the start of a run that define its initial state.
_PAST = 20
# Values below these, in nats, count as equal to them, so that small differences are ignored.
_SMALL_GAP = 0.01
_SMALL_KL = 0.1
_NO_KL = 0.001
_SMALL_ENTROPY = 0.2
_NO_ENTROPY = 0.001
# The share of tasks with equal rewards from which on they count as solved.
_MOST = 0.5
# Every answer has at least one token: its end token.
_SMALL_LENGTH = 1.0
# Sampling noise of a mean reward rarely exceeds this many standard errors.
_NOISE = 5.0
_SUCCESS = "component_mean/success"
_OF_SUCCESS, _OF_LENGTH = "reward_success_correlation", "reward_length_correlation"
# From this correlation on, rewards follow the length, and from this one on they still may.
_CLOSELY, _LOOSELY = 0.9, 0.5
# Differences below this share of a value are those of rounding.
_TINY = 1e-6
# Fewer answers of tools are alike by chance.
_ANSWERS = 20


def _or_growth(
    reading: Reading, values: Sequence[float], limit: float | None, least: float
) -> Reading:
    """Return `reading`, or the growth of the series `values` if that is worse.

    :param limit: of the growth; None turns it off.
    :param least: as for `series.Change.growth`.
    """
    change = series.change(values)
    if limit is None or change is None:
        return reading
    grown = change.growth(limit, least)
    if grown <= reading.level:
        return reading
    before = f"before, it was {change.before:.3g}, and in the first steps {change.first:.3g}"
    return Reading(grown, f"{reading.cause}; {before}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


_GO_BACK = "go back to an earlier checkpoint and lower algorithm.learning_rate"
_SAMPLE = "set a sampling temperature above 0 (rollout.sampling, or sampling= of trainable)"
_OTHER_REWARDS = "check the reward function, or choose easier or harder tasks"

CHECKS: Sequence[Check] = (
    Check(
        "logprob_gap",
        ("max_logprob_gap", "max_logprob_gap_growth"),
        logprob_gap,
        "the engine may serve other weights or sample differently than recorded, or engine "
        "and trainer compute in different precision: compare their dtype, quantisation and "
        "versions",
    ),
    Check(
        "tools_alike",
        ("max_tools_alike",),
        tools_alike,
        "a tool that always fails or always answers the same teaches nothing; read the tool "
        "messages of an episode, and check the tool's server, arguments and key",
        before=True,
    ),
    Check(
        "reward_drop",
        ("max_reward_drop",),
        reward_drop,
        f"if tasks and rewards are unchanged, {_GO_BACK}",
        before=True,
        span=_SPAN,
        of_answers=True,
        by_tag=True,
    ),
    Check(
        "reward_mismatch",
        ("reward_mismatch_steps",),
        reward_mismatch,
        "the model learns what the reward pays for, which is not success: read the episodes with "
        "the highest reward, and pay for success more than for anything else",
    ),
    Check(
        "kl",
        ("max_kl_growth",),
        kl,
        f"{_GO_BACK}, or raise algorithm.kl_coef",
        span=_SPAN,
        of_answers=True,
    ),
    Check(
        "entropy",
        ("max_entropy_growth", "min_entropy"),
        entropy,
        f"{_GO_BACK}; raise algorithm.entropy_coef or clip_high if the entropy falls, and check "
        "that the sampling temperature is above 0",
        before=True,
        span=2,
        of_answers=True,
        by_tag=True,
    ),
    Check(
        "malformed",
        ("max_malformed",),
        malformed,
        "check that the renderer fits the model; if it did before, " + _GO_BACK,
        before=True,
        of_answers=True,
        by_tag=True,
    ),
    Check(
        "length",
        ("max_length_growth",),
        length,
        "check that answers end with a stop token and that rewards do not favour length; otherwise "
        + _GO_BACK,
        before=True,
        span=2,
        of_answers=True,
        by_tag=True,
    ),
    Check(
        "zero_signal",
        ("zero_signal_steps",),
        zero_signal,
        f"if the answers are identical, {_SAMPLE}; else {_OTHER_REWARDS}",
        before=True,
    ),
    Check(
        "grad_norm",
        ("max_grad_growth",),
        grad_norm,
        "inspect the steps' episodes (`ajet inspect`) and their rewards, or lower "
        "algorithm.learning_rate or max_grad_norm",
        span=_SPAN,
    ),
    Check(
        "shortened",
        ("max_shortened",),
        shortened,
        "the learning rate is too high for minibatches of this size: lower "
        "algorithm.learning_rate or minibatches, or add a warm-up (algorithm.warmup_steps)",
        span=_STEADY,
    ),
    Check(
        "advantage_bias",
        ("max_advantage_bias",),
        advantage_bias,
        "episodes with the other outcome are missing or much shorter: check what is left "
        "out of the batch (episodes_stale, calls_dropped), or set algorithm.aggregation to "
        "episode_mean",
        before=True,
        span=_SPAN,
    ),
    Check(
        "cut_off",
        ("max_cut_off",),
        cut_off,
        "raise max_tokens of the agent's calls or model.max_context; otherwise rewards may "
        "depend on length more than on content",
        before=True,
        of_answers=True,
    ),
    Check(
        "stale",
        ("max_stale",),
        stale,
        "raise rollout.max_staleness, or lower rollout.max_mean_staleness",
        before=True,
    ),
    Check(
        "trimmed",
        ("max_trimmed",),
        trimmed,
        "long episodes are missing, and the model learns only from the others: raise "
        "timelines.max_tokens or max_timelines, set timelines.over_long to separate, or "
        "raise rollout.max_staleness",
        before=True,
    ),
    Check(
        "equal_rewards",
        ("max_equal_rewards",),
        equal_rewards,
        "choose tasks that are neither too easy nor too hard, or set batch.full_by = "
        '"differing_tasks" to fill batches with other tasks',
        before=True,
        span=_SPAN,
    ),
)
"""All checks, the most severe first, and causes before what follows from them."""
