"""The renderer of gpt-oss without the vocabulary that its encoder fetches from the network."""

import json
from functools import lru_cache
from unittest import mock

import renderers.gpt_oss
from openai_harmony import DeveloperContent, SystemContent

from ajet_server.gateway.rendering.factory import build_renderer
from ajet_server.gateway.rendering.tokenizer import FastTokenizer
from ajet_testing.tokenizers import HARMONY, train


class TrainedEncoding:
    """Writes harmony messages as `openai_harmony.HarmonyEncoding` does, with another vocabulary."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def render(self, message):
        author = message.author.name or message.author.role.value
        to = f" to={message.recipient}" if message.recipient else ""
        channel = f"<|channel|>{message.channel}" if message.channel else ""
        text = "".join(_text(part) for part in message.content)
        end = "<|call|>" if to and message.author.role.value == "assistant" else "<|end|>"
        return self._tokenizer.encode(f"<|start|>{author}{to}{channel}<|message|>{text}{end}")

    def render_conversation(self, conversation):
        return [token for message in conversation.messages for token in self.render(message)]


def _text(part):
    if isinstance(part, SystemContent):
        return f"{part.model_identity}\n\nReasoning: {part.reasoning_effort.value}"
    if isinstance(part, DeveloperContent):
        tools = [tool.model_dump() for space in (part.tools or {}).values() for tool in space.tools]
        listed = f"\n\n# Tools\n\n{json.dumps(tools)}" if tools else ""
        return f"# Instructions\n\n{part.instructions or ''}{listed}"
    return part.text


@lru_cache
def gpt_oss_renderer():
    tokenizer = FastTokenizer(train(HARMONY), "tiny-gpt-oss", eos_token="<|return|>")
    encoding = TrainedEncoding(tokenizer)
    with mock.patch.object(renderers.gpt_oss, "load_harmony_encoding", return_value=encoding):
        return build_renderer("gpt-oss", tokenizer)
