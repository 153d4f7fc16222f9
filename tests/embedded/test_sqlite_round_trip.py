"""Arbitrary conversations, and the bounded memory of what they may go on from."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.embedded import codec
from ajet_core.embedded.prompt_bases import PromptBases, shared_prefix
from ajet_core.embedded.settings import SqliteStoreSettings
from ajet_core.embedded.sqlite_store import SqliteStore
from ajet_core.interfaces import WorkerContext
from ajet_core.testing.samples import conversation, make_call, make_episode
from ajet_core.timeline import Call

# Few different tokens, so that prompts share prefixes by chance as well.
TOKENS = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=12)
NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    made: list[Call] = []
    for index in range(draw(st.integers(0, 8))):
        parent = draw(st.none() | st.sampled_from(made)) if made else None
        inherited: list[int] = []
        if parent is not None:
            inherited = parent.token_ids[: draw(st.integers(0, len(parent.token_ids)))]
            inherited = draw(st.sampled_from([inherited, parent.token_ids]))
        sampled = draw(TOKENS)
        size = len(sampled)
        made.append(
            Call(
                call_id=f"{index}-{draw(TEXTS)}",
                episode_id="episode",
                index=index,
                prompt_ids=inherited + draw(TOKENS),
                sampled_ids=sampled,
                logprobs=draw(st.lists(NUMBERS, min_size=size, max_size=size)),
                policy_versions=draw(
                    st.lists(st.integers(-1, 2**40), min_size=size, max_size=size)
                ),
                temperature=draw(st.floats(0, 5)),
                finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
                agent=draw(TEXTS),
                parent_call_id=parent.call_id if parent else draw(st.none() | TEXTS),
                created_at=draw(st.floats(0, 2e9)),
                top_p=draw(st.floats(0.1, 1)),
                top_k=draw(st.integers(0, 100)),
                metadata=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
            )
        )
    return made


@settings(max_examples=60, deadline=None)
@given(calls(), st.booleans(), st.integers(0, 8))
def test_calls_come_back_exactly(made: list[Call], together: bool, reopen_after: int) -> None:
    async def round_trip(run_dir: Path) -> list[Call]:
        store = SqliteStore(SqliteStoreSettings(synchronous="NORMAL"), WorkerContext(run_dir))
        await store.open()
        await store.add_episode(make_episode())
        if together:
            await asyncio.gather(*map(store.add_call, made))
        else:
            for call in made:
                if call.index == reopen_after:
                    await store.close()
                    await store.open()
                await store.add_call(call)
        stored = (await store.calls(["episode"]))["episode"]
        await store.close()
        return stored

    with tempfile.TemporaryDirectory() as directory:
        assert asyncio.run(round_trip(Path(directory))) == made


@given(st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.integers(0, 1)))
def test_runs_come_back_exactly(values: list[int]) -> None:
    assert codec.unpack_runs(codec.pack_runs(values)) == values


@given(
    st.lists(st.integers(0, 1), max_size=6),
    st.lists(st.integers(0, 1), max_size=6),
    st.lists(st.integers(0, 1), max_size=14),
)
def test_shared_prefix_is_the_longest(
    prompt: list[int], sampled: list[int], other: list[int]
) -> None:
    tokens = prompt + sampled
    expected = 0
    while expected < min(len(tokens), len(other)) and tokens[expected] == other[expected]:
        expected += 1
    assert shared_prefix(make_call("call", prompt, sampled), other) == expected


def test_a_base_is_found_by_the_parents_name() -> None:
    bases = PromptBases()
    bases.know_episode("episode", 1)
    first, second = conversation(2)
    bases.add(first, 11)
    assert bases.find(second) == (11, len(first.token_ids))


def test_bases_are_bounded_in_calls_per_episode() -> None:
    bases = PromptBases(calls_per_episode=2)
    bases.know_episode("episode", 1)
    made = conversation(5)
    for row_id, call in enumerate(made[:4]):
        bases.add(call, row_id)
    assert bases.find(made[1]) == (None, 0)
    assert bases.find(made[4]) == (3, len(made[3].token_ids))


def test_bases_are_bounded_in_tokens_and_the_oldest_episode_goes_first() -> None:
    old, new = conversation(2, episode_id="old"), conversation(2, episode_id="new")
    bases = PromptBases(max_tokens=len(old[0].token_ids))
    for row_id, call in ((1, old[0]), (2, new[0])):
        bases.know_episode(call.episode_id, row_id)
        bases.add(call, row_id)
    assert bases.find(old[1]) == (None, 0)
    assert bases.episode_row("old") is None
    assert bases.find(new[1])[0] == 2


def test_a_forgotten_episode_makes_room() -> None:
    bases = PromptBases(max_tokens=8)
    first, second = conversation(1, episode_id="first")[0], conversation(2, episode_id="second")
    bases.know_episode("first", 1)
    bases.add(first, 1)
    bases.forget("first")
    bases.know_episode("second", 2)
    bases.add(second[0], 2)
    assert bases.find(second[1])[0] == 2
