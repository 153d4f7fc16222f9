"""Records for tests, with a value in every field, so that lost fields are noticed."""

from __future__ import annotations

import struct
from dataclasses import replace

from ajet_core.interfaces import EpisodeRecord, JointRecord
from ajet_core.timeline import Call, MessageText, PlacedMessage, SampledFrom
from ajet_core.timeline.radix import common_prefix


def make_episode(episode_id: str = "episode", *, group: str = "task") -> EpisodeRecord:
    """Create an open training episode."""
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
        rules={"sampling": {"temperature": 0.5}, "max_calls": 7},
    )


def make_joint(episode_id: str = "episode", *, joint_id: str = "joint") -> EpisodeRecord:
    """Create an open episode that is part of a joint one."""
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
    """Create a call whose logprobs and policy versions differ from token to token.

    :param parent: a call with which the prompt shares as many first tokens as possible.
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
        sampled_from=_sampled_from(count) if index % 2 else None,
    )


def _sampled_from(count: int) -> SampledFrom:
    sets = [b"", struct.pack("<4I", 1, 2, 7, 4000), struct.pack("<2I", 0, 2**32 - 1)]
    tokens = [(-0.05 * i, sets[i % 3]) for i in range(count)]
    plain = SampledFrom.of(tokens)
    return replace(plain, presence_penalty=0.5, logit_bias=((3, -1.5), (4, 2.0)))


def conversation(turns: int, *, episode_id: str = "episode", hints: bool = True) -> list[Call]:
    """Create calls that each continue the previous one, with 3 sampled and 2 new context tokens.

    :param hints: whether each is stored as the difference to the previous one.
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
