"""What a trainer is given: a batch of episodes and the token sequences to train on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainEpisode:
    """One finished episode of a batch.

    :param group: episodes of one group are rollouts of the same task and share a baseline.
    :param reward: the reward its client reported.
    """

    episode_id: str
    group: str
    reward: float
    tag: str = ""


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A linear token sequence of T tokens; within a batch each sampled token is trained exactly once.

    :param episode: index into `TrainBatch.episodes`.
    :param token_ids: [T].
    :param loss_mask: [T] True where the token was sampled and is trained in this sequence.
    :param behaviour_logprobs: [T] as `Call.logprobs`; 0.0 where `loss_mask` is False.
    :param temperatures: [T] sampling temperature of the token (1.0 where `loss_mask` is False or the
        call was greedy): trainers divide their logits by it before they compare logprobs.
    :param policy_versions: [T] -1 where `loss_mask` is False.
    """

    episode: int
    token_ids: list[int]
    loss_mask: list[bool]
    behaviour_logprobs: list[float]
    temperatures: list[float]
    policy_versions: list[int]


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The input of one training step.

    :param step: 1-based number of the step this batch is for.
    :param tokens_raw: tokens the batch's calls hold when each is a sample of its own.
    """

    batch_id: str
    step: int
    episodes: list[TrainEpisode]
    sequences: list[TrainSequence]
    tokens_raw: int
