"""What evaluation episodes came to."""

from __future__ import annotations

from pydantic import Field

from ajet_core.protocol.base import Message


class Evaluation(Message):
    """The evaluation episodes of one task set that were claimed at one training step.

    :param client_id: the token that claimed them.
    :param tag: the task set, `ClaimRequest.tag` of its episodes.
    :param step: the policy version when the episodes were claimed: steps that were trained.
    :param tasks: at most 100,000 tasks with an episode that ended, which `pass_at` is about.
    :param episodes: that ended with a reward.
    :param open: that are still being rolled out.
    :param aborted: that came to nothing; they count in nothing else.
    :param mixed: how many of those that ended were answered by other weights too.
    :param reward_mean: over `episodes`; null without any.
    :param pass_at: pass@k by k, the mean over the tasks with at least k episodes (see
        `EvaluationConfig`); a k for which there is no such task is left out.
    """

    client_id: str
    tag: str
    step: int
    tasks: int
    episodes: int
    open: int
    aborted: int
    mixed: int
    reward_mean: float | None
    pass_at: dict[int, float]


class EvaluationList(Message):
    """Answer of ``GET /v1/evaluations``: by client and task set, each in the order of the steps."""

    evaluations: list[Evaluation] = Field(default_factory=list)
