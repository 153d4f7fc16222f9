"""Relaxed merging with real tokenizers: a merged context reads as the template writes it."""

import copy
from dataclasses import replace

import pytest

from ajet_server.embedded.trie import TokenTrie
from ajet_server.gateway.formats.chat import read_chat_request
from ajet_server.gateway.formats.exchange import Session
from ajet_server.gateway.rendering.conversation import ConversationIndex
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import MOVE, Gateway, ScriptedEngine, body

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Where is the goal?"}
MORE = {"role": "user", "content": "go on"}
JUMP = copy.deepcopy(MOVE)
JUMP["function"]["name"] = "jump"

CLOSED = ["qwen3", "llama-3", "glm-4.5", "default"]


@pytest.fixture(params=CLOSED)
def family(request):
    return FAMILIES[request.param]


def gate_of(family, *scripts):
    """A gateway whose model samples these tokens."""
    return Gateway(ScriptedEngine(list(scripts)), family.renderer())


async def answered(gate, *messages, **settings):
    completion = await gate.complete(*messages, **settings)
    return completion.choices[0].message.model_dump(exclude_none=True)


async def rendered_anew(gate, *messages, **settings):
    """A call by a gateway that knows of none before, as one of the same episode."""
    gate.session = Session("ep", ConversationIndex())
    await gate.complete(*messages, **settings)
    gate.calls[-1] = replace(gate.calls[-1], index=len(gate.calls) - 1)


def merged(gate, policy):
    trie = TokenTrie("ep", policy)
    for call in gate.calls:
        trie.add(call)
    return trie.tree()


def last_context(tree):
    return tree.path_ids(tree.ends[-1])


def drifted(family, renderer):
    """An answer that is spelled in single letters, but for its end."""
    before, after = family.say.split("TEXT")
    parts = [before, *"Where is the", f" goal?{after}"]
    return [token for part in parts if part for token in renderer.encode(part)]


async def test_an_answer_that_drifted_reads_the_same(family):
    renderer = family.renderer()
    more = renderer.encode(family.said("Left."))
    gate = gate_of(family, drifted(family, renderer), more)
    message = await answered(gate, SYSTEM, QUESTION)
    await rendered_anew(gate, SYSTEM, QUESTION, message, MORE)
    tree, own = merged(gate, "text"), gate.calls[1].token_ids
    assert len(tree.leaves()) == 1
    assert last_context(tree) != own
    assert renderer.decode(last_context(tree)) == renderer.decode(own)
    assert 0 < tree.tokens_altered < len(gate.calls[0].sampled_ids)


@pytest.mark.parametrize("name", [name for name in CLOSED if FAMILIES[name].think])
async def test_reasoning_that_was_left_out_is_all_that_differs(name):
    family = FAMILIES[name]
    renderer = family.renderer()
    gate = family.gate(family.thought("Up."), family.said("Left."))
    message = await answered(gate, SYSTEM, QUESTION)
    await gate.complete(SYSTEM, QUESTION, message, MORE)
    assert gate.calls[1].parent_call_id is None
    tree = merged(gate, "text")
    (leaf,) = tree.leaves()
    text, own = renderer.decode(tree.path_ids(leaf)), renderer.decode(gate.calls[1].token_ids)
    kept = {"glm-4.5": ("<think>hm hm</think>", "<think></think>")}
    assert text.replace(*kept.get(name, ("<think>\nhm hm\n</think>\n\n", ""))) == own
    assert text != own


async def test_other_tools_are_those_of_the_first_call(family):
    renderer = family.renderer()
    gate = family.gate(family.said("Up."), family.said("Left."))
    message = await answered(gate, SYSTEM, QUESTION, tools=[MOVE])
    await gate.complete(SYSTEM, QUESTION, message, MORE, tools=[JUMP, MOVE])
    assert len(merged(gate, "text").leaves()) == 2
    tree = merged(gate, "ignore_tools")
    (leaf,) = tree.leaves()
    request = read_chat_request(body(SYSTEM, QUESTION, message, MORE, tools=[MOVE]))
    asked = ConversationIndex().plan(request.messages, request.tools).render(renderer).ids
    expected = renderer.decode(asked) + renderer.decode(gate.calls[1].sampled_ids)
    assert renderer.decode(tree.path_ids(leaf)) == expected
    assert tree.tokens_altered >= gate.calls[1].length - len(tree.path_ids(leaf)) > 20


@pytest.mark.parametrize("stop", ["\n", " and"])
async def test_an_answer_that_a_stop_string_ended_keeps_its_own_timeline(family, stop):
    renderer = family.renderer()
    before, after = family.say.split("TEXT")
    gate = family.gate(f"{before.lstrip()}Up there{stop} left.{after}", family.said("Left."))
    message = await answered(gate, SYSTEM, QUESTION, stop=stop)
    assert gate.calls[0].finish_reason == "stop"
    await rendered_anew(gate, SYSTEM, QUESTION, message, MORE)
    tree = merged(gate, "text")
    assert last_context(tree) == gate.calls[1].token_ids
    assert tree.tokens_altered == 0
    assert renderer.decode(gate.calls[0].sampled_ids).endswith(stop)
