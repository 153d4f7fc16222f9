"""Which templates prove that a conversation can go on from its exact tokens, and which do not."""

from dataclasses import replace

import pytest

from ajet_core.timeline import Call
from ajet_server.gateway.rendering.canonical import message_text
from ajet_server.gateway.rendering.conversation import ConversationIndex, answer_metadata
from ajet_server.gateway.rendering.messages import ChatMessage
from ajet_server.gateway.rendering.prompting import Continuation
from ajet_testing.tokenizers import CHATML_TEMPLATE, template_renderer

QUESTION = [ChatMessage("system", "Be brief."), ChatMessage("user", "Where?")]
MORE = ChatMessage("user", "and now?")
TOOL = ChatMessage("tool", "2 down", tool_call_id="call_1")

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNTIL_QUESTION = THINKING.replace(
    "{% if m.reasoning_content %}",
    "{% set ns = namespace(keep=true) %}{% for l in messages[loop.index:] %}"
    "{% if l.role == 'user' %}{% set ns.keep = false %}{% endif %}{% endfor %}"
    "{% if m.reasoning_content and ns.keep %}",
)
PREFILLED = THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
COUNTING = "{{ messages | length }} messages\n" + CHATML_TEMPLATE
STRIPPED = CHATML_TEMPLATE.replace("{{ m.content }}", "{{ m.content | trim }}")
UNCLOSED = CHATML_TEMPLATE.replace("<|im_end|>\n{% endfor %}", "\n{% endfor %}")
LAST_OPENED = CHATML_TEMPLATE.replace(
    "{{ m.content }}",
    "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}",
)
CLOSED_TWICE = CHATML_TEMPLATE.replace("<|im_end|>\n", "<|im_end|><|im_end|>\n")
LONG_CLOSING = CHATML_TEMPLATE.replace("<|im_end|>\n", "<|im_end|>\n<think>\n\n")


def turn(template, sampled, *new, given=None, reason="stop"):
    """The call that sampled a text, and the prompt of the next one."""
    # Both <|im_end|> and <|endoftext|> end an answer.
    renderer = template_renderer(template, extra_stop_ids=[0])
    index = ConversationIndex()
    prompt = index.plan(QUESTION, None).render(renderer)
    ids = renderer.encode(sampled)
    parsed = renderer.parse(ids, prompt.ids, None)
    answer = given or ChatMessage("assistant", parsed.content, reasoning=parsed.reasoning or None)
    call = Call(
        call_id="c",
        episode_id="e",
        index=0,
        suffix_ids=prompt.ids.tolist(),
        sampled_ids=ids,
        logprobs=[0.0] * len(ids),
        policy_versions=[0] * len(ids),
        temperature=1.0,
        finish_reason=reason,
        metadata=answer_metadata(prompt, answer),
        messages=prompt.placed,
        answer=message_text(answer),
    )
    index.add(call)
    echo = replace(answer, reasoning=None)
    plan = index.plan([*QUESTION, echo, *(new or [MORE])], None)
    return renderer, call, plan.render(renderer)


THOUGHT = "<think>\nhm\n</think>\n\nthere<|im_end|>"


@pytest.mark.parametrize(
    ("template", "sampled", "new"),
    [
        (CHATML_TEMPLATE, "there<|im_end|>", MORE),
        (CHATML_TEMPLATE, "<|im_end|>", MORE),
        (CHATML_TEMPLATE, "there<|im_end|>", TOOL),
        (STRIPPED, " there \n<|im_end|>", MORE),
        (LONG_CLOSING, "there<|im_end|>", MORE),
        (THINKING, THOUGHT, MORE),
        (UNTIL_QUESTION, "there<|im_end|>", MORE),
        (LAST_OPENED, "there<|im_end|>", MORE),
        (CLOSED_TWICE, "there<|im_end|>", MORE),
        (UNTIL_QUESTION, THOUGHT, TOOL),
        (PREFILLED, "hm\n</think>\n\nthere<|im_end|>", MORE),
    ],
)
def test_proven_prompts_hold_the_sampled_tokens_and_what_the_template_adds(template, sampled, new):
    renderer, call, prompt = turn(template, sampled, new)
    assert prompt.continuation is Continuation.PROVEN
    assert prompt.parent is call
    assert prompt.ids[: call.length].tolist() == call.token_ids
    answer = ChatMessage("assistant", call.answer.content, reasoning=call.answer.reasoning or None)
    asked = renderer.decode(call.prompt_ids)
    full = renderer.decode(renderer.render([*QUESTION, answer, new], None).ids)
    _, _, after_answer = full.removeprefix(asked).partition("<|im_end|>")
    assert renderer.decode(prompt.ids[call.length :]) == after_answer
    ((start, end),) = [(m.start, m.end) for m in prompt.placed]
    assert renderer.decode(prompt.ids[start:end]).startswith(
        f"<|im_start|>{new.role}\n{new.content}"
    )


@pytest.mark.parametrize(
    ("template", "sampled"),
    [
        (COUNTING, "there<|im_end|>"),
        (UNCLOSED, "there<|im_end|>"),
        (CHATML_TEMPLATE, THOUGHT),
        (UNTIL_QUESTION, THOUGHT),
        (THINKING, "<think>\nhm<|im_end|>"),
        (CHATML_TEMPLATE, "there<|endoftext|>"),
    ],
    ids=[
        "history depends on its length",
        "answers are not closed",
        "reasoning is never written",
        "reasoning goes at a question",
        "reasoning that was not ended",
        "another stop token",
    ],
)
def test_what_is_not_proven_is_rendered(template, sampled):
    renderer, call, prompt = turn(template, sampled)
    assert prompt.continuation is Continuation.TEMPLATE_DIFFERS
    assert (
        prompt.ids
        == renderer.render(
            [*QUESTION, ChatMessage("assistant", call.answer.content), MORE], None
        ).ids
    )


def test_an_answer_that_was_cut_off_is_closed_as_the_template_closes_it():
    renderer, call, prompt = turn(CHATML_TEMPLATE, "I am", reason="length")
    assert prompt.continuation is Continuation.PROVEN
    assert renderer.decode(prompt.ids[call.length :]).startswith("<|im_end|>\n<|im_start|>user")


def test_a_cut_off_answer_whose_text_the_template_changes_is_rendered():
    _, _, prompt = turn(STRIPPED, "I am ", reason="length", given=ChatMessage("assistant", "I am "))
    assert prompt.continuation is Continuation.TEMPLATE_DIFFERS


def test_an_answer_that_the_client_saw_a_part_of_is_rendered():
    given = ChatMessage("assistant", "there")
    _, _, prompt = turn(CHATML_TEMPLATE, "there. Observation:", given=given)
    assert prompt.continuation is Continuation.TEMPLATE_DIFFERS


def test_several_new_messages_are_placed_each():
    renderer, _, prompt = turn(CHATML_TEMPLATE, "there<|im_end|>", TOOL, MORE)
    assert [renderer.decode(prompt.ids[m.start : m.end]) for m in prompt.placed] == [
        "<|im_start|>tool\n2 down<|im_end|>\n",
        "<|im_start|>user\nand now?<|im_end|>\n",
    ]
