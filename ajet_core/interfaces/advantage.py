"""The advantage estimator: how much better each call of a batch was than expected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ajet_core.interfaces.context import ComponentSettings
from ajet_core.protocol import AlgorithmConfig
from ajet_core.timeline import Call, TrainEpisode


class AdvantageEstimator(ABC):
    """Turns the rewards of a batch into advantages.

    The server makes one for each run and calls it before each step, in its own process: an
    estimator needs no weights and imports no heavy packages. It is pure: the same batch gives the
    same advantages, also after a restart.

    :param algorithm: of the run; ``discount`` and ``call_credit`` are for estimators.
    """

    def __init__(self, settings: ComponentSettings, algorithm: AlgorithmConfig) -> None:
        self.settings = settings
        self.algorithm = algorithm

    @abstractmethod
    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> Sequence[Sequence[float]]:
        """One advantage per call, which all its sampled tokens share.

        :param episodes: of the batch; those with the same `TrainEpisode.group` are rollouts of one task.
        :param calls: of each episode, in the order they were made.
        :return: finite numbers, in the shape of `calls`.
        """
