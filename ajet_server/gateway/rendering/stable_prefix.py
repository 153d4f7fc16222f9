"""Find the part of an answer in progress that no later token can change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer

_CHATML = ("<|im_start|>",)
_LAGUNA = ("<assistant>",)
_DEEPSEEK = ("<\uff5cAssistant\uff5c>",)
# The families whose parser only adds to text and reasoning as tokens arrive (a property test checks
# this). The values are ambiguous beginnings of an answer, such as the header of its own turn, or
# JSON that may become a call. Families whose parser retracts text, or finds calls only in complete
# text, are not here: their answers are streamed in one piece.
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
# Markers that parsers remove from the text. If the tokenizer has no token for one, its beginning
# looks like text until it is complete.
_MARKERS = ("<think>", "</think>")
# The character to which an incomplete one decodes.
_UNSTABLE = "\ufffd"

STREAMED_FAMILIES = tuple(_BEGINNINGS)
"""Renderers whose answers are streamed as they are sampled."""


@dataclass(frozen=True, slots=True)
class StablePrefix:
    """The rules by which parts of a family's answers become certain.

    :param beginnings: ambiguous beginnings; an answer with one of them is certain only at its end.
    :param begun: beginnings of markers, which are removed once they are complete.
    :param longest: length of the longest of these, in characters.
    :param calls: whether a call is certain once it is complete, whatever follows.
    """

    beginnings: tuple[str, ...]
    begun: frozenset[str]
    longest: int
    calls: bool = True

    @classmethod
    def of(cls, name: str, tokenizer: GatewayTokenizer) -> Self | None:
        """Return the rules for the renderer `name`, None if nothing is certain before the end."""
        beginnings = _BEGINNINGS.get(name)
        if beginnings is None or getattr(tokenizer, "clean_up_tokenization_spaces", False):
            # Such a tokenizer removes spaces before punctuation.
            return None
        markers = set(_MARKERS)
        if name == "default":
            # The library's renderer for Jinja templates removes the text of all special tokens.
            markers.update(getattr(tokenizer, "all_special_tokens", None) or ())
        begun = {marker[:length] for marker in markers for length in range(1, len(marker))}
        # In Llama 3, a call is an answer that is JSON as a whole.
        longest = max(map(len, begun))
        return cls(beginnings, frozenset(begun), longest, calls=name != "llama-3")

    def part(self, text: str) -> str:
        """Return the part of `text` that further tokens can only extend."""
        if text.startswith(self.beginnings):
            return ""
        kept = text.rstrip(_UNSTABLE)
        at = len(kept)
        while at > 0:
            starts = range(max(0, at - self.longest), at)
            begins = next((start for start in starts if kept[start:at] in self.begun), None)
            if begins is None:
                break
            # Removing a marker can complete another one around it, so check the text before again.
            at = begins
        return kept[:at].rstrip()


def stable_text(text: str) -> str:
    """Return the certain part of unparsed text: all but an incomplete character at its end."""
    return text.rstrip(_UNSTABLE)
