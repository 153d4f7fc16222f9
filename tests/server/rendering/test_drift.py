from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.drift import DriftMeter, arguments_digest, echo_fields
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_testing.tokenizers import CHATML_TEMPLATE, SPECIALS, renderer_for, template_renderer
from tests.support.tiers import examples

MOVE = ToolCall("call_1", "move", '{"steps": 1, "direction": "up"}')
SORTED = ToolCall("call_1", "move", '{"direction": "up", "steps": 1}')
CALL_TEXT = (
    '<tool_call>\n{"name": "move", "arguments": {"steps": 1, "direction": "up"}}\n</tool_call>'
)


def drift(sampled, answer, renderer=None):
    renderer = renderer or renderer_for("qwen3")
    return DriftMeter(renderer).drift(renderer.encode(sampled), answer)


@pytest.mark.parametrize(
    ("sampled", "answer"),
    [
        ("Up.<|im_end|>", ChatMessage("assistant", "Up.")),
        ("Up.", ChatMessage("assistant", "Up.")),
        ("<|im_end|>", ChatMessage("assistant")),
        (f"{CALL_TEXT}<|im_end|>", ChatMessage("assistant", tool_calls=(MOVE,))),
        (f"Up.\n{CALL_TEXT}<|im_end|>", ChatMessage("assistant", "Up.", (MOVE,))),
        (
            f"<think>\nhm\n</think>\n\nUp.\n{CALL_TEXT}<|im_end|>",
            ChatMessage("assistant", "Up.", (MOVE,), reasoning="hm"),
        ),
        ("<think>\nhm\n</think>\n\nUp.", ChatMessage("assistant", "Up.", reasoning="hm")),
    ],
)
def test_what_the_template_writes_back_has_not_drifted(sampled, answer):
    assert drift(sampled, answer) == 0


def test_tokens_that_would_be_others_are_counted():
    renderer = renderer_for("qwen3")
    spaced = CALL_TEXT.replace('"steps": 1', '"steps":1')
    call = ChatMessage("assistant", tool_calls=(MOVE,))
    count = drift(f"{spaced}<|im_end|>", call)
    assert 1 <= count < 6
    # Another segmentation of the same text, which only tokens tell.
    merged = renderer.encode("there")
    letters = [token for letter in "there" for token in renderer.encode(letter)]
    assert len(letters) == 5 > len(merged)
    assert DriftMeter(renderer).drift(letters, ChatMessage("assistant", "there")) == 5


def test_white_space_that_is_stripped_has_drifted():
    assert drift("Up. \n<|im_end|>", ChatMessage("assistant", "Up.")) >= 1


def test_tokens_that_would_be_added_count_as_one():
    assert drift("there<|user|>", ChatMessage("assistant", "there"), renderer_for("glm-4.5")) == 1


def test_reasoning_that_a_template_never_writes_has_drifted_as_a_whole():
    renderer = template_renderer(CHATML_TEMPLATE)
    thought = "<think>\nhm\n</think>\n\n"
    answer = ChatMessage("assistant", "Up.", reasoning="hm")
    assert drift(f"{thought}Up.<|im_end|>", answer, renderer) == len(renderer.encode(thought))


def test_what_a_template_cannot_write_has_drifted_as_a_whole():
    renderer = renderer_for("llama-3")
    twice = ChatMessage("assistant", tool_calls=(MOVE, ToolCall("call_2", "move", "{}")))
    ids = renderer.encode("whatever<|eot_id|>")
    assert DriftMeter(renderer).drift(ids, twice) == len(ids) - 1


def test_a_template_that_refuses_the_question_tells_nothing():
    template = (
        "{{ raise_exception('no system') if messages[0].role != 'system' }}" + CHATML_TEMPLATE
    )
    answer = ChatMessage("assistant", "Up.")
    assert drift("Down.<|im_end|>", answer, template_renderer(template)) == 0
    assert drift("Down.<|im_end|>", answer, template_renderer(CHATML_TEMPLATE)) >= 1


@pytest.mark.parametrize("name", SPECIALS)
@settings(max_examples=examples(20), deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["up", "1.", "(go", "left).", "\n", "* a", "a/b", '"x"', "Hm", "="])
    ),
    letter_by_letter=st.booleans(),
)
def test_plain_answers_have_drifted_as_rendering_them_says(name, words, letter_by_letter):
    renderer = renderer_for(name)
    text = " ".join(words)
    pieces = text if letter_by_letter else [text]
    sampled = [token for piece in pieces for token in renderer.encode(piece)]
    answer = ChatMessage("assistant", text)
    rendering = DriftMeter(renderer)
    rendering._plainly = False
    assert DriftMeter(renderer).drift(sampled, answer) == rendering.drift(sampled, answer)


def test_an_answer_in_plain_words_is_not_rendered(monkeypatch):
    meter = DriftMeter(renderer_for("qwen3"))
    ids = meter._renderer.encode("Go up, then left.<|im_end|>")
    meter.drift(ids, ChatMessage("assistant", "Go up, then left."))
    monkeypatch.setattr(meter, "_written", None)
    assert meter.drift(ids, ChatMessage("assistant", "Go up, then left.")) == 0


def test_places_in_history_that_agreed_are_tried_first(monkeypatch):
    renderer = renderer_for("qwen3")
    meter = DriftMeter(renderer)
    answer = ChatMessage("assistant", "Up <there>.")
    ids = renderer.encode("Up <there>.<|im_end|>")
    meter.drift(ids, answer)
    asked = []
    original = renderer.render
    monkeypatch.setattr(renderer, "render", lambda *a, **k: asked.append(a) or original(*a, **k))
    assert meter.drift(ids[:-1], answer) == 0
    assert len(asked) == 1


def test_short_answers_are_rendered_once_whatever_the_ids_of_their_calls(monkeypatch):
    meter = DriftMeter(renderer_for("qwen3"))
    spaced = CALL_TEXT.replace('"steps": 1', '"steps":1')
    answers = [meter._renderer.encode(f"{text}<|im_end|>") for text in (CALL_TEXT, spaced)]
    message = ChatMessage("assistant", tool_calls=(MOVE,))
    drifts = [meter.drift(ids, message) for ids in answers]
    assert drifts[0] == 0 < drifts[1]
    monkeypatch.setattr(meter, "_written", None)
    again = ChatMessage("assistant", tool_calls=(replace(MOVE, id="call_2"),))
    assert [meter.drift(ids, again) for ids in answers] == drifts


def test_ids_that_a_template_writes_count():
    template = CHATML_TEMPLATE.replace(
        "m.content", "m.content ~ ((m.tool_calls or [])|map(attribute='id')|join)"
    )
    meter = DriftMeter(template_renderer(template))
    ids = meter._renderer.encode("call_1<|im_end|>")
    assert meter.drift(ids, ChatMessage("assistant", tool_calls=(MOVE,))) == 0
    assert meter.drift(ids, ChatMessage("assistant", tool_calls=(replace(MOVE, id="no"),))) >= 1


@pytest.mark.parametrize("call", [MOVE, SORTED], ids=["own order", "canonical"])
@pytest.mark.parametrize(
    ("echo", "fields"),
    [
        (lambda call: ChatMessage("assistant", "Up.", (call,), reasoning="hm"), []),
        (lambda call: ChatMessage("assistant", "Up.", (call,)), ["reasoning"]),
        (lambda call: ChatMessage("assistant", "", (call,), reasoning="hm"), ["content"]),
        (lambda call: ChatMessage("assistant", "Up. ", (call,), reasoning="hm"), ["content"]),
        (
            lambda call: ChatMessage(
                "assistant",
                "Up.",
                (ToolCall(call.id, call.name, call.arguments.replace(", ", ",")),),
                reasoning="hm",
            ),
            ["arguments"],
        ),
    ],
    ids=["same", "no reasoning", "no content", "white space", "dumped again"],
)
def test_fields_that_come_back_in_other_bytes_are_named(call, echo, fields):
    given = ChatMessage("assistant", "Up.", (call,), reasoning="hm")
    assert echo_fields(message_text(given), arguments_digest(given), echo(call)) == fields


def test_only_arguments_in_another_form_than_the_kept_one_need_a_digest():
    assert arguments_digest(ChatMessage("assistant", tool_calls=(SORTED,))) is None
    assert arguments_digest(ChatMessage("assistant", tool_calls=(MOVE,))) is not None
    assert arguments_digest(ChatMessage("assistant", "Up.")) is None
