"""Tool calls of models that only have a chat template: which parser reads what it writes."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from ajet_core.timeline.radix import common_prefix
from ajet_server.gateway.rendering.factory import build_renderer
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_server.gateway.rendering.tagged_arguments import TAGGED_FAMILIES
from ajet_testing.tokenizers import (
    CHATML,
    CHATML_TEMPLATE,
    GLM,
    LLAMA,
    SPECIALS,
    TAGS,
    THINK,
    train,
)
from tests.server.dialects.scripted import Gateway, ScriptedEngine, assembled, message_of

BEGIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALLS = "{% for call in m.tool_calls or [] %}"
# As Qwen 2.5 writes calls, and Hermes.
HERMES = (
    f"{BEGIN}{CALLS}"
    '{{ "\\n" if m.content or not loop.first }}<tool_call>\n'
    '{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}" + END
)
# As Llama 3.1 does.
LLAMA_JSON = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    '{{ raise_exception("This model only supports single tool-calls at once!") }}{% endif %}'
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
VALUE = "{{ v if v is string else v | tojson }}"
# As Qwen3-Coder does.
PARAMETERS = (
    f"{BEGIN}{CALLS}\n<tool_call>\n<function={{{{ call.function.name }}}}>\n"
    "{% for k, v in call.function.arguments.items() %}<parameter={{ k }}>\n"
    f"{VALUE}\n</parameter>\n{{% endfor %}}</function>\n</tool_call>{{% endfor %}}" + END
)
PAIRS = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    f"{CALLS}\n<tool_call>{{{{ call.function.name }}}}\n"
    "{% for k, v in call.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    f"<arg_value>{VALUE}</arg_value>\n{{% endfor %}}</tool_call>{{% endfor %}}<|endoftext|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Reads like a known format, and loses a bracket.
BROKEN = HERMES.replace("tojson }}}\n", "tojson }}\n")
MODELS = {
    "hermes": ("qwen3", HERMES, [*CHATML, *TAGS], "<|im_end|>"),
    "llama": ("llama-3", LLAMA_JSON, LLAMA, "<|eot_id|>"),
    "parameters": ("qwen3.5", PARAMETERS, [*CHATML, *TAGS], "<|im_end|>"),
    "pairs": ("glm-4.5", PAIRS, [*GLM, *TAGS], "<|endoftext|>"),
}
UNREAD = {
    "no calls are written": (CHATML_TEMPLATE, [*CHATML, *TAGS]),
    "a form that nobody knows": (HERMES.replace("tool_call>", "call>"), [*CHATML, *TAGS]),
    "what is written is no JSON": (BROKEN, [*CHATML, *TAGS]),
    "tags that are no tokens": (HERMES, CHATML),
}
SOURCE = "    if x:\n\treturn 1\n"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            },
        },
    }
]


def renderer(template, specials, stop):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train(specials))
    tokenizer.add_special_tokens({"eos_token": stop})
    tokenizer.chat_template = template
    return build_renderer("default", tokenizer)


def written(family, answer):
    """The prompt of a question, and an answer to it in the tokens of the template."""
    asked = [ChatMessage("user", "go")]
    prompt = family.render(asked, TOOLS).ids
    whole = family.render([*asked, answer], TOOLS, asking=False).ids
    begun = common_prefix(prompt, whole, 0)
    end = next(i for i in range(begun, len(whole)) if whole[i] in family.stop_token_ids)
    return prompt, whole[begun : end + 1]


@pytest.mark.parametrize("name", MODELS)
def test_the_format_of_a_template_is_found_and_read(name):
    family = renderer(*MODELS[name][1:])
    assert family.reads_calls
    arguments = {"path": " a.py", "content": SOURCE}
    call = ToolCall("call00001", "write_file", json.dumps(arguments))
    prompt, answer = written(family, ChatMessage("assistant", tool_calls=(call,)))
    parsed = family.parse(answer, prompt, TOOLS)
    assert [(one.name, one.arguments) for one in parsed.calls] == [("write_file", arguments)]
    assert (parsed.content, parsed.malformed) == ("", ())


@pytest.mark.parametrize("name", MODELS)
def test_text_without_calls_is_text(name):
    family = renderer(*MODELS[name][1:])
    prompt, answer = written(family, ChatMessage("assistant", 'Use {"name": "x"} or <b>.'))
    parsed = family.parse(answer, prompt, TOOLS)
    assert (parsed.content, parsed.calls) == ('Use {"name": "x"} or <b>.', ())


@pytest.mark.parametrize("name", UNREAD)
def test_calls_that_no_parser_gives_back_are_said_to_be_unread(name):
    template, specials = UNREAD[name]
    assert not renderer(template, specials, "<|im_end|>").reads_calls


def test_an_answer_that_may_be_a_call_as_a_whole_is_not_streamed_before_it_is_whole():
    stable_prefix = renderer(*MODELS["llama"][1:]).stable_prefix
    assert stable_prefix is not None
    assert stable_prefix.part('{"name"') == "" and not stable_prefix.calls
    assert renderer(*MODELS["hermes"][1:]).stable_prefix.calls


def test_a_template_with_reasoning_is_read_behind_it():
    family = renderer(HERMES, SPECIALS["qwen3"], "<|im_end|>")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = f"{THINK[0]}\nhm\n{THINK[1]}\n\n{call}<|im_end|>"
    parsed = family.parse(family.encode(text), [], TOOLS)
    assert parsed.reasoning == "hm"
    assert [call.name for call in parsed.calls] == ["f"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("before", ["", "I write it."])
async def test_a_streamed_call_is_the_same(name, before):
    family = renderer(*MODELS[name][1:])
    call = ToolCall("call00001", "write_file", json.dumps({"path": "a.py", "content": SOURCE}))
    _, script = written(family, ChatMessage("assistant", before, (call,)))
    asked = {"role": "user", "content": "go"}
    whole = Gateway(ScriptedEngine([script]), family)
    streamed = Gateway(ScriptedEngine([script]), family)
    message = message_of(await whole.complete(asked, tools=TOOLS))
    assert len(message["tool_calls"]) == 1
    chunks = await streamed.chunks(asked, tools=TOOLS)
    assert assembled(chunks) == message
    parts = [chunk for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls]
    # Arguments that are no JSON are streamed as they are written.
    assert (len(parts) > 5) is (MODELS[name][0] in TAGGED_FAMILIES)
