"""Is the policy gradient right, in expectation, for agents that decide when to stop?

Random decision trees of a few calls are small enough to enumerate: every episode with its
probability, hence the exact gradient of the expected return, and every group of n episodes with its
probability, hence the exact expectation of the estimate that is made of groups.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.timeline import (
    AdvantageMethod,
    CallCredit,
    TrainCall,
    TrainEpisode,
    balanced,
    call_advantages,
)
from ajet_testing.suites.samples import make_call
from tests.support.tiers import examples

Gradient = dict[tuple[int, int], float]
"""By node and action: the derivative with respect to the action's logit."""


@dataclass(frozen=True)
class Action:
    """:param outcome: reward of an episode that ends with it, and of its agents."""

    reward: float
    child: Node | None
    outcome: float = 0.0
    of_agents: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Node:
    number: int
    agent: str
    logits: tuple[float, ...]
    actions: tuple[Action, ...]

    @property
    def probabilities(self) -> list[float]:
        weights = [math.exp(logit) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]


@dataclass(frozen=True)
class Path:
    """An episode: the node and action of each call."""

    probability: float
    steps: tuple[tuple[Node, int], ...]

    @property
    def rewards(self) -> list[float]:
        return [node.actions[action].reward for node, action in self.steps]

    @property
    def last(self) -> Action:
        node, action = self.steps[-1]
        return node.actions[action]

    def scores(self) -> list[Gradient]:
        """Of each call, the gradient of the log-probability of its action."""
        return [
            {
                (node.number, other): (other == action) - p
                for other, p in enumerate(node.probabilities)
            }
            for node, action in self.steps
        ]


def paths(node: Node, before: tuple[tuple[Node, int], ...] = (), p: float = 1.0) -> Iterator[Path]:
    for action, (of_it, probability) in enumerate(
        zip(node.actions, node.probabilities, strict=True)
    ):
        steps = (*before, (node, action))
        if of_it.child is None:
            yield Path(p * probability, steps)
        else:
            yield from paths(of_it.child, steps, p * probability)


def add(total: Gradient, some: Gradient, factor: float) -> None:
    for key, value in some.items():
        total[key] = total.get(key, 0.0) + factor * value


def exact(root: Node, discount: float) -> Gradient:
    """E[sum over calls of grad log p(action) * (outcome + discounted return-to-go)].

    Without a discount this is the gradient of the expected return. Where an agent has rewards of
    its own they take the place of the outcome.
    """
    found: Gradient = {}
    for path in paths(root):
        following = 0.0
        for (node, _), reward, score in reversed(
            list(zip(path.steps, path.rewards, path.scores(), strict=True))
        ):
            following = reward + discount * following
            outcome = (path.last.of_agents or {}).get(node.agent, path.last.outcome)
            add(found, score, path.probability * (outcome + following))
    return found


def estimate(
    group: Sequence[Path],
    method: AdvantageMethod,
    discount: float,
    credit: CallCredit,
    *,
    balance: bool = False,
) -> Gradient:
    """The mean over a group's episodes of the sum over their calls, of one token each."""
    episodes, made = [], []
    for number, path in enumerate(group):
        ids = [f"{number}-{k}" for k in range(len(path.steps))]
        episodes.append(
            TrainEpisode(
                str(number),
                "g",
                path.last.outcome,
                call_rewards=dict(zip(ids, path.rewards, strict=True)),
                agent_rewards=dict(path.last.of_agents or {}),
            )
        )
        made.append(
            [
                replace(make_call(call_id, [1], [2], index=k), agent=node.agent)
                for k, (call_id, (node, _)) in enumerate(zip(ids, path.steps, strict=True))
            ]
        )
    found: Gradient = {}
    credited = call_advantages(episodes, made, method, discount, credit)
    if balance:
        calls = [
            TrainCall.of(call, number, advantage)
            for number, (own, given) in enumerate(zip(made, credited, strict=True))
            for call, advantage in zip(own, given, strict=True)
        ]
        shifted = iter(balanced(calls, episodes, "episode_sum"))
        credited = [[next(shifted).advantage for _ in given] for given in credited]
    for path, advantages in zip(group, credited, strict=True):
        for score, advantage in zip(path.scores(), advantages, strict=True):
            add(found, score, advantage / len(group))
    return found


def expected(
    root: Node,
    size: int,
    method: AdvantageMethod,
    discount: float,
    credit: CallCredit,
    *,
    balance: bool = False,
) -> Gradient:
    """The expectation of `estimate` over all groups of `size` episodes."""
    found: Gradient = {}
    for group in itertools.product(list(paths(root)), repeat=size):
        add(
            found,
            estimate(group, method, discount, credit, balance=balance),
            math.prod(path.probability for path in group),
        )
    return found


AGENTS = ("", "planner", "worker")
REWARDS = st.floats(-2, 2).map(lambda value: round(value, 3))


@st.composite
def trees(draw: st.DrawFn, *, own_rewards: bool = False) -> Node:
    numbers = itertools.count()

    def action(depth: int) -> Action:
        reward = draw(REWARDS)
        if depth and draw(st.booleans()):
            return Action(reward, node(depth - 1))
        of_agents = {"planner": draw(REWARDS)} if own_rewards else None
        return Action(reward, None, draw(REWARDS), of_agents)

    def node(depth: int) -> Node:
        number, agent = next(numbers), draw(st.sampled_from(AGENTS))
        logits = draw(st.tuples(REWARDS, REWARDS))
        return Node(number, agent, logits, (action(depth), action(depth)))

    return node(2)


@pytest.mark.slow
@pytest.mark.parametrize("discount", [1.0, 0.7, 0.0])
@settings(deadline=None, max_examples=examples(50))
@given(root=trees(), size=st.integers(2, 3))
def test_leave_one_out_has_no_bias(discount: float, root: Node, size: int) -> None:
    got = expected(root, size, "leave_one_out", discount, "return_to_go")
    assert got == pytest.approx(exact(root, discount), abs=1e-9)


@settings(deadline=None, max_examples=examples(50))
@given(root=trees(own_rewards=True), size=st.integers(2, 3))
def test_leave_one_out_has_no_bias_for_agents_with_rewards_of_their_own(
    root: Node, size: int
) -> None:
    got = expected(root, size, "leave_one_out", 1.0, "return_to_go")
    assert got == pytest.approx(exact(root, 1.0), abs=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(50))
@given(root=trees(), size=st.integers(2, 3))
def test_the_mean_of_the_group_only_scales_the_gradient(root: Node, size: int) -> None:
    got = expected(root, size, "group_mean", 1.0, "return_to_go")
    shrunk = {key: value * (size - 1) / size for key, value in exact(root, 1.0).items()}
    assert got == pytest.approx(shrunk, abs=1e-9)


@settings(deadline=None, max_examples=examples(50))
@given(root=trees())
def test_without_a_discount_it_is_the_gradient_of_the_expected_return(root: Node) -> None:
    step = 1e-5

    def shifted(node: Node, key: tuple[int, int], by: float) -> Node:
        logits = [
            logit + (by if (node.number, i) == key else 0.0) for i, logit in enumerate(node.logits)
        ]
        actions = [
            replace(a, child=shifted(a.child, key, by) if a.child else None) for a in node.actions
        ]
        return replace(node, logits=tuple(logits), actions=tuple(actions))

    def value(tree: Node) -> float:
        return sum(p.probability * (p.last.outcome + sum(p.rewards)) for p in paths(tree))

    for key, derivative in exact(root, 1.0).items():
        rise = value(shifted(root, key, step)) - value(shifted(root, key, -step))
        assert derivative == pytest.approx(rise / (2 * step), abs=1e-6)


def stop_or_go(first: float, second: float) -> Node:
    """An agent whose first call earns `first`, with an optional second one that earns `second`."""
    more = Node(1, "", (0.0,), (Action(second, None),))
    return Node(0, "", (0.0, 0.0), (Action(first, None), Action(first, more)))


@pytest.mark.parametrize(
    ("first", "second"), [(0.5, 0.3), (0.5, 0.5), (-0.1, -0.1), (0.2, 0.6), (1.0, -0.5)]
)
def test_stopping_early_is_learnt_exactly_where_it_pays(first: float, second: float) -> None:
    root = stop_or_go(first, second)
    for method in ("leave_one_out", "group_mean", "group_std"):
        got = expected(root, 4, method, 1.0, "return_to_go")
        assert math.copysign(1.0, got[0, 1]) == math.copysign(1.0, second)


@pytest.mark.parametrize(
    ("first", "second"), [(0.5, 0.3), (0.5, 0.5), (-0.1, -0.1), (0.2, 0.6), (1.0, -0.5)]
)
def test_balanced_it_is_learnt_there_too_and_hardly_faster(first: float, second: float) -> None:
    root = stop_or_go(first, second)
    got = expected(root, 4, "leave_one_out", 1.0, "return_to_go", balance=True)
    assert got[0, 1] == pytest.approx(exact(root, 1.0)[0, 1], rel=0.02)


def norm(gradient: Gradient) -> float:
    return math.sqrt(sum(value**2 for value in gradient.values()))


def bias(root: Node, size: int) -> tuple[float, float]:
    """Of balanced advantages: the bias's norm, and the cosine of estimate and exact gradient."""
    got = expected(root, size, "leave_one_out", 1.0, "return_to_go", balance=True)
    right = exact(root, 1.0)
    dot = sum(got[key] * right[key] for key in right)
    return norm({key: got[key] - right[key] for key in right}), dot / (norm(got) * norm(right))


def random_tree(rng: random.Random) -> Node:
    numbers = itertools.count()

    def action(depth: int) -> Action:
        reward = rng.uniform(-2, 2)
        if depth and rng.random() < 0.5:
            return Action(reward, node(depth - 1))
        return Action(reward, None, rng.uniform(-2, 2))

    def node(depth: int) -> Node:
        number, agent = next(numbers), rng.choice(AGENTS)
        logits = (rng.uniform(-2, 2), rng.uniform(-2, 2))
        return Node(number, agent, logits, (action(depth), action(depth)))

    return node(2)


@pytest.mark.slow
def test_balancing_has_a_bias_of_one_over_the_size_of_the_group_and_keeps_the_direction() -> None:
    rng = random.Random(5)
    seen = 0
    while seen < 20:
        root = random_tree(rng)
        ways = list(paths(root))
        returns = [sum(path.rewards) + path.last.outcome for path in ways]
        spread = max(returns) - min(returns)
        if len(ways) > 5 or norm(exact(root, 1.0)) < 0.05 * spread:
            continue
        seen += 1
        for size in (2, 3, 4):
            off, cosine = bias(root, size)
            assert size * off < 0.15 * spread
            assert cosine > 0.9


def test_where_hardly_anything_is_to_be_learnt_balancing_may_teach_the_opposite() -> None:
    """Why it is not the default where the weights that sampled are those that are trained."""
    more = Node(1, "worker", (-1.7, 1.5), (Action(-0.2, None, -0.9), Action(-0.9, None, -1.3)))
    root = Node(0, "", (0.2, -1.3), (Action(-1.6, None, 1.4), Action(1.7, more)))
    assert norm(exact(root, 1.0)) < 0.06
    (two, cosine), (four, _) = bias(root, 2), bias(root, 4)
    assert cosine < 0
    assert four == pytest.approx(two / 2, rel=0.1)


def test_process_supervision_has_the_wrong_sign_there() -> None:
    """Why it is not the default."""
    got = expected(stop_or_go(0.5, 0.3), 4, "group_mean", 1.0, "process_supervision")
    assert got[0, 1] < 0.0 < exact(stop_or_go(0.5, 0.3), 1.0)[0, 1]


def calls_made(call_reward: float, limit: int, seed: int) -> float:
    """Train an agent that may stop after each call; return its final mean number of calls."""
    rng = random.Random(seed)
    logits = [0.0] * limit
    for _ in range(200):
        group = []
        for _ in range(8):
            node = None
            for k in reversed(range(limit)):
                last = k == limit - 1
                choices = (Action(call_reward, None), Action(call_reward, None if last else node))
                node = Node(k, "", (0.0, logits[k]), choices)
            steps = []
            while node is not None:
                action = rng.choices((0, 1), node.probabilities)[0]
                steps.append((node, action))
                node = node.actions[action].child
            group.append(Path(1.0, tuple(steps)))
        for (number, action), slope in estimate(group, "group_std", 1.0, "return_to_go").items():
            logits[number] += 0.5 * slope * action
    reached, mean = 1.0, 1.0
    for logit in logits[:-1]:
        reached *= 1 / (1 + math.exp(-logit))
        mean += reached
    return mean


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_an_agent_learns_to_stop_where_calls_cost_and_to_go_on_where_they_pay(seed: int) -> None:
    assert calls_made(-0.1, 4, seed) < 1.2
    assert calls_made(0.1, 4, seed) > 3.8
