"""pass@k: the probability that at least one of k attempts at a task passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def pass_at_k(episodes: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of pass@k for one task.

    Equation 1 of Chen et al. 2021, arXiv:2107.03374: ``1 - C(n-c, k) / C(n, k)``: among the ways to
    choose k of the n episodes, the share that includes at least one of the c episodes that passed.
    Computed in integers and rounded once.

    :param episodes: n >= k.
    :param passed: 0 <= c <= n.
    :param k: >= 1.
    """
    ways = math.comb(episodes, k)
    return (ways - math.comb(episodes - passed, k)) / ways


def mean_pass_at(tallies: Mapping[tuple[int, int], int], ks: Iterable[int]) -> dict[int, float]:
    """Return pass@k of a set of tasks: the mean over those that have at least k episodes.

    :param tallies: the number of tasks by episodes and passed episodes: ``{(n, c): tasks}``.
    :return: by k, without those for which no task has enough episodes.
    """
    means: dict[int, float] = {}
    for k in ks:
        enough = [(n, c, tasks) for (n, c), tasks in tallies.items() if n >= k]
        if enough:
            total = math.fsum(tasks * pass_at_k(n, c, k) for n, c, tasks in enough)
            means[k] = total / sum(tasks for _, _, tasks in enough)
    return means
