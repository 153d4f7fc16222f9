from array import array

import pytest

from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_server.gateway.rendering.placing import attributed_spans, template_spans
from ajet_testing.tokenizers import CHATML_TEMPLATE, template_renderer

MESSAGES = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "Where?"),
    ChatMessage("assistant", "there"),
    ChatMessage("user", "and now?"),
]


@pytest.mark.parametrize(
    ("indices", "count", "spans"),
    [
        ([-1, 0, 0, 1, -1], 2, [(1, 3), (3, 4)]),
        ([0, 0, 2, 2, -1], 3, [(0, 2), (2, 2), (2, 4)]),
        ([-1, -1], 1, [(0, 0)]),
        ([0, 0, -1], 2, [(0, 2), (2, 2)]),
        ([0, 2, 2, 1, 1], 3, [(0, 1), (3, 5), (1, 5)]),
        ([], 0, []),
    ],
    ids=["plain", "no tokens", "none at all", "none at the end", "reordered", "empty"],
)
def test_spans_of_marked_tokens(indices, count, spans):
    assert attributed_spans(indices, count) == spans


def test_spans_from_a_message_on():
    assert attributed_spans([0, 0, 1, 2, 2], 3, first=1) == [(2, 3), (3, 5)]


def placed(template, first=0):
    renderer = template_renderer(template)
    rendering = renderer.render(MESSAGES, None)
    spans = renderer.spans(rendering, MESSAGES, None, first)
    return [renderer.decode(rendering.ids[start:end]) for start, end in spans]


def test_messages_of_a_template_are_placed():
    written = [f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in MESSAGES]
    assert placed(CHATML_TEMPLATE) == written
    assert placed(CHATML_TEMPLATE, first=2) == written[2:]
    assert placed(CHATML_TEMPLATE, first=4) == []


def test_messages_that_are_written_otherwise_at_the_end_are_placed_by_their_content():
    # As in the templates of Qwen3, which open an empty block in the last answer.
    template = CHATML_TEMPLATE.replace(
        "{{ m.content }}", "{{ '<think>' if loop.last }}{{ m.content }}"
    )
    written = [f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in MESSAGES[:-1]]
    assert placed(template) == [*written, "<|im_start|>user\n<think>and now?<|im_end|>\n"]


def test_an_end_that_a_template_hides_is_the_next_one_that_is_known():
    template = "{{ messages | length }}" + CHATML_TEMPLATE.replace(
        "<|im_end|>", "{{ messages | length }}<|im_end|>"
    )
    first, *rest = placed(template)
    assert first.startswith("4<|im_start|>system\nBe brief.4<|im_end|>\n")
    assert first.endswith("<|im_start|>user\nand now?4<|im_end|>\n")
    assert rest == [""] * 3


def test_a_tokenizer_without_offsets_places_everything_at_the_end():
    class WithoutOffsets:
        def apply_chat_template(self, messages, **settings):
            return "text"

        def __call__(self, *args, **settings):
            raise NotImplementedError("no offsets")

    plain = [{"role": "user", "content": "x"}] * 3
    ids = array("I", [1, 2, 3])
    assert template_spans(WithoutOffsets(), plain, None, ids, 1) == [(3, 3), (3, 3)]
    assert template_spans(WithoutOffsets(), plain, None, ids, 0) == [(0, 3), (3, 3), (3, 3)]
