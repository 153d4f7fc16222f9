"""The rows of a batch: one for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ajet_core.timeline import TrainBatch


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence of T tokens, as a trainer computes it.

    :param group: episodes of one group are rollouts of the same task.
    :param reward: that of the episode.
    :param token_ids: [T].
    :param loss_mask: [T] whether the token was sampled and is trained. The first token never is.
    :param advantages: [T] 0 where `loss_mask` is False; likewise the next two.
    :param logprobs: [T] of the weights that sampled the token, at the temperature.
    :param policy_versions: [T] version of these weights; -1 where `loss_mask` is False.
    :param temperatures: [T] 1 where `loss_mask` is False.
    """

    batch_id: str
    step: int
    episode_id: str
    group: str
    tag: str
    reward: float
    token_ids: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    logprobs: list[float]
    policy_versions: list[int]
    temperatures: list[float]


def rows_of(batch: TrainBatch) -> list[Row]:
    """Return the rows of a batch of linear sequences.

    :raises ValueError: a tree of the batch is no sequence.
    """
    rows = []
    for sequence in batch.sequences:
        episode = batch.episodes[sequence.episode]
        rows.append(
            Row(
                batch.batch_id,
                batch.step,
                episode.episode_id,
                episode.group,
                episode.tag,
                episode.reward,
                sequence.token_ids,
                sequence.loss_mask,
                sequence.advantages,
                sequence.behaviour_logprobs,
                sequence.policy_versions,
                sequence.temperatures,
            )
        )
    return rows
