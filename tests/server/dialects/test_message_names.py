"""Messages that have the name of who says them."""

import pytest

from ajet_testing.tokenizers import renderer_for, template_renderer
from tests.server.dialects.families import FAMILIES
from tests.server.dialects.scripted import Gateway, ScriptedEngine

NAMING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.name and m.role != 'tool' %} ({{ m.name }}){% endif %}"
    "{{ '\\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKED = {"role": "user", "content": "Where is the goal?"}
MORE = {"role": "user", "content": "And now?"}


def kimi():
    return renderer_for("kimi-k2.5")


def template():
    return template_renderer(NAMING_TEMPLATE)


def says(renderer, text="there<|im_end|>"):
    return Gateway(ScriptedEngine([renderer.encode(text)]), renderer)


def prompt(gate, number=-1):
    return gate.renderer.decode(gate.calls[number].prompt_ids)


@pytest.mark.parametrize("make", [kimi, template])
async def test_the_model_is_shown_who_speaks_where_its_template_says_it(make):
    gate = says(make())
    await gate.complete({**ASKED, "name": "Alice"}, {**ASKED, "name": "Bob"})
    assert prompt(gate).index("Alice") < prompt(gate).index("Bob")
    assert gate.service.completions.without_effect(gate.request) == ()
    assert [m.text.name for m in gate.calls[0].conversation()] == ["Alice", "Bob"]


@pytest.mark.parametrize(
    ("make", "text"), [(kimi, "</think>there<|im_end|>"), (template, "there<|im_end|>")]
)
async def test_who_speaks_tells_conversations_apart_but_who_answers_does_not(make, text):
    gate = says(make(), text)
    answer = {"role": "assistant", "content": "there", "name": "solver"}
    await gate.complete({**ASKED, "name": "Alice"})
    await gate.complete({**ASKED, "name": "Alice"}, answer, {**MORE, "name": "Bob"})
    await gate.complete({**ASKED, "name": "Bob"}, answer, {**MORE, "name": "Bob"})
    first, following, other = gate.calls
    assert following.parent_call_id == first.call_id
    assert following.prompt_ids[: first.length] == first.token_ids
    assert "Bob" in prompt(gate, 1)
    assert other.parent_call_id is None
    # Nobody sampled it as it is here.
    assert "solver" in prompt(gate, 2)


@pytest.mark.parametrize("name", FAMILIES)
async def test_where_it_is_not_shown_it_changes_nothing(name):
    gates = [FAMILIES[name].gate(FAMILIES[name].said("there")) for _ in range(2)]
    for gate, is_named in zip(gates, (True, False), strict=True):
        by = {"name": "Alice"} if is_named else {}
        answer = {"role": "assistant", "content": "there", **by}
        await gate.complete({**ASKED, **by})
        await gate.complete({**ASKED, **by}, answer, {**MORE, **by})
        in_vain = ("messages.name",) if is_named else ()
        assert gate.request is not None
        assert gate.service.completions.without_effect(gate.request) == in_vain
    named, plain = (gate.calls for gate in gates)
    assert [call.prompt_ids for call in named] == [call.prompt_ids for call in plain]
    assert [call.metadata for call in named] == [call.metadata for call in plain]
    assert named[1].parent_call_id == named[0].call_id


async def test_tools_have_names_of_another_kind():
    gate = says(template())
    calls = [{"id": "c1", "function": {"name": "move", "arguments": "{}"}}]
    result = {"role": "tool", "tool_call_id": "c1", "content": "moved", "name": "move"}
    await gate.complete(ASKED, {"role": "assistant", "tool_calls": calls}, result)
    assert not gate.request.has_names
