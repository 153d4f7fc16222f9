"""The reward transformations of PKPO.

All equations are those of Walder and Karkhanis, "Pass@K Policy Optimization: Solving Harder
Reinforcement Learning Problems", arXiv:2505.15201. n is the number of attempts at one task, g_i the
reward of attempt i, and S(i, k, A) the mean over all subsets of size k of A, of those with i:
the maximum of their rewards, divided by the number of all subsets of size k (equations 27 and 28).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

__all__ = ["transformed", "weights"]


def weights(rewards: Sequence[float], k: int) -> list[float]:
    """Return s_i = S(i, k, {1..n}) of all attempts.

    Equation (19) with the coefficients (20) and (21), for rewards in ascending order:
    s_i = sum over j >= i of m_ij g_j / C(n, k), where m_ii = C(i-1, k-1), and m_ij = C(j-2, k-2)
    for j > i. It takes O(n log n), because s_i and s_(i+1) share all but two terms (theorem 5).
    """
    n = len(rewards)
    order = sorted(range(n), key=rewards.__getitem__)
    total = comb(n, k)
    result = [0.0] * n
    # The sum over j > i, from the largest reward down. `place` is i - 1 of the paper.
    above = 0.0
    for place in reversed(range(n)):
        reward = rewards[order[place]]
        result[order[place]] = comb(place, k - 1) / total * reward + above
        if k >= 2 and place >= 1:
            above += comb(place - 1, k - 2) / total * reward
    return result


def transformed(rewards: Sequence[float], k: int, baseline: str) -> list[float]:
    """Return what the paper trains instead of the rewards of one task.

    - ``none``: s_i of equation (19).
    - ``loo``: s_i^(loo) of equation (29): s_i minus the mean of S(j, k, {1..n} without i) over the
      other attempts j. It needs n > k.
    - ``loo-1``: s_i^(loo-1) of equation (33): the mean over subsets of size k with i of how much i
      adds to their maximum, divided by the number of all subsets. Needs k >= 2, and is defined for
      n = k, too.

    With k = 1, ``loo-1`` is equation (26) divided by n, the leave-one-out baseline, as in section
    5.2 of the paper. ``loo`` is equation (29) for every k. Its baseline is the larger one: for
    k = 1 it is (26) with the mean of the others times n / (n - 1).

    :raises ValueError: there are too few rewards.
    """
    n = len(rewards)
    if n < k or (baseline == "loo" and n <= k):
        raise ValueError(f"{baseline} with k = {k} needs more than {n} rewards")
    own = weights(rewards, k)
    if baseline == "none":
        return own
    if n == 1:
        return [0.0]
    if baseline == "loo":
        return [s - sum(weights(_without(rewards, i), k)) / (n - 1) for i, s in enumerate(own)]
    if k == 1:
        return [s - sum(_without(rewards, i)) / (n - 1) / n for i, s in enumerate(own)]
    # Equation (34): the second term is k / (n (k - 1)) times the sum of S(j, k-1, all but i).
    scale = k / (n * (k - 1))
    return [s - scale * sum(weights(_without(rewards, i), k - 1)) for i, s in enumerate(own)]


def _without(rewards: Sequence[float], index: int) -> list[float]:
    return [*rewards[:index], *rewards[index + 1 :]]
