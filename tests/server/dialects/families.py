"""How models of different families write the same answers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_testing.tokenizers import renderer_for, template_renderer
from tests.server.dialects.harmony import gpt_oss_renderer
from tests.server.dialects.scripted import CALL_TEXT, Gateway, ScriptedEngine

CHATML_TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    # Reasoning stays until the next question, as in the templates of Qwen.
    "{% set ns = namespace(last=true) %}"
    "{% for later in messages[loop.index:] %}{% if later.role == 'user' %}{% set ns.last = false %}"
    "{% endif %}{% endfor %}"
    "{% if m.reasoning_content and ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<\uff5cend\u2581of\u2581sentence\uff5c>"


@lru_cache
def _default():
    return template_renderer(CHATML_TOOLS_TEMPLATE)


@dataclass(frozen=True)
class Family:
    """Answers of a model family.

    :ivar say: a text.
    :ivar call: a call of `move`; None if the gateway cannot read it.
    :ivar think: a text after the reasoning "hm hm"; None if the gateway cannot read it.
    """

    name: str
    renderer: Callable[[], ChatRenderer]
    say: str
    call: str | None
    think: str | None = None

    def gate(self, *texts: str, **engine) -> Gateway:
        renderer = self.renderer()
        scripts = [renderer.encode(text) for text in texts]
        return Gateway(ScriptedEngine(scripts, **engine), renderer)

    def said(self, text: str) -> str:
        return self.say.replace("TEXT", text)

    def thought(self, text: str) -> str:
        assert self.think is not None
        return self.think.replace("TEXT", text)


def _deepseek_call() -> str:
    def token(name):
        return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"

    return (
        f"{token('tool calls begin')}{token('tool call begin')}function{token('tool sep')}move\n"
        f'```json\n{{"direction": "up"}}\n```{token("tool call end")}{token("tool calls end")}{END}'
    )


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen3",
            lambda: renderer_for("qwen3"),
            "TEXT<|im_end|>",
            f"{CALL_TEXT}<|im_end|>",
            "<think>\nhm hm\n</think>\n\nTEXT<|im_end|>",
        ),
        Family(
            "llama-3",
            lambda: renderer_for("llama-3"),
            "TEXT<|eot_id|>",
            '{"name": "move", "parameters": {"direction": "up"}}<|eot_id|>',
        ),
        Family(
            "gpt-oss",
            gpt_oss_renderer,
            "<|end|><|start|>assistant<|channel|>final<|message|>TEXT<|return|>",
            "hm hm<|end|><|start|>assistant to=functions.move<|channel|>commentary<|message|>"
            '{"direction": "up"}<|call|>',
            "hm hm<|end|><|start|>assistant<|channel|>final<|message|>TEXT<|return|>",
        ),
        Family(
            "glm-4.5",
            lambda: renderer_for("glm-4.5"),
            "\n<think></think>\nTEXT<|user|>",
            "\n<think></think>\n<tool_call>move\n<arg_key>direction</arg_key>\n<arg_value>up"
            "</arg_value>\n</tool_call><|observation|>",
            "\n<think>hm hm</think>\nTEXT<|user|>",
        ),
        Family("deepseek-v3", lambda: renderer_for("deepseek-v3"), f"TEXT{END}", _deepseek_call()),
        Family(
            "default",
            _default,
            "TEXT<|im_end|>",
            None,
            "<think>\nhm hm\n</think>\n\nTEXT<|im_end|>",
        ),
    )
}
