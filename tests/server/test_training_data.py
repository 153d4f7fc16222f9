"""From a batch's records to what its trainer is given."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ajet_core.interfaces import ComponentSettings, EpisodeRecord, TrainerInfo, WorkerContext
from ajet_core.protocol import RunConfig
from ajet_core.timeline import Call, CostModel
from ajet_server.batches.training_data import TrainingData, training_data
from ajet_server.embedded.settings import TrieMergerSettings
from ajet_server.embedded.trie import MergePolicy
from ajet_server.embedded.trie_merger import TrieMerger
from ajet_testing.servers import CLIENT, CONTROL, Running, key
from ajet_testing.suites.samples import conversation, make_call, make_episode
from ajet_training.advantages import GroupMean, GroupStd

TREES = TrainerInfo(1, 1, "cpu", trees=True, costs=CostModel(0.0, 1.0, 0.0))
LINEAR = TrainerInfo(1, 1, "cpu")


def record(episode_id: str, reward: float = 0.0, group: str = "g", **more: Any) -> EpisodeRecord:
    ended = replace(make_episode(episode_id, group=group), state="ended", reward=reward)
    return replace(ended, **more)


def prepare(
    made: dict[str, list[Call]],
    records: list[EpisodeRecord] | None = None,
    trainer: TrainerInfo = TREES,
    step: int = 1,
    policy: MergePolicy = "exact",
    **changes: Any,
) -> TrainingData:
    if records is None:
        records = [record(name, float(i)) for i, name in enumerate(made)]
    config = RunConfig.model_validate({"model": {"path": "m"}, **changes})
    estimator = GroupMean if config.algorithm.advantage == "group_mean" else GroupStd
    return training_data(
        "batch",
        step,
        records,
        made,
        config=config,
        merger=TrieMerger(TrieMergerSettings(policy=policy), WorkerContext(Path())),
        estimator=estimator(ComponentSettings(), config.algorithm),
        trainer=trainer,
    )


def talks(*episode_ids: str, turns: int = 3) -> dict[str, list[Call]]:
    return {name: conversation(turns, episode_id=name) for name in episode_ids}


def trained(data: TrainingData) -> list[tuple[str, int]]:
    return sorted(
        (data.batch.calls[span.call].call_id, span.start + i)
        for tree in data.batch.trees
        for segment in tree.segments
        for span in segment.spans
        for i in range(span.length)
    )


@pytest.mark.parametrize("layout", ["auto", "separate", "linear", "tree", "group_tree"])
def test_every_sampled_token_is_trained_once(layout: str) -> None:
    made = talks("x", "y")
    data = prepare(made, timelines={"layout": layout})
    assert trained(data) == sorted(
        (call.call_id, i) for calls in made.values() for call in calls for i in range(3)
    )


def test_rollouts_of_a_task_share_what_they_have_in_common() -> None:
    data = prepare(talks("x", "y"))
    # Both episodes are the same conversation, so that a tree of the group holds it once.
    assert (data.plan.chosen, len(data.batch.trees)) == ("group_tree", 1)
    # Nothing follows the very last token, so that it need not be computed.
    assert data.metrics()["tokens_planned"] == 3 * 5
    assert data.metrics()["tokens_merged"] == 2 * (3 * 5 + 1)
    assert data.metrics()["tokens_raw"] == 2 * (6 + 11 + 16)


def test_a_trainer_without_trees_is_given_sequences() -> None:
    first = make_call("x-0", [1, 2], [3], episode_id="x")
    on = make_call("x-1", [1, 2, 3, 5], [6], episode_id="x", index=1, parent=first)
    fork = make_call("x-2", [1, 9], [4], episode_id="x", index=2, parent=first)
    data = prepare({"x": [first, on, fork], "y": []}, trainer=LINEAR)
    sequences = [s.token_ids for s in data.batch.sequences]
    assert sequences == [[1, 2, 3, 5, 6], [1, 9, 4]]
    assert data.plan.chosen == "linear"


def test_a_tree_that_was_asked_for_is_a_sequence_where_the_trainer_knows_none() -> None:
    data = prepare(talks("x", "y"), trainer=LINEAR, timelines={"layout": "group_tree"})
    assert data.plan.chosen == "linear"


def test_episodes_in_different_minibatches_share_no_tree() -> None:
    data = prepare(talks("x", "y"), algorithm={"minibatches": 2})
    assert "group_tree" not in data.plan.costs
    assert len(data.batch.trees) == 2


ASYNC = {"mode": "async", "max_staleness": 2}


def weight(data: TrainingData) -> float:
    """The sum of the advantages of all trained tokens."""
    return sum(call.advantage * len(call.logprobs) for call in data.batch.calls)


@pytest.mark.parametrize(
    ("config", "balanced"),
    [
        ({}, False),
        ({"rollout": ASYNC}, True),
        ({"rollout": ASYNC, "algorithm": {"importance": "ratio"}}, False),
        ({"algorithm": {"importance": "truncated"}}, True),
    ],
)
def test_a_run_on_samples_of_earlier_weights_has_no_more_to_unlearn_than_to_learn(
    config: dict[str, Any], balanced: bool
) -> None:
    # A long failure and a short success.
    made = talks("x", turns=3) | talks("y", turns=1)
    data = prepare(made, **config)
    assert any(call.advantage for call in data.batch.calls)
    assert (weight(data) == pytest.approx(0, abs=1e-9)) == balanced
    # What is missing shows in the advantages before they are balanced.
    assert data.metrics()["advantage_bias"] == pytest.approx(-0.5)


def test_a_task_is_compared_with_what_is_trained_of_it_where_an_episode_is_too_old() -> None:
    made = talks("x", "y", "old")
    made["old"] = [replace(call, policy_versions=[0, 1, 1]) for call in made["old"]]
    made |= {n: [replace(c, policy_versions=[3] * 3) for c in made[n]] for n in ("x", "y")}
    records = [record("x", 0.0), record("y", 1.0), record("old", 9.0)]
    data = prepare(made, records, step=4, rollout=ASYNC, algorithm={"advantage": "group_mean"})
    assert [episode.episode_id for episode in data.batch.episodes] == ["x", "y"]
    assert {round(call.advantage, 9) for call in data.batch.calls} == {-0.5, 0.5}
    assert (data.metrics()["episodes_stale"], data.metrics()["tokens_stale"]) == (1, 9)
    assert data.metrics()["tokens_sampled"] == 27
    assert data.findings["stale"].startswith("1 of 3 episodes (old) have tokens older than")


def test_advantages_are_of_the_calls() -> None:
    records = [
        record("x", 1.0, call_rewards={"x-1": 3.0}, agent_rewards={"agent-0": 2.0}),
        record("y", 0.0, call_rewards={"y-0": 1.0}, agent_rewards={"agent-0": 0.0}),
    ]
    data = prepare(
        talks("x", "y", turns=2),
        records,
        algorithm={"advantage": "group_mean", "discount": 0.5},
    )
    # Returns-to-go 1.5 and 1 of the first calls, 3 and 0 of the second ones, around their means;
    # agent-0 made the first call of each episode and has 1 and -1 of its own, agent-1 the episode's
    # 0.5 and -0.5.
    assert {c.call_id: c.advantage for c in data.batch.calls} == {
        "x-0": 1.0 + 0.25,
        "x-1": 0.5 + 1.5,
        "y-0": -1.0 - 0.25,
        "y-1": -0.5 - 1.5,
    }


def test_calls_nobody_saw_are_not_trained() -> None:
    made = talks("x", "y")
    made["x"][2] = replace(made["x"][2], finish_reason="abort")
    data = prepare(made)
    assert ("x-2", 0) not in trained(data)
    assert data.metrics()["calls_aborted"] == 1.0
    assert data.metrics()["calls"] == 6.0


def test_calls_of_agents_that_a_claim_or_the_run_leaves_out_are_not_trained() -> None:
    made = talks("x", "y")
    for calls in made.values():
        calls[1:] = [replace(calls[1], agent="titles"), replace(calls[2], agent="summaries")]
    claimed = {"x": {"untrained_agents": ["titles"]}, "y": {}}
    records = [record(name, float(i), rules=claimed[name]) for i, name in enumerate(made)]
    data = prepare(made, records, rollout={"untrained_agents": ["summaries"]})
    assert {call_id for call_id, _ in trained(data)} == {"x-0", "y-0", "y-1"}


def test_what_limits_leave_out_is_counted() -> None:
    data = prepare(talks("x", "y"), timelines={"max_tokens": 12})
    assert sorted({call_id for call_id, _ in trained(data)}) == ["x-0", "x-1", "y-0", "y-1"]
    metrics = data.metrics()
    assert (metrics["calls_dropped"], metrics["tokens_dropped"]) == (2.0, 6.0)
    assert metrics["tokens_sampled"] == 18


def test_calls_beyond_the_limit_may_be_samples_of_their_own() -> None:
    limits = {"max_tokens": 12, "over_long": "separate"}
    data = prepare(talks("x", "y"), timelines=limits)
    assert len(trained(data)) == 18
    assert data.metrics()["calls_alone"] == 2.0
    assert sorted(tree.tokens for tree in data.batch.trees)[-2:] == [16, 16]


def test_relaxed_merging_counts_what_it_altered() -> None:
    made = talks("x", "y", turns=2)
    first, second = made["x"]
    # The answer was written again with another first token.
    prompt = second.prompt_ids
    prompt[3] = 77
    messages = tuple(second.conversation())
    made["x"] = [first, replace(second, base=None, shared=0, suffix_ids=prompt, messages=messages)]
    assert prepare(made).metrics()["tokens_altered"] == 0.0
    data = prepare(made, policy="text")
    assert data.metrics()["tokens_altered"] == 1.0
    assert len(trained(data)) == 12


def test_forks_are_said_in_words() -> None:
    made = talks("x", "y", turns=2)
    first, second = made["x"]
    prompt = [6, *second.prompt_ids[1:]]
    head, *rest = second.conversation()
    messages = (replace(head, text=replace(head.text, content="It is noon.")), *rest)
    made["x"] = [first, replace(second, base=None, shared=0, suffix_ids=prompt, messages=messages)]
    data = prepare(made)
    assert data.metrics()["forks"] == 1.0
    assert data.metrics()["tokens_recomputed"] == 5.0
    assert "rewrites the system message" in data.forks.sentences()[0]


async def test_call_rewards_reach_training_and_what_came_of_them_is_stored(
    server: Running,
) -> None:
    await server.roll(algorithm={"advantage": "group_mean"})
    grants = []
    for task in ("a", "a", "b", "b"):
        grant = await server.claim(task)
        grants.append(grant)
        headers = {**key(grant), "x-ajet-agent": "planner"}
        body = {"model": "m", "messages": [{"role": "user", "content": f"hello {len(grants)}"}]}
        answer = await server.http.post("/v1/chat/completions", headers=headers, json=body)
        rewards: dict[str, Any] = {"reward": 0.0}
        if task == "a":
            rewards["call_rewards"] = {answer.json()["id"]: float(len(grants))}
        else:
            rewards["agent_rewards"] = {"planner": float(len(grants))}
        url = f"/v1/episodes/{grant['episode_id']}/end"
        ended = await server.http.post(url, headers=CLIENT, json=rewards)
        assert ended.status_code == 200, ended.text
    async with asyncio.timeout(30):
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    scores = [await server.service.store.scores(grant["episode_id"]) for grant in grants]
    assert [s.advantage for found in scores for s in found.values()] == [-0.5, 0.5, -0.5, 0.5]
    assert all(s.logprobs for found in scores for s in found.values())


async def test_agents_that_do_not_say_who_they_are_are_known_by_their_prompts(
    server: Running,
) -> None:
    agents = {"planner": "You plan", "critic": "You judge"}
    await server.roll(rollout={"agents": agents})
    grant = await server.claim("a")
    hello = [{"role": "user", "content": "You plan"}]
    under = f"/e/{grant['api_key']}/v1/"
    for path, body in (
        (
            "chat/completions",
            {"messages": [{"role": "system", "content": "You plan."}, *hello]},
        ),
        (
            "chat/completions",
            {"messages": [*hello, {"role": "developer", "content": "Now. You judge."}]},
        ),
        ("messages", {"system": "Here You judge", "messages": hello, "max_tokens": 9}),
        ("responses", {"instructions": "You plan", "input": "hello"}),
        ("chat/completions", {"messages": hello}),
    ):
        answer = await server.http.post(under + path, json={"model": "m", **body})
        assert answer.status_code == 200, answer.text
    last: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "system", "content": "You plan."}, *hello],
    }
    headers = {**key(grant), "x-ajet-agent": "somebody"}
    await server.http.post("/v1/chat/completions", headers=headers, json=last)
    (calls,) = (await server.service.store.calls([grant["episode_id"]])).values()
    assert [call.agent for call in calls] == [
        *("planner", "critic", "critic", "planner", ""),
        "somebody",
    ]


async def clock_agent(server: Running, task: str, reward: float) -> None:
    """Three turns; the time of day stands in the system message."""
    grant = await server.claim(task)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": ""},
        {"role": "user", "content": "hello there, how are you today?"},
    ]
    for turn in range(3):
        messages[0] = {"role": "system", "content": f"It is {turn} o'clock. Be brief."}
        body = {"model": "m", "messages": messages, "max_tokens": 12}
        answer = await server.http.post("/v1/chat/completions", headers=key(grant), json=body)
        assert answer.status_code == 200, answer.text
        messages += [
            answer.json()["choices"][0]["message"],
            {"role": "user", "content": "hello there"},
        ]
    assert (await server.end(grant, reward)).status_code == 200


async def test_a_clock_in_the_system_message_is_found_and_priced(server: Running) -> None:
    await server.roll()
    for task in ("a", "b"):
        await asyncio.gather(*(clock_agent(server, task, reward) for reward in (0.0, 1.0)))
    async with asyncio.timeout(30):
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
    # Reports on forks quote what agents said: clients are not shown them.
    status = (await server.http.get("/v1/status", headers=CONTROL)).json()
    (sentence,) = status["last_step"]["forks"]
    assert "recomputed because your agent rewrites the system message (8 times" in sentence
    metrics = status["last_step"]["metrics"]
    assert metrics["forks"] == 8.0
    share = metrics["tokens_recomputed"] / metrics["tokens_merged"]
    assert sentence.startswith(f"{share:.0%}")
    # Without the clock the tree would hold what is paid again once.
    assert 0.2 < share < 0.7
