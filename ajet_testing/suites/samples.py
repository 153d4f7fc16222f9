"""Records to test with: everything has a value, so that a lost field shows."""

from __future__ import annotations

from dataclasses import replace

from ajet_core.interfaces import EpisodeRecord, JointRecord
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_core.timeline.radix import common_prefix


def make_episode(episode_id: str = "episode", *, group: str = "task") -> EpisodeRecord:
    """An open train episode."""
    return EpisodeRecord(
        episode_id=episode_id,
        key_hash="0f" * 32,
        task_id=f"{group}-1",
        group=group,
        kind="train",
        tag="math",
        client_id="client",
        claim_version=3,
        lease_seconds=12.5,
        created_at=1700000000.25,
        heartbeat_seconds=0.5,
    )


def make_joint(episode_id: str = "episode", *, joint_id: str = "joint") -> EpisodeRecord:
    """An open episode that is a part of a joint one."""
    joint = JointRecord(joint_id, "executor", "planner", "run of the planner")
    return replace(make_episode(episode_id), joint=joint)


def make_call(
    call_id: str,
    prompt_ids: list[int],
    sampled_ids: list[int],
    *,
    episode_id: str = "episode",
    index: int = 0,
    parent: Call | None = None,
) -> Call:
    """A call; its logprobs and policy versions differ from token to token.

    :param parent: what it shares the first tokens of its prompt with, as many as there are.
    """
    count = len(sampled_ids)
    shared = 0 if parent is None else common_prefix(parent.token_ids, prompt_ids, 0)
    return Call(
        call_id=call_id,
        episode_id=episode_id,
        index=index,
        suffix_ids=prompt_ids[shared:],
        sampled_ids=sampled_ids,
        logprobs=[-0.1 * (i + 1) - index for i in range(count)],
        policy_versions=[index + (2 * i >= count) for i in range(count)],
        temperature=0.75,
        finish_reason="stop",
        agent=f"agent-{index % 2}",
        base=parent if shared else None,
        shared=shared,
        created_at=1700000001.5 + index,
        top_p=0.95,
        top_k=40,
        metadata={"tool": "search"} if index % 2 else {},
    )


def conversation(turns: int, *, episode_id: str = "episode", hints: bool = True) -> list[Call]:
    """Calls each of which goes on from the one before, with 3 sampled and 2 new context tokens.

    :param hints: whether each is held as what is new after the one before.
    """
    calls: list[Call] = []
    prompt = [7, 8, 9]
    new = [
        PlacedMessage(0, 1, MessageText("system", "Be brief.")),
        PlacedMessage(1, 3, MessageText("user", "Where is the goal?")),
    ]
    for turn in range(turns):
        sampled = [100 + turn, 200 + turn, 1]
        parent = calls[-1] if calls and hints else None
        call = make_call(
            f"{episode_id}-{turn}",
            prompt,
            sampled,
            episode_id=episode_id,
            index=turn,
            parent=parent,
        )
        asked = f'[{{"arguments":{{}},"id":"{turn}","name":"look"}}]'
        answer = MessageText("assistant", f"turn {turn}", "Hm.", asked)
        call = replace(call, messages=tuple(new), answer=answer, tools='[{"name":"look"}]')
        calls.append(call)
        said = MessageText("tool", f"goal is {turn} up", tool_call_id=str(turn), name="look")
        result = PlacedMessage(call.length, call.length + 2, said)
        given = PlacedMessage(call.prompt_length, call.length, answer)
        new = [result] if hints else [*new, given, result]
        prompt = [*prompt, *sampled, 300 + turn, 2]
    return calls
