"""What agents do with conversations, for families of every kind, with real tokenizers."""

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ajet_server.embedded.trie import TokenTrie
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.conversation import ConversationIndex
from ajet_server.gateway.rendering.prompting import Continuation
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import MOVE, body
from tests.support.tiers import examples

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Where is the goal?"}
MORE = {"role": "user", "content": "go on"}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


class Talk:
    """Requests to a gateway, and after them what must hold of every call."""

    def __init__(self, gate):
        self.gate = gate
        self.asked = {}

    async def ask(self, *messages, **settings):
        """A completion; returns its messages, as the client would send them back."""
        messages = copy.deepcopy(messages)
        completion = await self.gate.complete(*messages, **settings)
        said = [
            message_text(message).key
            for message in read_chat_request(body(*messages, **settings)).messages
        ]
        for call in self.gate.calls:
            if call.call_id.startswith(completion.id):
                self.asked[call.call_id] = said
        return [choice.message.model_dump(exclude_none=True) for choice in completion.choices]

    @property
    def calls(self):
        return self.gate.calls

    def extends(self, later, earlier):
        """Whether a call goes on from all tokens of another."""
        call, before = self.calls[later], self.calls[earlier]
        begins = call.prompt_ids[: before.length] == before.token_ids
        assert begins or call.parent_call_id != before.call_id
        return call.parent_call_id == before.call_id

    def check(self):
        given = {request.request_id: request for request in self.gate.engine.requests}
        trie = TokenTrie("ep")
        for call in self.calls:
            assert call.prompt_ids == given[call.call_id].prompt_ids
            assert [m.text.key for m in call.conversation()] == self.asked[call.call_id]
            self._check_places(call)
            trie.add(call)
        tree = trie.tree()
        for call, end in zip(tree.calls, tree.ends, strict=True):
            assert tree.path_ids(end) == call.token_ids
        self._check_restored()

    def _check_places(self, call):
        ids, decode = call.prompt_ids, self.gate.renderer.decode
        at = 0
        for message in call.conversation():
            assert at <= message.end <= call.prompt_length
            assert message.start <= message.end
            at = message.end
            # Where a template writes an answer differently once more follows, nobody can say where
            # it ends.
            start = 0 if self.gate.renderer.name == "default" else message.start
            if message.text.role != "assistant":
                assert message.text.content in decode(ids[start : message.end])

    def _check_restored(self):
        """After a restart, what comes next is made of the same tokens."""
        restored = ConversationIndex.restore(reversed(self.calls))
        index = self.gate.session.index
        for messages, tools in self.gate.requests:
            again, live = (
                known.plan(messages, tools).render(self.gate.renderer)
                for known in (restored, index)
            )
            assert again == live
            assert restored.prefix(again) == index.prefix(live)


def results(message):
    """What a tool-using agent sends after an answer."""
    calls = message.get("tool_calls", [])
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": f"2 down of {i}"}
        for i, call in enumerate(calls)
    ] or [MORE]


def rendered(talk, *messages, **settings):
    """What a full render of a request's messages decodes to."""
    request = read_chat_request(body(*messages, **settings))
    renderer = talk.gate.renderer
    return renderer.decode(
        ConversationIndex().plan(request.messages, request.tools).render(renderer).ids
    )


async def test_every_call_of_a_linear_conversation_extends_its_predecessor(family):
    talk = Talk(family.gate(*[family.call or family.said("Up.")] * 4))
    history = [SYSTEM, QUESTION]
    for turn in range(4):
        (message,) = await talk.ask(*history, tools=[MOVE])
        call = talk.calls[turn]
        # The answers are written as the template writes them, so that both ways give the same text.
        assert talk.gate.renderer.decode(call.prompt_ids) == rendered(talk, *history, tools=[MOVE])
        assert "drift_tokens" not in call.metadata
        history += [message, *results(message)]
    assert all(talk.extends(i + 1, i) for i in range(3))
    stored = sum(len(call.suffix_ids) + len(call.sampled_ids) for call in talk.calls)
    assert stored == talk.calls[-1].length
    assert len({id(call.tools) for call in talk.calls}) == 1
    talk.check()


@pytest.mark.parametrize("kind", ["say", "call"])
async def test_a_proof_gives_the_tokens_of_a_bridge(family, kind, monkeypatch):
    said = family.said("Up.") if kind == "say" else family.call or family.said("Up.")
    talk = Talk(family.gate(said, family.said("Down.")))
    (message,) = await talk.ask(SYSTEM, QUESTION, tools=[MOVE])
    request = read_chat_request(body(SYSTEM, QUESTION, message, *results(message), tools=[MOVE]))
    renderer, index = talk.gate.renderer, talk.gate.session.index
    bridged = index.plan(request.messages, request.tools).render(renderer)
    monkeypatch.setattr(renderer, "bridge", lambda *args, **settings: None)
    proven = index.plan(request.messages, request.tools).render(renderer)
    if (family.name, kind) == ("gpt-oss", "say"):
        # Its prompts begin an analysis that its history leaves out.
        reasons = bridged.continuation, proven.continuation
        assert reasons == (Continuation.BRIDGED, Continuation.TEMPLATE_DIFFERS)
        return
    by_rules = family.name != "default"
    assert bridged.continuation is (Continuation.BRIDGED if by_rules else Continuation.PROVEN)
    assert proven == replace(bridged, continuation=Continuation.PROVEN)


async def test_choices_share_their_prompt_and_each_can_be_gone_on_with(family):
    texts = ["Up.", f"Down{' then left' * 9}.", "Left.", "Right."]
    talk = Talk(family.gate(*map(family.said, texts), fair=True))
    choices = await talk.ask(SYSTEM, QUESTION, n=2)
    for position, message in enumerate(choices):
        await talk.ask(SYSTEM, QUESTION, message, MORE)
        (before,) = (i for i in (0, 1) if talk.calls[i].answer.content == message["content"])
        assert talk.extends(2 + position, before)
    assert talk.calls[1].base is talk.calls[0]
    assert not talk.calls[1].suffix_ids
    assert talk.calls[1].parent_call_id is None
    talk.check()


async def test_calls_at_the_same_time_share_their_prompt(family):
    texts = [f"Up{' then left' * (9 * i)}." for i in range(3)]
    talk = Talk(family.gate(*map(family.said, texts), fair=True))
    await asyncio.gather(*(talk.ask(SYSTEM, QUESTION) for _ in range(3)))
    assert [len(call.suffix_ids) for call in talk.calls[1:]] == [0, 0]
    talk.check()


async def test_interleaved_agents_extend_their_own_calls(family):
    talk = Talk(family.gate(*[family.said("Up."), family.said("Down.")] * 5))
    histories = [
        [{"role": "system", "content": f"You are a helpful {role}."}, QUESTION]
        for role in ("assistant", "user", "tool")
    ]
    for turn in range(3):
        for agent, history in enumerate(histories):
            (message,) = await talk.ask(*history)
            if turn:
                assert talk.extends(3 * turn + agent, 3 * (turn - 1) + agent)
            history += [message, MORE]
    talk.check()


async def test_a_dropped_retry_leaves_both_answers_to_go_on_from(family):
    talk = Talk(family.gate(*map(family.said, ("Up.", "Down.", "Left.", "Right.", "Up."))))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    (second,) = await talk.ask(SYSTEM, QUESTION)
    assert not talk.calls[1].suffix_ids
    await talk.ask(SYSTEM, QUESTION, second, MORE)
    await talk.ask(SYSTEM, QUESTION, first, MORE)
    assert talk.extends(2, 1)
    assert talk.extends(3, 0)
    # The retry of a call that extends another one extends it likewise.
    await talk.ask(SYSTEM, QUESTION, first, MORE)
    assert talk.extends(4, 0)
    talk.check()


async def test_sub_agents_fork_a_context_wherever_they_like(family):
    talk = Talk(family.gate(*map(family.said, ("Up.", "Down.", "Left.", "Right.", "I am there."))))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    trunk = [SYSTEM, QUESTION, first, MORE]
    (second,) = await talk.ask(*trunk)
    await talk.ask(*trunk, second, {"role": "user", "content": "fork one"})
    await talk.ask(*trunk, second, {"role": "user", "content": "fork two"})
    await talk.ask(*trunk[:3], {"role": "user", "content": "fork three"})
    assert [talk.extends(2, 1), talk.extends(3, 1), talk.extends(4, 0)] == [True] * 3
    talk.check()


async def test_rewritten_history_is_rendered_and_shares_what_stayed(family):
    talk = Talk(family.gate(*map(family.said, ("Up.", "Down.", "Left.", "Right."))))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    (second,) = await talk.ask(SYSTEM, QUESTION, first, MORE)
    edited = [SYSTEM, QUESTION, {"role": "assistant", "content": "Stay."}, MORE, second, MORE]
    (third,) = await talk.ask(*edited)
    call = talk.calls[2]
    assert call.parent_call_id is None
    assert talk.gate.renderer.decode(call.prompt_ids) == rendered(talk, *edited)
    # The system prompt and the question were not rewritten: the first call has them.
    assert call.base is talk.calls[0]
    assert [m.text.role for m in call.messages] == ["assistant", "user", "assistant", "user"]
    assert all(m.end > call.shared for m in call.messages)
    await talk.ask(*edited, third, MORE)
    assert talk.extends(3, 2)
    talk.check()


async def test_summarised_history_starts_anew_and_goes_on(family):
    talk = Talk(family.gate(*map(family.said, ("Up.", "Down.", "Left."))))
    await talk.ask(SYSTEM, QUESTION)
    summary = [SYSTEM, {"role": "user", "content": "So far: moved up. Where now?"}]
    (second,) = await talk.ask(*summary)
    assert talk.calls[1].parent_call_id is None
    assert talk.gate.renderer.decode(talk.calls[1].prompt_ids) == rendered(talk, *summary)
    await talk.ask(*summary, second, MORE)
    assert talk.extends(2, 1)
    talk.check()


async def test_a_changed_tool_list_is_rendered(family):
    talk = Talk(family.gate(*map(family.said, ("Up.", "Down.", "Left.", "Right."))))
    (first,) = await talk.ask(SYSTEM, QUESTION, tools=[MOVE])
    other = copy.deepcopy(MOVE)
    other["function"]["description"] = "Moves."
    history = [SYSTEM, QUESTION, first, MORE]
    for position, offer in enumerate(({"tools": [other]}, {"tools": [MOVE, other]}, {}), 1):
        await talk.ask(*history, **offer)
        call = talk.calls[position]
        # The template of DeepSeek-V3 writes no tools, so that they change no token.
        before = talk.calls[0].token_ids
        assert (call.prompt_ids[: len(before)] == before) == (family.name == "deepseek-v3")
        assert talk.gate.renderer.decode(call.prompt_ids) == rendered(talk, *history, **offer)
    assert len({call.tools for call in talk.calls}) == 4
    assert talk.calls[-1].tools == ""
    talk.check()


REASONING = [name for name, family in FAMILIES.items() if family.think]


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("echoed", [True, False], ids=["echoed", "dropped"])
async def test_reasoning_that_the_template_strips_at_a_new_question(name, echoed):
    family = FAMILIES[name]
    talk = Talk(family.gate(family.thought("Up."), family.said("Down."), family.said("Left.")))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    assert first["reasoning_content"] == "hm hm"
    if not echoed:
        del first["reasoning_content"]
    history = [SYSTEM, QUESTION, first, MORE]
    (second,) = await talk.ask(*history)
    call = talk.calls[1]
    assert call.parent_call_id is None
    assert "hm hm" not in talk.gate.renderer.decode(call.prompt_ids)
    assert talk.gate.renderer.decode(call.prompt_ids) == rendered(talk, *history)
    # The question before is there, and only what follows it is kept again.
    assert call.base is talk.calls[0]
    assert [m.text.role for m in call.messages] == ["assistant", "user"]
    await talk.ask(*history, second, MORE)
    assert talk.extends(2, 1)
    talk.check()


async def test_an_answer_with_parts_of_characters_is_extended(family):
    talk = Talk(family.gate(family.said("Up ~ there."), family.said("Down.")))
    renderer, engine = talk.gate.renderer, talk.gate.engine
    # The first bytes of an emoji in the place of a character.
    (at,) = (i for i, t in enumerate(engine.scripts[0]) if "~" in renderer.decode([t]))
    engine.scripts[0][at : at + 1] = renderer.encode("\U0001f71a")[:2]
    (first,) = await talk.ask(SYSTEM, QUESTION)
    assert "\ufffd" in first["content"]
    await talk.ask(SYSTEM, QUESTION, first, MORE)
    assert talk.extends(1, 0)
    assert int(talk.calls[0].metadata["drift_tokens"]) >= 1
    assert talk.calls[0].sampled_ids == engine.scripts[0]
    talk.check()


UNPARSABLE = {
    "qwen3": "<tool_call>\n{no json}\n</tool_call><|im_end|>",
    "llama-3": '{"name": "move", "parameters": <|eot_id|>',
    "gpt-oss": "<|end|><|start|>assistant to=functions.move<|channel|>commentary<|message|>"
    "{no json}<|call|>",
    "glm-4.5": "\n<think></think>\n<tool_call>move<arg_key>direction</tool_call><|observation|>",
    "default": "<tool_call>\n{no json}\n</tool_call><|im_end|>",
}
UNPARSABLE["deepseek-v3"] = FAMILIES["deepseek-v3"].call.replace('{"direction": "up"}', "{no json}")


async def test_an_unparsable_tool_call_is_shown_and_extended(family):
    talk = Talk(family.gate(UNPARSABLE[family.name], family.said("Down.")))
    (first,) = await talk.ask(SYSTEM, QUESTION, tools=[MOVE])
    await talk.ask(SYSTEM, QUESTION, first, *results(first), tools=[MOVE])
    assert talk.extends(1, 0)
    talk.check()


async def test_an_answer_without_a_text_is_extended(family):
    talk = Talk(family.gate(family.said(""), family.said("Down.")))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    assert first["content"] == ""
    await talk.ask(SYSTEM, QUESTION, first, MORE)
    assert talk.extends(1, 0)
    talk.check()


async def test_an_answer_that_was_cut_off_is_closed_and_extended(family):
    text = family.said("I am")
    stop = family.renderer().decode(family.renderer().encode(text)[-1:])
    talk = Talk(family.gate(text.removesuffix(stop), family.said("Down."), finish="length"))
    (first,) = await talk.ask(SYSTEM, QUESTION)
    await talk.ask(SYSTEM, QUESTION, first, MORE)
    assert talk.extends(1, 0)
    talk.check()


async def test_an_aborted_call_is_shared_but_not_extended(family):
    gate = family.gate(family.said("Up there."), family.said("Down."))
    gate.engine.hold, gate.engine.hold_at = asyncio.Event(), 2
    talk = Talk(gate)
    asking = asyncio.create_task(talk.ask(SYSTEM, QUESTION))
    await gate.engine.held.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.engine.hold.set()
    await talk.ask(SYSTEM, QUESTION)
    aborted, retried = talk.calls
    assert aborted.answer is None
    assert retried.base is aborted
    assert not retried.suffix_ids
    talk.asked[aborted.call_id] = talk.asked[retried.call_id]
    talk.check()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.call])
async def test_other_ids_of_tool_calls_are_another_conversation_with_the_same_tokens(name):
    family = FAMILIES[name]
    assert family.call is not None
    talk = Talk(family.gate(family.call, family.said("Down."), family.said("Left.")))
    (first,) = await talk.ask(SYSTEM, QUESTION, tools=[MOVE])
    await talk.ask(SYSTEM, QUESTION, first, *results(first), tools=[MOVE])
    first["tool_calls"][0]["id"] = "call_other"
    await talk.ask(SYSTEM, QUESTION, first, *results(first), tools=[MOVE])
    assert talk.calls[2].parent_call_id is None
    assert talk.calls[2].messages[0].text.role == "assistant"
    talk.check()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["go on", "retry", "edit", "drop", "tools"]), st.integers(0, 20)),
    min_size=2,
    max_size=9,
)


@given(actions=ACTIONS)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_agents_do_the_record_is_what_was_asked_and_sampled(family, actions):
    async def run():
        scripts = [family.said(f"Move {i}.") for i in range(3)]
        scripts += [family.thought("there")] if family.think else [family.said("there")]
        scripts += [family.call] if family.call else [family.said("")]
        talk = Talk(family.gate(*scripts * 2, family.said("end")))
        asked: list[Any] = []
        for kind, which in [("new", 0), *actions]:
            history, tools, (message,) = asked[which % len(asked)] if asked else ([], None, [None])
            offer = {"tools": [MOVE]} if tools else {}
            match kind:
                case "new":
                    history = [SYSTEM, QUESTION]
                case "go on":
                    history = [*history, message, *results(message)]
                case "tools":
                    offer = {} if tools else {"tools": [MOVE]}
                case "edit":
                    history = [
                        *history[:1],
                        {"role": "user", "content": f"other {which}"},
                        *history[2:],
                    ]
                case "drop":
                    history = [*history[:2], *history[4:]]
            asked.append((history, offer, await talk.ask(*history, **offer)))
        talk.check()

    asyncio.run(run())
