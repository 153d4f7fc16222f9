"""The built-in advantage estimators; `ajet_core.timeline.credit` has the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ajet_core.interfaces import AdvantageEstimator
from ajet_core.timeline import AdvantageMethod, Call, TrainEpisode, call_advantages


class GroupAdvantages(AdvantageEstimator):
    """Rewards relative to those of the other episodes of the same task."""

    method: ClassVar[AdvantageMethod]

    def estimate(
        self, episodes: Sequence[TrainEpisode], calls: Sequence[Sequence[Call]]
    ) -> list[list[float]]:
        """Compute advantages with `ajet_core.timeline.call_advantages`."""
        algorithm = self.algorithm
        return call_advantages(
            episodes, calls, self.method, algorithm.discount, algorithm.call_credit
        )


class GroupStd(GroupAdvantages):
    """``group_std``: GRPO (Shao et al. 2024, arXiv:2402.03300)."""

    method = "group_std"


class GroupMean(GroupAdvantages):
    """``group_mean``: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783)."""

    method = "group_mean"


class LeaveOneOut(GroupAdvantages):
    """``leave_one_out``: RLOO (Ahmadian et al. 2024, arXiv:2402.14740)."""

    method = "leave_one_out"
