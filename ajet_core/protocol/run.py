"""The typed training configuration, the body of ``PUT /v1/run``.

It names components by their registered names, never by an import path.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from ajet_core.alike import with_hints
from ajet_core.protocol.base import AS_JSON_INTEGER, Message, Name
from ajet_core.protocol.spending import BudgetConfig

PositiveInt = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1), AS_JSON_INTEGER]
NonNegative = Annotated[float, Field(strict=True, ge=0)]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]
PassAt = Annotated[int, Field(ge=1, le=10_000)]


class LoraConfig(Message):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) instead of full-parameter training."""

    rank: PositiveInt = 16
    alpha: Annotated[float, Field(strict=True, gt=0)] = 32.0
    dropout: BelowOne = 0.0
    target_modules: tuple[Name, ...] | Literal["all-linear"] = "all-linear"


class ModelConfig(Message):
    """The model to serve and train.

    :param path: a Hugging Face model directory on the server, inside one of its model roots.
    :param name: the model id that ``/v1/models`` lists.
    :param renderer: turns messages into tokens: a name of the `renderers` library, or ``auto``.
    :param max_context: most tokens of a prompt and its completion; None is the model's own limit.
    """

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    name: Name = "default"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    renderer: Name = "auto"
    max_context: PositiveInt | None = None
    lora: LoraConfig | None = None


class ComponentChoice(Message):
    """A component by its registered name, with settings that its own settings type checks."""

    name: Name
    settings: dict[str, Any] = Field(default_factory=dict)


_PAPER_NAMES = {
    "grpo": "group_std",
    "dr_grpo": "group_mean",
    "rloo": "leave_one_out",
    "decoupled_ppo": "truncated",
    "tis": "truncated",
    "dynamic_sampling": "differing_tasks",
}
# Names from papers are accepted, and stored as ours (docs/papers.md).
_Paper = BeforeValidator(lambda name: _PAPER_NAMES.get(name, name) if type(name) is str else name)


class AlgorithmConfig(Message):
    """Policy-gradient settings in the vocabulary all trainers share.

    The default is GRPO (Shao et al. 2024, arXiv:2402.03300) with the clipped surrogate of PPO and a
    token mean; ``clip_high`` > ``clip_low`` is clip-higher (DAPO, arXiv:2503.14476);
    ``advantage="group_mean"`` leaves out the division by the standard deviation
    (Dr. GRPO, arXiv:2503.20783); ``"leave_one_out"`` is RLOO (arXiv:2402.14740).

    Of a token, *behaviour* is the probability it was sampled with, *old* that under the weights
    before the step, and *policy* that under the weights that are trained. With A the advantage, the
    surrogate that is maximised is, for each `importance`,

    - ``ratio``: ``min(r A, clip(r) A)`` with ``r = policy / behaviour``;
    - ``truncated``: ``min(old / behaviour, importance_cap) * min(r A, clip(r) A)`` with ``r =
      policy / old``. Its first factor is a constant without gradient. For rollouts of earlier
      weights: clipping bounds how far a step goes from where it begins, not from the weights that
      sampled. The decoupled objective (Hilton et al. 2021, arXiv:2110.00641; AReaL,
      arXiv:2505.24298) with truncated importance weights (IMPALA, Espeholt et al. 2018,
      arXiv:1802.01561; Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy
      RL Training"). The advantages of each task are balanced: they sum to 0 over its trained
      tokens, weighed as `aggregation` says, because with samples of earlier weights any rest is
      unlearnt or learnt blindly (`ajet_core.timeline.credit.balanced`).

    :param advantage: ``group_std``, ``group_mean``, ``leave_one_out``, or a plugin's estimator.
    :param advantage_settings: of the estimator, checked by its own settings type.
    :param call_credit: how rewards for single calls are credited: ``return_to_go``, the rewards of
        a call and of those after it, relative to the same call number of the other episodes of the
        group, without bias for any number of calls; ``process_supervision``, as in GRPO, which
        assumes that all episodes have the same number of calls (see `ajet_core.timeline.credit`).
    :param discount: discount per call of rewards for single calls.
    :param aggregation: the unit with equal weight in the loss of a minibatch: each sampled token
        (``token_mean``, as DAPO), each call (``call_mean``: mean over calls of their token means),
        each episode (``episode_mean``: mean over episodes of their token means, as GRPO), or each
        token again, but divided by the number of episodes instead of tokens (``episode_sum``, as
        Dr. GRPO up to a constant). Merging has no influence on any of them.
    :param clip_low: the ratio is clipped below 1 - clip_low.
    :param clip_high: the ratio is clipped above 1 + clip_high.
    :param importance: the weighting of tokens that other weights sampled, see above. ``auto`` is
        ``truncated`` in the mode ``async`` and ``ratio`` in ``sync``.
    :param importance_cap: ``truncated``: maximum weight of a token.
    :param kl_coef: weight of the KL divergence to the model at the start, estimated as k3
        (Schulman, "Approximating KL divergence").
    :param minibatches: parts that a batch is divided into, each with an optimiser step.
    :param epochs: passes over the batch.
    :param warmup_steps: steps over which the learning rate rises linearly.
    :param schedule: of the learning rate after the warm-up: ``constant``, or a fall (``linear``,
        ``cosine``) until step `schedule_steps`, whose rate later steps keep.
    :param max_grad_norm: gradients are clipped to this norm; 0 turns clipping off.
    :param max_update_rms: bounds how far a single update of AdamW moves the weights, in learning
        rates: with R the root mean square of ``gradient / sqrt(second moment)`` over all weights,
        an update is divided by ``max(1, R / max_update_rms)`` (StableAdamW, Wortsman et al. 2023,
        arXiv:2304.13013); 0 turns it off. Clipping the norm of gradients has no such effect,
        because Adam's update does not depend on their scale.
    :param max_update_kl: bounds how far a single update moves the policy, in nats a token: an
        update is shortened until ``(log p_after - log p_before)^2 / 2``, on average over trained
        tokens of its minibatch, is no more (the estimator k2 of the KL divergence, Schulman,
        "Approximating KL divergence"; a backtracking line search as TRPO's, arXiv:1502.05477). 0
        turns it off; None is 0.01, as in TRPO, with trainers that honour it, and 0 with others.
    :param token_budget: maximum tokens, padding included, of a pass; None lets the trainer choose.
    """

    advantage: Annotated[Name, _Paper] = "group_std"
    advantage_settings: dict[str, Any] = Field(default_factory=dict)
    call_credit: Literal["return_to_go", "process_supervision"] = "return_to_go"
    discount: Annotated[float, Field(strict=True, ge=0, le=1)] = 1.0
    aggregation: Literal["token_mean", "call_mean", "episode_mean", "episode_sum"] = "token_mean"
    clip_low: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(strict=True, gt=0)] = 0.2
    importance: Annotated[Literal["auto", "ratio", "truncated"], _Paper] = "auto"
    importance_cap: Annotated[float, Field(strict=True, gt=0)] = 2.0
    kl_coef: NonNegative = 0.0
    entropy_coef: NonNegative = 0.0
    minibatches: PositiveInt = 1
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(strict=True, gt=0)] = 1e-6
    warmup_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    schedule_steps: PositiveInt | None = None
    weight_decay: NonNegative = 0.0
    adam_betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    max_grad_norm: NonNegative = 1.0
    max_update_rms: NonNegative = 1.0
    max_update_kl: NonNegative | None = None
    token_budget: PositiveInt | None = None

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if (self.schedule == "constant") != (self.schedule_steps is None):
            raise ValueError("schedule_steps: linear and cosine schedules need it, others do not")
        if self.schedule_steps is not None and self.schedule_steps <= self.warmup_steps:
            raise ValueError("schedule_steps must be greater than warmup_steps")
        return self


class TimelineConfig(Message):
    """How the timelines that the merger makes of an episode's calls are trained.

    :param layout: how timelines are laid out for the trainer, see `ajet_core.timeline.layouts`;
        ``auto`` chooses the one that the trainer computes fastest. The result is the same.
    :param max_timelines: most timelines to train of an episode, by sampled tokens; None trains all.
    :param max_tokens: `over_long` applies to longer timelines; None allows any length.
    :param over_long: ``drop`` leaves the timeline out, ``truncate`` ends it with the last turn that
        fits, ``separate`` trains the later calls each as a sample of its own.
    """

    layout: Literal["auto", "separate", "linear", "tree", "group_tree"] = "auto"
    max_timelines: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    over_long: Literal["drop", "truncate", "separate"] = "truncate"


class BatchConfig(Message):
    """When a batch is full.

    :param full_by: ``tasks``: `tasks` tasks have `episodes_per_task` ended episodes each;
        ``episodes``: `tasks` x `episodes_per_task` episodes ended, of whatever tasks;
        ``differing_tasks``: as ``tasks``, but a task whose rewards are all equal does not count.
    :param max_aborts_per_task: a task with more failed episodes in one batch is given no more
        slots. Its ended episodes are trained if there are at least two. If none ended, the task is
        quarantined until the run is resumed or started again.
    """

    full_by: Annotated[Literal["tasks", "episodes", "differing_tasks"], _Paper] = "tasks"
    tasks: PositiveInt = 8
    episodes_per_task: PositiveInt = 8
    max_aborts_per_task: PositiveInt = 16

    @property
    def episodes(self) -> int:
        """Episodes of a full batch."""
        return self.tasks * self.episodes_per_task


SystemText = Annotated[str, Field(min_length=1, max_length=4096)]


class CallSampling(Message):
    """Sampling that overrides what requests ask for; None keeps it.

    :param temperature: 0 takes the most likely token.
    :param top_k: 0 is off.
    :param max_tokens: the most that an answer may have; agents may request fewer.
    """

    temperature: Annotated[float, Field(strict=True, ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(strict=True, ge=0, le=2**31 - 1), AS_JSON_INTEGER] | None = None
    max_tokens: PositiveInt | None = None


class AgentRule(Message):
    """What identifies the calls of an agent: all conditions that are set.

    :param system: regular expression that matches within a system message.
    :param model: the model that the request names.
    :param max_tokens: the request limits its answer to at most so many tokens.
    :param tools: whether the request offers tools.
    """

    system: re.Pattern[str] | None = None
    model: Name | None = None
    max_tokens: PositiveInt | None = None
    tools: Annotated[bool, Field(strict=True)] | None = None


class CallRules(Message):
    """Rules for the model calls of an episode. Those of a claim replace those of its run.

    :param sampling: for train episodes; `EvaluationConfig` has that of a run's evaluations.
    :param max_calls: most calls of the episode; further ones are refused for good.
    :param max_tokens: most tokens sampled for the episode: an answer ends there, and further calls
        are refused for good. Calls that run at the same time may together exceed it.
    :param allow_no_calls: the episode may end with a reward without a call to train, or although
        the server failed to answer its last call. Otherwise the server aborts it.
    :param agents: names of agents, each with a text that its system prompt contains, or a rule. The
        first match is the agent of a call without the header ``x-ajet-agent``. Those of a claim are
        tried before those of the run, and have no regular expressions.
    :param untrained_agents: agents whose calls are not trained, such as titles and summaries, in
        addition to those of the run.
    """

    sampling: CallSampling = CallSampling()
    max_calls: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    allow_no_calls: Annotated[bool, Field(strict=True)] | None = None
    agents: Annotated[dict[Name, SystemText | AgentRule], Field(max_length=256)] = Field(
        default_factory=dict
    )
    untrained_agents: Annotated[tuple[Name, ...], Field(max_length=256)] = ()


class RolloutConfig(CallRules):
    """The schedule of rolling out and training.

    A token's staleness is the number of steps that the weights which sampled it are behind those
    that are trained on it; 0 if they are the same.

    :param mode: ``sync``: no episode begins while a step is trained. The calls of open episodes
        wait meanwhile if engine and trainer share their weights. ``async``: rollouts never stop,
        and the weights change during them. Engine and trainer then have separate processes.
    :param max_staleness: of any trained token. A batch waits for the tasks that would be too old
        for the next one; an episode that is still too old is left out as a whole.
    :param max_mean_staleness: ``async``: mean staleness of trained tokens, which is the number of
        batches rolled out ahead of the one that fills. None, or more than `max_staleness`, means
        `max_staleness`. A higher value hides slower tools, and each step learns less.
    :param concurrency: the most open episodes; further claims wait. ``auto`` finds out how many fit
        into the engine's cache of keys and values.
    :param spare_tasks: ``sync``: tasks that may be rolled out in addition to those that fill a
        batch, so that the batch does not wait for the slowest.
    :param drain_seconds: ``sync``: how long a full batch waits for open episodes.
    :param late: the treatment of a task that has open episodes when its batch is made. ``carry``:
        it belongs to a later batch, with all its episodes. ``drop``: the server aborts the open
        episodes, in ``sync`` at once, in ``async`` when they are too old to be trained.
    :param late_seconds: ``carry``: how long a batch that is otherwise complete waits for tasks that
        would be too old for the next one. After this time their open episodes are aborted, and
        their ended episodes are trained.
    :param engine_sleeps: ``sync``: the engine frees device memory while a step is trained, for a
        trainer on the same device. Calls wait meanwhile.
    """

    mode: Literal["sync", "async"] = "sync"
    max_staleness: Annotated[int, Field(ge=0, le=256)] = 4
    max_mean_staleness: NonNegative | None = 1.0
    concurrency: PositiveInt | Literal["auto"] = "auto"
    spare_tasks: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    drain_seconds: Annotated[float, Field(strict=True, ge=0, le=86400)] = 0.0
    late: Literal["carry", "drop"] = "carry"
    late_seconds: Annotated[float, Field(strict=True, gt=0, le=86400)] = 600.0
    engine_sleeps: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.mode == "async":
            if self.max_staleness == 0 or self.max_mean_staleness == 0:
                raise ValueError(
                    "mode async needs max_staleness of at least 1 and max_mean_staleness "
                    "above 0: the next batch is sampled while a batch is trained, by "
                    "weights that are one step behind"
                )
            if self.engine_sleeps:
                raise ValueError(
                    "engine_sleeps is available in mode sync only: in mode async the engine is "
                    "always in use"
                )
            for name in ("spare_tasks", "drain_seconds"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} is available in mode sync only: mode async does not drain, "
                        "and max_staleness limits how far rollouts may be ahead"
                    )
        elif self.late == "carry" and self.max_staleness == 0:
            raise ValueError(
                "with max_staleness 0, nothing can be carried over to a later batch: set "
                "late to drop, or raise max_staleness"
            )
        return self


Ratios = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=256)],
        Annotated[float, Field(strict=True, ge=0, le=1)],
    ],
    Field(min_length=1, max_length=256),
]

_RATIO_ERROR = 1e-6


class MixtureStage(Message):
    """Ratios that apply from a step on.

    :param from_step: the first step (1-based) whose batch has them.
    """

    from_step: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1), AS_JSON_INTEGER]
    ratios: Ratios


class MixtureConfig(Message):
    """The shares of tags in a batch, also the body of ``PUT /v1/mixture``.

    Slots are divided batch by batch: the tasks of a batch, or its episodes if it is full by
    episodes. A batch waits for its slowest tag.

    :param ratios: by tag of the episodes; they sum to 1. Episodes of other tags are refused.
    :param schedule: ratios that replace these from certain steps on, in order.
    :param grace_seconds: if for this time no client has claimed a tag or waited for it, other tags
        get its slots until a client claims it.
    """

    ratios: Ratios
    schedule: Annotated[tuple[MixtureStage, ...], Field(max_length=1024)] = ()
    grace_seconds: Annotated[float, Field(strict=True, ge=0, le=86400)] = 30.0

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        stages = [("ratios", self.ratios)]
        stages += [(f"schedule from step {s.from_step}: ratios", s.ratios) for s in self.schedule]
        for name, ratios in stages:
            total = sum(ratios.values())
            if abs(total - 1) > _RATIO_ERROR:
                terms = " + ".join(f"{ratio:g}" for ratio in ratios.values()) or "nothing"
                raise ValueError(f"{name} must sum to 1; {terms} is {total:g}")
        steps = [stage.from_step for stage in self.schedule]
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError(f"the steps of the schedule must increase, but are {steps}")
        return self

    def at(self, step: int) -> Ratios:
        """The ratios of the batch of a step."""
        ratios = self.ratios
        for stage in self.schedule:
            if stage.from_step <= step:
                ratios = stage.ratios
        return ratios

    @property
    def tags(self) -> set[str]:
        """All tags of the ratios and the schedule."""
        return set(self.ratios).union(*(stage.ratios for stage in self.schedule))


HealthKind = Literal[
    "zero_signal",
    "equal_rewards",
    "cut_off",
    "malformed",
    "stale",
    "trimmed",
    "advantage_bias",
    "logprob_gap",
    "kl",
    "entropy",
    "length",
    "grad_norm",
    "shortened",
    "reward_drop",
    "reward_mismatch",
    "tools_alike",
]
"""What can be wrong with the training of a run, see docs/health.md."""

Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Growth = Annotated[float, Field(strict=True, gt=1)]


class FailureConfig(Message):
    """When a run pauses instead of training on bad data, and what counts as bad.

    The limits from `zero_signal_steps` on are those of findings about training; None turns one off.
    docs/health.md describes how each is measured.

    :param window: the number of latest train episodes, once there are so many, for `max_rate`.
    :param max_rate: share of them that may fail, by the agent's causes; 1 never pauses.
    :param max_refused: batches in a row that may be refused before the run pauses, or before
        the one client whose episodes they contain is quarantined.
    :param max_deaths: workers that may die of training one batch, before it is refused.
    :param zero_signal_steps: batches in a row in which no episode has an advantage.
    :param max_equal_rewards: share of a batch's tasks whose rewards are all equal.
    :param max_cut_off: share of answers that end at ``max_tokens`` or at the model's context.
    :param max_malformed: share of answers with a tool call that cannot be parsed.
    :param max_stale: share of a batch's episodes that are too old to be trained.
    :param max_trimmed: share of a batch's sampled tokens that are not trained, because of the
        limits of `TimelineConfig` or because they are too old.
    :param max_advantage_bias: the sum of the advantages of all trained tokens before they are
        balanced, over the sum of their absolute values.
    :param max_logprob_gap: mean absolute difference of the engine's and the trainer's, in nats.
    :param max_logprob_gap_growth: the same, relative to the steps before.
    :param max_kl_growth: KL divergence to the reference model, relative to the steps before.
    :param max_entropy_growth: entropy, relative to the steps before.
    :param min_entropy: nats per token.
    :param max_length_growth: tokens per answer, relative to the steps before, either way.
    :param max_grad_growth: second highest gradient norm of 3 steps, relative to those before.
    :param max_shortened: share of updates that ``algorithm.max_update_kl`` shortens.
    :param max_reward_drop: loss of reward, as a share of the range of mean rewards so far.
    :param reward_mismatch_steps: batches in a row in which rewards follow the length of episodes
        and not their component ``success``.
    :param max_tools_alike: share of the answers of tools that are errors or have the same text.
    :param pause_on: findings that pause the run, unless their limits are None.
    """

    window: Annotated[int, Field(ge=4, le=100_000)] = 32
    max_rate: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.8
    max_refused: PositiveInt = 3
    max_deaths: PositiveInt = 3
    zero_signal_steps: PositiveInt | None = 5
    max_equal_rewards: Share | None = 0.85
    max_cut_off: Share | None = 0.5
    max_malformed: Share | None = 0.5
    max_stale: Share | None = 0.5
    max_trimmed: Share | None = 0.25
    max_advantage_bias: Share | None = 0.8
    max_logprob_gap: Annotated[float, Field(strict=True, gt=0)] | None = 0.1
    max_logprob_gap_growth: Growth | None = 5.0
    max_kl_growth: Growth | None = 10.0
    max_entropy_growth: Growth | None = 3.0
    min_entropy: Annotated[float, Field(strict=True, gt=0)] | None = 0.002
    max_length_growth: Growth | None = 3.0
    max_grad_growth: Growth | None = 30.0
    max_shortened: Share | None = 0.75
    max_reward_drop: Share | None = 0.75
    reward_mismatch_steps: PositiveInt | None = 5
    max_tools_alike: Share | None = 0.9
    pause_on: Annotated[tuple[HealthKind, ...], Field(max_length=len(get_args(HealthKind)))] = (
        "zero_signal",
        "malformed",
        "logprob_gap",
        "kl",
        "entropy",
        "length",
        "reward_drop",
    )


class PreflightConfig(Message):
    """Checks before a run changes any weights: its first batch is computed, not applied.

    :param enabled: the run pauses if engine and trainer disagree about the first batch, if no
        parser reads the model's tool calls, or if the longest episode does not fit into memory.
        Other problems are reported.
    :param max_logprob_gap: between engine and trainer, in nats: the mean absolute difference of the
        sampled tokens' logprobs, at any quarter of the context.
    """

    enabled: Annotated[bool, Field(strict=True)] = True
    max_logprob_gap: Annotated[float, Field(strict=True, gt=0)] = 0.1


class EvaluationConfig(Message):
    """How evaluation episodes are sampled and scored; they are never trained on.

    :param pass_reward: an episode passes if it ended with at least this reward.
    :param pass_at: for which k pass@k is reported, ascending; over tasks with k ended episodes.
    """

    sampling: CallSampling = CallSampling()
    pass_reward: Annotated[float, Field(strict=True)] = 1.0
    pass_at: Annotated[tuple[PassAt, ...], Field(min_length=1, max_length=16)] = (1,)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if list(self.pass_at) != sorted(set(self.pass_at)):
            raise ValueError(
                "evaluation.pass_at must list each k once, in increasing order, such as "
                f"{sorted(set(self.pass_at))}"
            )
        return self


class RunConfig(Message):
    """The configuration of a run: what it trains, and how.

    :param merger: the component that makes timelines of an episode's calls. The setting ``policy``
        of ``trie`` decides when a call continues in an existing context (docs/timelines.md).
    :param mixture: None accepts episodes of any tag in the order of their claims.
    :param weight_channel: how weights get from the trainer to the engine, such as
        ``safetensors_dir``; None takes the first that the trainer offers and the engine accepts.
    :param exact: runs of one seed give the same tokens and weights, to the bit (docs/exact.md).
    :param steps: the run stops by itself after this many steps; None continues until it is stopped.
    :param checkpoint_every: steps between checkpoints; one is also written when the run stops.
    """

    model: ModelConfig
    engine: ComponentChoice = ComponentChoice(name="torch")
    trainer: ComponentChoice = ComponentChoice(name="torch")
    merger: ComponentChoice = ComponentChoice(name="trie")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    timelines: TimelineConfig = TimelineConfig()
    batch: BatchConfig = BatchConfig()
    rollout: RolloutConfig = RolloutConfig()
    mixture: MixtureConfig | None = None
    failures: FailureConfig = FailureConfig()
    preflight: PreflightConfig = PreflightConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    budget: BudgetConfig = BudgetConfig()
    weight_channel: Annotated[str, Field(min_length=1)] | None = None
    # Readers of JSON may lose digits of larger numbers.
    seed: Annotated[int, Field(ge=0, lt=2**53)] = 0
    exact: Annotated[bool, Field(strict=True)] = False
    steps: PositiveInt | None = None
    checkpoint_every: PositiveInt = 10

    @model_validator(mode="wrap")
    @classmethod
    def _names_are_hinted(cls, value: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as error:
            raise with_hints(error, cls) from None

    @property
    def importance(self) -> Literal["ratio", "truncated"]:
        """The weighting of tokens that other weights sampled, with ``auto`` resolved."""
        chosen = self.algorithm.importance
        if chosen != "auto":
            return chosen
        return "truncated" if self.rollout.mode == "async" else "ratio"

    @model_validator(mode="after")
    def _cap_is_used(self) -> Self:
        algorithm = self.algorithm
        unchanged = AlgorithmConfig.model_fields["importance_cap"].default
        if self.importance != "truncated" and algorithm.importance_cap != unchanged:
            raise ValueError(
                f"algorithm.importance_cap {algorithm.importance_cap:g} has no effect: "
                f"importance {algorithm.importance} has no importance weights; set "
                "importance to truncated"
            )
        return self

    @model_validator(mode="after")
    def _groups_have_a_baseline(self) -> Self:
        if self.batch.episodes_per_task == 1 and self.batch.full_by != "episodes":
            raise ValueError(
                "batch.episodes_per_task must be at least 2: the advantage of an episode is "
                "its reward relative to the other episodes of its task"
            )
        return self

    @model_validator(mode="after")
    def _batches_may_be_as_old_as_async_makes_them(self) -> Self:
        unit = "episodes" if self.batch.full_by == "episodes" else "tasks"
        slots = self.batch.episodes if unit == "episodes" else self.batch.tasks
        mean = self.rollout.max_mean_staleness
        if self.rollout.mode == "async" and mean is not None and mean * slots < 1:
            raise ValueError(
                f"rollout.max_mean_staleness {mean:g} is below the minimum of "
                f"{1 / slots:.3g} for mode async, where at least one of the {slots} {unit} "
                "of a batch begins while the batch before it is trained. Raise "
                "max_mean_staleness, make batches larger, or use mode sync"
            )
        return self
