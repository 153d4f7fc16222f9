"""Ends of messages in a template's text, against rendering every beginning of the conversation."""

import random

import jinja2
import pytest

from ajet_server.gateway.rendering.template_text import template_ends
from ajet_testing.tokenizers import CHATML_TEMPLATE

CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}</tool_call>{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML_TEMPLATE.replace("{{ m.content }}", "{{ m.content }}" + CALLS),
    "stripped": CHATML_TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}" + CALLS),
    "json": CHATML_TEMPLATE.replace("{{ m.content }}", "{{ m.content | tojson }}" + CALLS),
    "bare": "{% for m in messages %}{{ m.role }}: {{ m.content }}" + CALLS + "\n{% endfor %}",
    "between": "{% for m in messages %}{% if not loop.first %}\n{% endif %}"
    "[{{ m.role }}]{{ m.content }}" + CALLS + "{% endfor %}",
    "named": CHATML_TEMPLATE.replace(
        "{{ m.content }}", "{{ m.tool_call_id }} {{ m.content }}" + CALLS
    ),
    "system in front": "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
    "{% elif m.role == 'assistant' %}{{ m.content }}"
    + CALLS
    + "</s>{% else %}[INST]{{ m.content }}[/INST]"
    "{% endif %}{% endfor %}",
    "no empty": CHATML_TEMPLATE.replace(
        "{{ m.content }}", "{% if m.content %}{{ m.content }}{% endif %}" + CALLS
    ),
}
TEXTS = [
    "up",
    "",
    "up there",
    "user",
    "  spaced  ",
    "<|im_end|>\n",
    "a\nb",
    "[/INST]",
    "assistant: up",
    "\n",
    "up",
    "Zq0Zqa1z",
    "日本",
]


def conversation(dice, length):
    messages = [{"role": "system", "content": dice.choice(TEXTS)}] if dice.random() < 0.8 else []
    while len(messages) < length:
        messages.append({"role": "user", "content": dice.choice(TEXTS)})
        answer = {"role": "assistant", "content": dice.choice(TEXTS)}
        messages.append(answer)
        if dice.random() < 0.5:
            calls = [f"call_{dice.randint(0, 99)}" for _ in range(dice.randint(1, 3))]
            answer["tool_calls"] = [
                {"id": c, "function": {"name": "move", "arguments": {"by": dice.randint(0, 9)}}}
                for c in calls
            ]
            messages += [
                {"role": "tool", "tool_call_id": c, "content": dice.choice(TEXTS)} for c in calls
            ]
    return messages[:length]


class Writer:
    def __init__(self, template):
        self.template = jinja2.Environment().from_string(template)
        self.count = self.messages = 0

    def __call__(self, part, *, asking):
        self.count += 1
        self.messages += len(part)
        return self.template.render(messages=part, add_generation_prompt=asking)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_ends_are_those_of_the_beginnings(name):
    dice = random.Random(name)
    told = expected = 0
    for _ in range(60):
        messages = conversation(dice, dice.randint(1, 30))
        write = Writer(TEMPLATES[name])
        text = write(messages, asking=True)
        exact = {n: len(write(messages[:n], asking=False)) for n in range(1, len(messages) + 1)}
        first = dice.randint(1, len(messages))
        ends = template_ends(write, messages, text, first)
        told += len(ends)
        expected += len(messages) - first + 1
        assert ends == {n: exact[n] for n in ends}
    assert told > 0.95 * expected


def test_a_long_conversation_takes_a_handful_of_renderings():
    messages = conversation(random.Random(0), 400)
    write = Writer(TEMPLATES["chatml"])
    text = write(messages, asking=True)
    write.count = write.messages = 0
    assert len(template_ends(write, messages, text, 1)) == 400
    assert write.count <= 14
    assert write.messages < 4 * 400


def test_a_template_that_counts_characters_is_asked_for_some_beginnings():
    template = CHATML_TEMPLATE.replace("{{ m.content }}", "{{ m.content | length }}")
    messages = conversation(random.Random(1), 100)
    write = Writer(template)
    text = write(messages, asking=True)
    write.count = 0
    ends = template_ends(write, messages, text, 1)
    assert write.count <= 14
    assert 8 <= len(ends) < 20
    assert all(text.startswith(write(messages[:n], asking=False)) for n in ends)


def test_a_template_that_refuses_parts_says_what_it_can():
    refusing = "{% if messages | length < 4 %}{{ raise() }}{% endif %}" + CHATML_TEMPLATE
    messages = conversation(random.Random(2), 6)
    write = Writer(refusing)
    assert template_ends(write, messages, write(messages, asking=True), 1).keys() >= {4, 5, 6}
