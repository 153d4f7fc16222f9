"""The advantage estimator: how much better each call of a batch was than expected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from ajet_core.interfaces.context import SettingsT_co
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import Call, TrainEpisode


class AdvantageEstimator(Generic[SettingsT_co], ABC):
    """Computes advantages from the rewards of a batch.

    The server creates one estimator per run and calls it before each step, in the server's process:
    an estimator needs no weights and must not import heavy packages. It is pure: the same batch
    gives the same advantages, also after a restart and with its episodes in another order.

    :param algorithm: of the run; ``discount`` and ``call_credit`` are meant for estimators.
    """

    def __init__(self, settings: SettingsT_co, algorithm: AlgorithmConfig) -> None:
        self.settings = settings
        self.algorithm = algorithm

    @abstractmethod
    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> Sequence[Sequence[float]]:
        """Compute one advantage per call, shared by all its sampled tokens.

        Of two rollouts of a task that differ in their rewards alone, the better one has the higher
        advantages. The arguments stay unchanged.

        :param episodes: of the batch; those of one `TrainEpisode.group` are rollouts of one task.
        :param calls: calls of each episode, in the order in which they were made.
        :return: finite numbers, in the shape of `calls`.
        """
