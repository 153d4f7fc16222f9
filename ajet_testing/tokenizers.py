"""Small real tokenizers, trained on demand, for any family of the `renderers` library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from ajet_server.gateway.rendering.factory import build_renderer
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.gateway.rendering.tokenizer import FastTokenizer

CORPUS = [
    "You are a helpful assistant. Where is the goal? Move up, then left, then down.",
    '{"name": "move", "arguments": {"direction": "up"}} "parameters": {} "steps": 12',
    "# Tools You may call one or more functions to assist with the user query.",
    "goal is 2 down and 1 left. I am there. system user assistant tool <think> </think>",
    "naïve café 😀 🎉 日本語 Привет",
]

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
THINK = ["<think>", "</think>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>"]
GLM = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "/nothink",
]
LLAMA = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
]
DEEPSEEK = [
    f"<\uff5c{name.replace('_', chr(0x2581))}\uff5c>"
    for name in [
        "end_of_sentence",
        "begin_of_sentence",
        "User",
        "Assistant",
        "tool_calls_begin",
        "tool_calls_end",
        "tool_call_begin",
        "tool_call_end",
        "tool_sep",
        "tool_outputs_begin",
        "tool_outputs_end",
        "tool_output_begin",
        "tool_output_end",
    ]
]
KIMI = [
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
]
KIMI_MEDIA = ["<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"]
MINIMAX = ["[e~[", "]~!b[", "]~b]", "<minimax:tool_call>", "</minimax:tool_call>"]
LAGUNA = ["\u3008|EOS|\u3009", "<assistant>", "</assistant>", "<tool_call>", "</tool_call>"]
HY = [
    *(
        f"<\uff5c{name}:opensource\uff5c>"
        for name in ("hy_eos", "hy_begin_of_sentence", "hy_User", "hy_Assistant", "reasoning_mode")
    ),
    *(
        f"<{slash}{name}:opensource>"
        for name in [
            "think",
            "tool_calls",
            "tool_call",
            "arg_key",
            "arg_value",
            "tool_responses",
            "tool_response",
        ]
        for slash in ("", "/")
    ),
    "<tool_sep:opensource>",
]
HARMONY = [
    "<|return|>",
    "<|call|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
]
DEEPSEEK_V4 = [
    *(
        f"<\uff5c{name}\uff5c>"
        for name in [
            "end▁of▁sentence",
            "begin▁of▁sentence",
            "User",
            "Assistant",
            "latest_reminder",
            "action",
            "query",
            "authority",
            "domain",
            "title",
            "read_url",
        ]
    ),
    "\uff5cDSML\uff5c",
]
GEMMA = [
    "<eos>",
    "<bos>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|think|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|image>",
    "<|image|>",
    "<image|>",
    '<|"|>',
]
INKLING = [
    "<|endoftext|>",
    *(f"<|message_{role}|>" for role in ("user", "model", "system", "tool")),
    *(
        f"<|content_{kind}|>"
        for kind in [
            "text",
            "thinking",
            "image",
            "audio_input",
            "xml",
            "invoke_tool_json",
            "invoke_tool_text",
            "model_end_sampling",
        ]
    ),
    *("<|end_message|>", "<|audio_end|>", "<|unused_200053|>", "<|unused_200054|>"),
]

SPECIALS: dict[str, list[str]] = {
    "qwen3": [*CHATML, *THINK, *TAGS],
    "prime-qwen3": [*CHATML, *THINK, *TAGS],
    "qwen3-vl": [*CHATML, *THINK, *TAGS, *VISION],
    "qwen3.5": [*CHATML, *THINK, *TAGS, *VISION],
    "qwen3.6": [*CHATML, *THINK, *TAGS, *VISION],
    "qwen3.8": [*CHATML, *THINK, *TAGS, *VISION],
    "glm-4.5": [*GLM, *THINK, *TAGS],
    "glm-5": [*GLM, *THINK, *TAGS],
    "glm-5.1": [*GLM, *THINK, *TAGS],
    "glm-5.3": [*GLM, *THINK, *TAGS],
    "llama-3": LLAMA,
    "deepseek-v3": DEEPSEEK,
}
"""By renderer, the texts that are single tokens; the end of sequence comes first."""

MORE_SPECIALS: dict[str, list[str]] = {
    "deepseek-r1": DEEPSEEK,
    "kimi-k2": KIMI,
    "kimi-k2.5": [*KIMI, *KIMI_MEDIA],
    "minimax-m2": [*MINIMAX, *THINK],
    "nemotron-3": [*CHATML, *THINK, *TAGS],
    "nemotron-3-ultra": [*CHATML, *THINK, *TAGS],
    "nemotron-3.5": [*CHATML, *THINK, *TAGS, "<image>"],
    "laguna-xs.2": [*LAGUNA, *THINK],
    "laguna-m.1": [*LAGUNA, *THINK],
    "laguna-xs-2.1": [*LAGUNA, *THINK],
    "laguna-s-2.1": [*LAGUNA, *THINK],
    "hy3": HY,
    "deepseek-v4": [*DEEPSEEK_V4, *THINK],
    "gemma4": GEMMA,
    "inkling": INKLING,
}
"""The same for renderers that are tested less."""

CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train(
    specials: Sequence[str], vocab_size: int = 520, corpus: Iterable[str] = CORPUS
) -> Tokenizer:
    """Train a byte-level BPE tokenizer in which every text of `specials` is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in specials],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@lru_cache
def tokenizer_for(name: str) -> FastTokenizer:
    """Return the trained tokenizer of a family."""
    specials = SPECIALS.get(name) or MORE_SPECIALS[name]
    return FastTokenizer(train(specials), f"tiny-{name}", eos_token=specials[0])


@lru_cache
def renderer_for(name: str) -> ChatRenderer:
    """Return the renderer of a family with its trained tokenizer."""
    return build_renderer(name, tokenizer_for(name))


def template_renderer(
    template: str = CHATML_TEMPLATE, extra_stop_ids: Sequence[int] = ()
) -> ChatRenderer:
    """Return the renderer of a Jinja template with the tokenizer of qwen3. Needs transformers."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train(SPECIALS["qwen3"]))
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.chat_template = template
    return build_renderer("default", tokenizer, extra_stop_ids=extra_stop_ids)


def write_model(
    directory: Path,
    name: str,
    template: str | None = CHATML_TEMPLATE,
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Create a model directory without weights: tokenizer files, config.json, chat template.

    :param tokenizer: None trains a small one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    specials = SPECIALS.get(name) or MORE_SPECIALS[name]
    (tokenizer or train(specials)).save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>" if "<|im_end|>" in specials else specials[1],
        "clean_up_tokenization_spaces": False,
    }
    if template is not None:
        config["chat_template"] = template
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    return directory
