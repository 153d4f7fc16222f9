"""System messages in any number and place: the model sees each of them, where it was said."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ajet_core.errors import RequestError
from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_testing.tokenizers import (
    MORE_SPECIALS,
    SPECIALS,
    renderer_for,
    template_renderer,
)
from tests.server.dialects.harmony import gpt_oss_renderer
from tests.support.tiers import examples

ROLES: dict[str, Any] = {"s": "system", "u": "user", "a": "assistant"}
WORDS = (
    "Apple",
    "Birch",
    "Cedar",
    "Daisy",
    "Elder",
    "Fir",
    "Grape",
    "Hazel",
    "Iris",
    "Juniper",
    "Kiwi",
    "Lotus",
    "Maple",
)
ONE_AT_THE_BEGINNING = ["qwen3.5", "qwen3.6", "qwen3.8", "nemotron-3", "nemotron-3.5"]
CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
ASKING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "takes all": f"{{% for m in messages %}}{CHATML}{{% endfor %}}{ASKING}",
    "takes none": "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    f"{CHATML}{{% endfor %}}{ASKING}",
    "leaves later ones out": "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    f"{CHATML}{{% endif %}}{{% endfor %}}{ASKING}",
    # As the templates of Mistral and Gemma do.
    "alternates": "{% set ns = namespace(last='assistant') %}{% for m in messages %}"
    "{% if m.role == ns.last or (m.role == 'system' and not loop.first) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role != 'system' %}{% set ns.last = m.role %}{% endif %}"
    f"{CHATML}{{% endfor %}}{ASKING}",
    "alternates and takes none": "{% set ns = namespace(last='assistant') %}{% for m in messages %}"
    "{% if m.role == ns.last or m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "{% set ns.last = m.role %}"
    f"{CHATML}{{% endfor %}}{ASKING}",
}
MAKERS: dict[str, Callable[[], Any]] = {
    **{name: partial(renderer_for, name) for name in [*SPECIALS, *MORE_SPECIALS]},
    "gpt-oss": gpt_oss_renderer,
    **{name: partial(template_renderer, text) for name, text in TEMPLATES.items()},
}
# DeepSeek R1 takes reasoning out of each answer, so that its conversations are rendered again.
NEVER_EXTENDED = {"deepseek-r1"}
made: dict = {}


def renderer(name):
    if name not in made:
        made[name] = MAKERS[name]()
    return made[name]


def conversation(roles):
    return [ChatMessage(ROLES[role], word) for role, word in zip(roles, WORDS, strict=False)]


def text_of(name, roles):
    return renderer(name).decode(renderer(name).render(conversation(roles), None).ids)


# Questions follow each other only with a system message between them: templates that want roles to
# alternate refuse others.
RUNS = st.sampled_from(["u", "us", "su", "sus", "usu"])
TURNS = st.builds(
    lambda leading, runs: leading + "a".join(runs),
    st.sampled_from(["", "s", "ss"]),
    st.lists(RUNS, min_size=1, max_size=3),
)


@pytest.mark.parametrize("name", MAKERS)
@example(roles="ssu")
@example(roles="us")
@settings(deadline=None, max_examples=examples(15))
@given(roles=TURNS)
def test_every_message_is_shown_once_and_in_order(name, roles):
    text = text_of(name, roles)
    places = [text.find(word) for word in WORDS[: len(roles)]]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert all(text.count(word) == 1 for word in WORDS[: len(roles)]), text


@pytest.mark.parametrize("name", [*ONE_AT_THE_BEGINNING, "minimax-m2", "hy3", "qwen3-vl"])
def test_the_first_ones_are_one_message_with_a_blank_line_between(name):
    joined = [ChatMessage("system", "Apple\n\nBirch"), ChatMessage("user", "Cedar")]
    assert renderer(name).render(conversation("ssu"), None).ids == (
        renderer(name).render(joined, None).ids
    )


@pytest.mark.parametrize("name", [*ONE_AT_THE_BEGINNING, "minimax-m2", "hy3", "qwen3-vl"])
def test_later_ones_are_written_as_text_of_the_user(name):
    for roles in ("sus", "suas", "us", "suasu"):
        words = conversation(roles)
        moved = [
            ChatMessage("user", m.content) if m.role == "system" and i else m
            for i, m in enumerate(words)
        ]
        assert renderer(name).render(words, None).ids == renderer(name).render(moved, None).ids


@pytest.mark.parametrize(
    "name", ["qwen3", "glm-5", "llama-3", "kimi-k2", "laguna-xs.2", "takes all"]
)
def test_a_template_that_takes_them_writes_them_as_they_are(name):
    before = renderer(name)._renderer.render_ids(
        [{"role": m.role, "content": m.content} for m in conversation("ssuasu")],
        add_generation_prompt=True,
    )
    assert renderer(name).render(conversation("ssuasu"), None).ids.tolist() == before


def test_templates_whose_roles_alternate_get_one_message_of_the_user():
    assert text_of("alternates", "susuasu") == (
        "<|im_start|>system\nApple<|im_end|>\n<|im_start|>user\nBirch\n\nCedar\n\nDaisy<|im_end|>\n"
        "<|im_start|>assistant\nElder<|im_end|>\n<|im_start|>user\nFir\n\nGrape<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_what_the_agent_sent_twice_is_not_put_together():
    with pytest.raises(RequestError, match="roles must alternate"):
        text_of("alternates", "suu")


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("roles", ["ssu", "sssu", "susu", "suasu", "suasus"])
def test_every_message_has_a_place_in_the_prompt(name, roles):
    words = conversation(roles)
    rendering = renderer(name).render(words, None)
    for first in range(len(roles) + 1):
        if first and first < len(roles) and roles[first - 1] != "a":
            # New messages begin behind an answer.
            continue
        spans = renderer(name).spans(rendering, words, None, first)
        assert len(spans) == len(roles) - first
        ends = [end for _, end in spans]
        assert ends == sorted(ends) and all(start <= end for start, end in spans)
    spans = renderer(name).spans(rendering, words, None)
    text = renderer(name).decode(rendering.ids[: spans[-1][1]])
    assert WORDS[len(roles) - 1] in text


@pytest.mark.parametrize("name", sorted(MAKERS.keys() - TEMPLATES.keys() - NEVER_EXTENDED))
@pytest.mark.parametrize("roles", ["su", "u", "ssu"])
def test_a_later_one_extends_the_turn_before(name, roles):
    asked = conversation(roles)
    prompt = renderer(name).render(asked, None).ids
    new = [ChatMessage("system", "Hurry"), ChatMessage("user", "Go on")]
    led = roles.startswith("s")
    tried = (
        [*renderer(name).encode(said), stop]
        for said in (
            "Yes",
            "</think>\n\nYes",
            "<|end|><|start|>assistant<|channel|>final<|message|>Yes",
        )
        for stop in renderer(name).stop_token_ids
    )
    found = (
        (answer, renderer(name).bridge(prompt, answer, new, None, reasoned=False, led=led))
        for answer in tried
    )
    answer, bridged = next((pair for pair in found if pair[1] is not None), (None, None))
    assert answer is not None and bridged is not None
    written = renderer(name).decode(bridged.ids[len(prompt) + len(answer) :])
    whole = [*asked, ChatMessage("assistant", "Yes"), *new]
    rendered = renderer(name).decode(renderer(name).render(whole, None).ids)
    # The way that the whole conversation would be written.
    assert rendered.endswith(written[written.index("Hurry") :])
    assert written.index("Hurry") < written.index("Go on")
    (first, second) = bridged.spans
    assert "Hurry" in renderer(name).decode(bridged.ids[slice(*first)])
    assert "Go on" in renderer(name).decode(bridged.ids[slice(*second)])
