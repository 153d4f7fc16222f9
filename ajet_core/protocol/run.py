"""The typed training configuration, the body of ``PUT /v1/run``.

It names components by the names they are registered under, never by an import path.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ajet_core.protocol.base import Message, Name

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegative = Annotated[float, Field(ge=0)]


class LoraConfig(Message):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) instead of full-parameter training."""

    rank: PositiveInt = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[Name, ...] | Literal["all-linear"] = "all-linear"


class ModelConfig(Message):
    """The model to serve and train.

    :param path: a Hugging Face model directory on the server, inside one of its model roots.
    :param name: the model id that ``/v1/models`` lists.
    :param renderer: how messages become tokens: a name of the `renderers` library, such as
        ``qwen3``, or ``auto``.
    :param max_context: tokens a prompt and its completion may have; None takes the model's own limit.
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


class AlgorithmConfig(Message):
    """Policy-gradient settings in the vocabulary all trainers share.

    The default is GRPO (Shao et al. 2024, arXiv:2402.03300) with the clipped surrogate of PPO and a
    token mean; ``clip_high`` > ``clip_low`` is clip-higher (DAPO, arXiv:2503.14476);
    ``advantage="group_mean"`` leaves out the division by the standard deviation
    (Dr. GRPO, arXiv:2503.20783); ``"leave_one_out"`` is RLOO (arXiv:2402.14740).

    :param advantage: baseline and scale of the rewards in a group.
    :param discount: of rewards for single calls, per call (see `ajet_core.timeline.credit`).
    :param aggregation: what weighs the same in the loss of a minibatch: each sampled token
        (``token_mean``, as DAPO), each call (``call_mean``: mean over calls of their token means), each episode
        (``episode_mean``: mean over episodes of their token means, as GRPO), or each token again, but
        divided by the number of episodes instead of tokens (``episode_sum``, as Dr. GRPO up to a
        constant). How calls were merged has no influence on any of them.
    :param clip_low: the ratio is clipped below 1 - clip_low.
    :param clip_high: the ratio is clipped above 1 + clip_high.
    :param kl_coef: weight of the KL divergence to the reference model (the model at the start),
        estimated as k3 (Schulman, "Approximating KL divergence").
    :param minibatches: optimiser steps a batch is divided into.
    :param epochs: times the batch is gone through.
    :param warmup_steps: steps over which the learning rate rises linearly.
    :param max_grad_norm: gradients are clipped to this norm; 0 turns clipping off.
    :param token_budget: most tokens (padding included) of one forward pass; None lets the trainer choose.
    """

    advantage: Literal["group_std", "group_mean", "leave_one_out"] = "group_std"
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    aggregation: Literal["token_mean", "call_mean", "episode_mean", "episode_sum"] = "token_mean"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    kl_coef: NonNegative = 0.0
    entropy_coef: NonNegative = 0.0
    minibatches: PositiveInt = 1
    epochs: PositiveInt = 1
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    warmup_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    weight_decay: NonNegative = 0.0
    adam_betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    max_grad_norm: NonNegative = 1.0
    token_budget: PositiveInt | None = None


class TimelineConfig(Message):
    """How an episode's calls become timelines, and how those are trained.

    :param policy: when a call goes on in a context that is there: ``exact``, if the tokens are the same;
        ``text``, if the messages say the same; ``ignore_tools``, if they do whatever tools are offered. The
        last two train calls in contexts they were not sampled in; metrics say how many tokens they altered.
    :param layout: how timelines are laid out for the trainer, see `ajet_core.timeline.layouts`; ``auto``
        takes what the trainer will compute fastest. All of them train the same.
    :param max_timelines: an episode is trained on at most so many timelines, those with the most
        sampled tokens; None trains all.
    :param max_tokens: longer timelines are treated as `over_long` says; None allows any length.
    :param over_long: ``drop`` leaves the timeline out, ``truncate`` ends it with the last turn that fits,
        ``separate`` trains the later calls each as a sample of its own.
    """

    policy: Literal["exact", "text", "ignore_tools"] = "exact"
    layout: Literal["auto", "separate", "linear", "tree", "group_tree"] = "auto"
    max_timelines: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    over_long: Literal["drop", "truncate", "separate"] = "truncate"


class BatchConfig(Message):
    """When a batch is full.

    :param full_by: ``tasks``: `tasks` tasks have `episodes_per_task` ended episodes each;
        ``episodes``: `tasks` x `episodes_per_task` episodes ended, of whatever tasks;
        ``differing_tasks``: as ``tasks``, but a task whose rewards are all equal does not count.
    :param max_aborts_per_task: a task with more failed episodes in one batch is given no more places: the batch goes
        on with those of its episodes that ended, if they are two or more. One of which none ended is set aside
        until the run is resumed or started again.
    """

    full_by: Literal["tasks", "episodes", "differing_tasks"] = "tasks"
    tasks: PositiveInt = 8
    episodes_per_task: PositiveInt = 8
    max_aborts_per_task: PositiveInt = 16

    @property
    def episodes(self) -> int:
        """Episodes of a full batch."""
        return self.tasks * self.episodes_per_task


class FailureConfig(Message):
    """When a run pauses instead of training on what is left of failing episodes.

    :param window: train episodes that are looked at, the latest ones; only when there are so many.
    :param max_rate: share of them that may fail (the agent raised, took too long, met a rate limit); 1 never pauses.
    :param max_refused: batches in a row that the trainer may refuse.
    """

    window: Annotated[int, Field(ge=4, le=100_000)] = 32
    max_rate: Annotated[float, Field(gt=0, le=1)] = 0.8
    max_refused: PositiveInt = 3


class RunConfig(Message):
    """Everything that says what is trained and how.

    :param steps: the run stops by itself after this many steps; None goes on until it is stopped.
    :param checkpoint_every: steps between checkpoints; one is also written when the run stops.
    """

    model: ModelConfig
    engine: ComponentChoice = ComponentChoice(name="torch")
    trainer: ComponentChoice = ComponentChoice(name="torch")
    merger: ComponentChoice = ComponentChoice(name="trie")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    timelines: TimelineConfig = TimelineConfig()
    batch: BatchConfig = BatchConfig()
    failures: FailureConfig = FailureConfig()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: PositiveInt | None = None
    checkpoint_every: PositiveInt = 10

    @model_validator(mode="after")
    def _groups_have_a_baseline(self) -> Self:
        if self.batch.episodes_per_task == 1 and self.batch.full_by != "episodes":
            raise ValueError(
                "batch.episodes_per_task must be at least 2: the advantage of an episode is its reward "
                "relative to the other episodes of its task"
            )
        return self
