"""How much of an answer is settled while it is being written: what no later token can take back, or make something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer

_CHATML = ("<|im_start|>",)
_LAGUNA = ("<assistant>",)
_DEEPSEEK = ("<\uff5cAssistant\uff5c>",)
# By family whose parser only ever adds to text and reasoning as tokens come (a property test says so): what an answer
# may begin with that leaves open what it is, such as the header of its own turn, or JSON that may become a call.
# Parsers that take text back, or look for calls in text that is complete, have their answers streamed in one piece.
_BEGINNINGS: dict[str, tuple[str, ...]] = {
    "default": _CHATML,
    "qwen3": _CHATML,
    "prime-qwen3": _CHATML,
    "qwen3-vl": _CHATML,
    "qwen3.5": _CHATML,
    "qwen3.6": _CHATML,
    "qwen3.8": _CHATML,
    "nemotron-3": _CHATML,
    "nemotron-3-ultra": _CHATML,
    "nemotron-3.5": _CHATML,
    "glm-4.5": _CHATML,
    "glm-5": _CHATML,
    "glm-5.1": _CHATML,
    "glm-5.3": _CHATML,
    "llama-3": ("{", "<|start_header_id|>"),
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "kimi-k2": ("<|im_assistant|>",),
    "minimax-m2": ("]~b]",),
    "laguna-xs.2": _LAGUNA,
    "laguna-m.1": _LAGUNA,
    "laguna-xs-2.1": _LAGUNA,
    "laguna-s-2.1": _LAGUNA,
    "hy3": ("<\uff5chy_Assistant",),
    "gpt-oss": (),
}
# Texts that are no text of the answer once they are complete: where the tokenizer has no token for one, its beginning
# looks like text.
_MARKERS = ("<think>", "</think>")
# What an incomplete character decodes to.
_UNSETTLED = "\ufffd"

STREAMED_FAMILIES = tuple(_BEGINNINGS)
"""Renderers whose answers are streamed as they are written."""


@dataclass(frozen=True, slots=True)
class Settling:
    """What is certain of a family's answers.

    :param beginnings: an answer that begins with one of them is looked at only when it is complete.
    :param begun: the beginnings of texts that are taken out when they are complete.
    :param longest: characters of the longest of these.
    :param calls: whether a call is one as soon as it is written to its end, whatever follows.
    """

    beginnings: tuple[str, ...]
    begun: frozenset[str]
    longest: int
    calls: bool = True

    @classmethod
    def of(cls, name: str, tokenizer: GatewayTokenizer) -> Self | None:
        """That of the renderer called `name`; None if nothing is certain before the end."""
        beginnings = _BEGINNINGS.get(name)
        if beginnings is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
            # Such a tokenizer takes spaces out that stood before a mark.
            return None
        markers = set(_MARKERS)
        if name == "default":
            # The library's renderer over a Jinja template takes the text of all special tokens out.
            markers.update(getattr(tokenizer, "all_special_tokens", None) or ())
        begun = {marker[:length] for marker in markers for length in range(1, len(marker))}
        # The calls of Llama 3 are answers that are JSON from the beginning to the end.
        longest = max(map(len, begun))
        return cls(beginnings, frozenset(begun), longest, calls=name != "llama-3")

    def part(self, text: str) -> str:
        """The part of `text` that further tokens can only add to."""
        if text.startswith(self.beginnings):
            return ""
        kept = text.rstrip(_UNSETTLED)
        at = len(kept)
        while at > 0:
            starts = range(max(0, at - self.longest), at)
            begins = next((start for start in starts if kept[start:at] in self.begun), None)
            if begins is None:
                break
            # What is before may have been begun before that: texts are taken out of one another.
            at = begins
        return kept[:at].rstrip()


def settled_text(text: str) -> str:
    """The part of a text that no parser looks at, of which only half a character can change."""
    return text.rstrip(_UNSETTLED)
