"""Arbitrary conversations come back from the file as they were."""

import asyncio
import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_core.interfaces import WorkerContext
from ajet_core.timeline import Call, MessageText, PlacedMessage
from ajet_server.embedded.settings import SqliteStoreSettings
from ajet_server.embedded.trie import TokenTrie
from ajet_server.store.sqlite_store import SqliteStore
from ajet_stores import codec
from ajet_testing.suites.samples import conversation, make_episode
from tests.support.tiers import examples

# Few different tokens, so that prompts share prefixes by chance as well.
TOKENS = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=12)
NUMBERS = st.floats(allow_nan=False)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
MESSAGES = st.builds(MessageText, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    made: list[Call] = []
    for index in range(draw(st.integers(0, 8))):
        base = draw(st.none() | st.sampled_from(made)) if made else None
        shared = 0 if base is None else draw(st.just(base.length) | st.integers(0, base.length))
        sampled = draw(TOKENS)
        size = len(sampled)
        suffix = draw(TOKENS)
        cuts = sorted(draw(st.lists(st.integers(shared, shared + len(suffix)), max_size=4)))
        made.append(
            Call(
                call_id=f"{index}-{draw(TEXTS)}",
                episode_id="episode",
                index=index,
                suffix_ids=suffix,
                sampled_ids=sampled,
                logprobs=draw(st.lists(NUMBERS, min_size=size, max_size=size)),
                policy_versions=draw(
                    st.lists(st.integers(-1, 2**40), min_size=size, max_size=size)
                ),
                temperature=draw(st.floats(0, 5)),
                finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
                base=base,
                shared=shared,
                agent=draw(TEXTS),
                created_at=draw(st.floats(0, 2e9)),
                top_p=draw(st.floats(0.1, 1)),
                top_k=draw(st.integers(0, 100)),
                metadata=draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
                messages=tuple(
                    PlacedMessage(start, end, draw(MESSAGES))
                    for start, end in itertools.pairwise(cuts)
                ),
                answer=draw(st.none() | MESSAGES),
                tools=draw(st.sampled_from(["", "[1]"]) | TEXTS),
            )
        )
    return made


@settings(max_examples=examples(60), deadline=None)
@given(calls(), st.booleans(), st.integers(0, 8))
def test_calls_and_their_trees_come_back_exactly(
    made: list[Call], together: bool, reopen_after: int
) -> None:
    async def round_trip(run_dir: Path) -> list[Call]:
        store = SqliteStore(SqliteStoreSettings(synchronous="NORMAL"), WorkerContext(run_dir))
        await store.open()
        await store.append(make_episode())
        if together:
            await asyncio.gather(*map(store.append, made))
        else:
            for call in made:
                if call.index == reopen_after:
                    await store.close()
                    await store.open()
                await store.append(call)
        stored = (await store.calls(["episode"]))["episode"]
        await store.close()
        return stored

    def tree(found: list[Call]) -> object:
        trie = TokenTrie("episode")
        for call in found:
            trie.add(call)
        return trie.tree()

    with tempfile.TemporaryDirectory() as directory:
        stored = asyncio.run(round_trip(Path(directory)))
    assert stored == made
    assert tree(stored) == tree(made)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)) | st.lists(st.integers(0, 1)))
def test_runs_come_back_exactly(values: list[int]) -> None:
    assert codec.unpack_runs(codec.pack_runs(values)) == values


async def test_a_conversation_takes_room_linear_in_its_length(tmp_path: Path) -> None:
    store = SqliteStore(SqliteStoreSettings(), WorkerContext(tmp_path))
    await store.open()
    await store.append(make_episode())
    for call in conversation(60):
        await store.append(call)
    stored = (await store.calls(["episode"]))["episode"]
    await store.close()
    assert stored[0].base is None
    assert [len(call.suffix_ids) for call in stored[1:]] == [2] * 59
