import json

import pytest
from transformers import PreTrainedTokenizerFast

from ajet_core.errors import ConfigError, RequestError
from ajet_core.protocol.run import ModelConfig
from ajet_server.gateway.rendering.factory import build_renderer, make_renderer, renderer_names
from ajet_server.gateway.rendering.messages import ChatMessage, ToolCall
from ajet_testing.tokenizers import (
    CHATML_TEMPLATE,
    SPECIALS,
    THINK,
    renderer_for,
    template_renderer,
    tokenizer_for,
    train,
    write_model,
)

TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"type": "object"}}}]
CALL = ToolCall("call_1", "move", '{"direction": "up"}')
CONVERSATION = [
    ChatMessage("system", "Be brief."),
    ChatMessage("user", "Where is the goal?"),
    ChatMessage("assistant", tool_calls=(CALL,)),
    ChatMessage("tool", "2 down", tool_call_id="call_1", name="move"),
]


def model(renderer="auto"):
    return ModelConfig(path="m", renderer=renderer)


@pytest.mark.parametrize("name", SPECIALS)
def test_tokens_are_those_of_the_library_with_a_transformers_tokenizer(name):
    reference = PreTrainedTokenizerFast(
        tokenizer_object=train(SPECIALS[name]), eos_token=SPECIALS[name][0]
    )
    expected = build_renderer(name, reference)
    assert renderer_for(name).render(CONVERSATION, TOOLS) == expected.render(CONVERSATION, TOOLS)


def test_custom_renderers_cannot_be_named(tmp_path):
    assert "custom" not in renderer_names()
    with pytest.raises(ConfigError, match="unknown renderer 'custom'"):
        make_renderer(model("custom"), write_model(tmp_path, "qwen3"))


def test_unknown_renderer_lists_the_known(tmp_path):
    with pytest.raises(ConfigError, match=r"known: auto, .*llama-3, .*qwen3") as caught:
        make_renderer(model("qwen9"), tmp_path)
    assert caught.value.param == "model.renderer"


@pytest.mark.parametrize("name", sorted(set(renderer_names()) - {"auto", "default", "llama-3"}))
def test_a_vocabulary_of_another_family_is_refused(tmp_path, name):
    directory = write_model(tmp_path, "llama-3")
    with pytest.raises(ConfigError, match="does not fit the tokenizer"):
        make_renderer(model(name), directory)


def test_missing_special_token_is_named():
    specials = [text for text in SPECIALS["qwen3"] if text not in THINK]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train(specials))
    with pytest.raises(ConfigError, match="'</think>' not found"):
        build_renderer("qwen3", tokenizer)


def test_auto_knows_models_by_the_name_in_their_config(tmp_path):
    directory = write_model(tmp_path, "qwen3", template=None)
    (directory / "config.json").write_text(json.dumps({"_name_or_path": "Qwen/Qwen3-8B"}))
    assert make_renderer(model(), directory).name == "qwen3"


def test_auto_knows_models_by_their_directory(tmp_path):
    directory = write_model(tmp_path / "zai-org" / "GLM-5", "glm-5", template=None)
    assert make_renderer(model(), directory).name == "glm-5"


def test_auto_finds_the_family_that_writes_as_the_chat_template(tmp_path):
    directory = write_model(tmp_path, "qwen3", template=QWEN3_LIKE)
    assert make_renderer(model(), directory).name == "qwen3"


def test_auto_falls_back_to_the_chat_template(tmp_path):
    renderer = make_renderer(model(), write_model(tmp_path, "qwen3", template=CHATML_TEMPLATE))
    assert renderer.name == "default"
    ids = renderer.render([ChatMessage("user", "hi")], None).ids
    assert renderer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert renderer.stop_token_ids == (2,)


def test_default_renderer_takes_the_stop_tokens_of_the_generation_config(tmp_path):
    directory = write_model(tmp_path, "qwen3", template=CHATML_TEMPLATE)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert make_renderer(model("default"), directory).stop_token_ids == (2, 0)


def test_no_template_and_no_renderer_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"no chat template.* model\.renderer"):
        make_renderer(model(), write_model(tmp_path, "qwen3", template=None))


def test_inexpressible_conversation_is_a_request_error():
    twice = ChatMessage("assistant", tool_calls=(CALL, ToolCall("call_2", "move", "{}")))
    with pytest.raises(RequestError, match=r"cannot express this conversation.*single tool call"):
        renderer_for("llama-3").render([ChatMessage("user", "hi"), twice], None)


def test_bridge_refuses_where_the_template_drops_reasoning():
    renderer = renderer_for("qwen3")
    prompt = renderer.render([ChatMessage("user", "hi")], None).ids
    sampled = renderer.encode("<think>\nhm\n</think>\n\nyes<|im_end|>")
    question = [ChatMessage("user", "and now?")]
    assert renderer.bridge(prompt, sampled, question, None, reasoned=True) is None
    result = [ChatMessage("tool", "2 down", tool_call_id="c")]
    assert renderer.bridge(prompt, sampled, result, None, reasoned=True) is not None


def test_bridge_without_reasoning_crosses_questions():
    renderer = renderer_for("qwen3")
    first = [ChatMessage("user", "hi")]
    prompt = renderer.render(first, None).ids
    sampled = renderer.encode("yes<|im_end|>")
    question = ChatMessage("user", "and now?")
    bridged = renderer.bridge(prompt, sampled, [question], None, reasoned=False)
    history = [*first, ChatMessage("assistant", "yes"), question]
    assert bridged.ids == renderer.render(history, None).ids
    assert renderer.decode(bridged.ids[slice(*bridged.spans[0])]) == (
        "<|im_start|>user\nand now?<|im_end|>\n"
    )


def test_a_bridge_that_changes_tokens_is_refused(monkeypatch):
    renderer = renderer_for("qwen3")
    prompt = renderer.render([ChatMessage("user", "hi")], None).ids
    sampled = renderer.encode("yes<|im_end|>")
    question = [ChatMessage("user", "and now?")]
    original = renderer._keeping.bridge_to_next_turn
    for changed in (0, len(prompt), len(prompt) + len(sampled) - 1):

        def bridge(*args, changed=changed, **settings):
            bridged = original(*args, **settings)
            bridged.token_ids[changed] += 1
            return bridged

        monkeypatch.setattr(renderer._keeping, "bridge_to_next_turn", bridge)
        assert renderer.bridge(prompt, sampled, question, None, reasoned=False) is None


def test_no_stop_token_is_a_part_of_the_answer():
    renderer = template_renderer(extra_stop_ids=[0])
    for stop in ("<|im_end|>", "<|endoftext|>"):
        assert renderer.parse(renderer.encode(f"there{stop}"), [1], None).content == "there"


@pytest.mark.parametrize("text", ['{"name": "f", "arguments": %s}' % ("9" * 5000), "[" * 4000])
def test_output_that_breaks_the_parser_stays_visible(text):
    renderer = renderer_for("qwen3")
    ids = renderer.encode(f"Well. <tool_call>{text}</tool_call><|im_end|>")
    parsed = renderer.parse(ids, [0], TOOLS)
    assert parsed.content == "Well."
    assert parsed.calls == ()
    assert "".join(parsed.malformed) == f"<tool_call>{text}</tool_call>"


def test_token_of_a_part_of_a_character_has_its_bytes():
    renderer = renderer_for("llama-3")
    ids = tokenizer_for("llama-3").encode("🜚")
    assert len(ids) > 1
    entries = [json.loads(renderer.token_json[i] + b"0}") for i in ids]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == "🜚".encode()


QWEN3_LIKE = r"""
{%- if tools %}{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""  # noqa: E501
