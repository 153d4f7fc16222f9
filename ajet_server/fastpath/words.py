"""Encode plain text from the cached token ids of its words.

A byte-level BPE tokenizer splits a text into words by a regular expression and encodes each word
separately. Most words of a text were seen before, and splitting ASCII text with Python's `re` takes
a quarter of the tokenizer's time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, Self

# For longer texts the tokenizer is better, because it releases the interpreter lock.
_MAX_TEXT = 4096
_MAX_WORD = 64
# A separate word costs three times as much as a word in a text, so a text with many new words is
# left to the tokenizer.
_MAX_LEARNT = 8
# About five megabytes.
_MAX_KNOWN = 16_384

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")


class KnownWords:
    """A cache of the token ids of words. It is thread-safe.

    :param backend: a `tokenizers.Tokenizer`.
    :param pattern: pattern by which it splits ASCII text, which matches all of the text.
    :param added: ids of its added tokens by text; they are matched before the text between them is
        split.
    """

    def __init__(self, backend: Any, pattern: re.Pattern[str], added: Mapping[str, int]) -> None:
        self._backend = backend
        self._cut = pattern.findall
        self._added = added
        # If two begin at the same place, the longer one matches.
        longest_first = sorted(added, key=len, reverse=True)
        either = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._divide = re.compile(f"({either})").split
        self._known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(cls, backend: Any) -> Self | None:
        """Return the cache for a tokenizer, None if the tokenizer is not supported.

        It is not supported if its tokens may depend on more than one word, or if it splits text in
        an unknown way.
        """
        added = backend.get_added_tokens_decoder()
        pattern = _pattern(_state(backend.pre_tokenizer))
        exact = (
            # ASCII text is already in NFC.
            _state(backend.normalizer) in ({}, {"type": "NFC"})
            and type(backend.model).__name__ == "BPE"
            and not backend.model.dropout
            and not any(
                token.normalized or token.lstrip or token.rstrip or token.single_word
                for token in added.values()
            )
        )
        if not exact or pattern is None:
            return None
        return cls(backend, pattern, {token.content: i for i, token in added.items()})

    def encode(self, text: str) -> list[int] | None:
        """Return the same ids as the tokenizer, without special tokens around them.

        :return: None if the tokenizer has to encode this text.
        """
        if len(text) > _MAX_TEXT or not text.isascii():
            return None
        first, *rest = self._divide(text)
        ids = self._plain(first)
        for token, piece in zip(rest[::2], rest[1::2], strict=True):
            more = self._plain(piece)
            if ids is None or more is None:
                return None
            ids.append(self._added[token])
            ids += more
        return ids

    def _plain(self, text: str) -> list[int] | None:
        words = self._cut(text)
        try:
            return list(chain.from_iterable(map(self._known.__getitem__, words)))
        except KeyError:
            return self._learn(words)

    def _learn(self, words: list[str]) -> list[int] | None:
        known = self._known
        new = [word for word in dict.fromkeys(words) if word not in known]
        few = new[:_MAX_LEARNT]
        if any(len(word) > _MAX_WORD or self._cut(word) != [word] for word in few):
            return None
        encodings = self._backend.encode_batch_fast(few, add_special_tokens=False)
        learnt = {word: tuple(encoding.ids) for word, encoding in zip(few, encodings, strict=True)}
        if len(known) + len(learnt) > _MAX_KNOWN:
            # Replace the dictionary: another thread may be reading the old one.
            self._known = dict(learnt)
        else:
            known.update(learnt)
        if len(new) > len(few):
            return None
        return list(
            chain.from_iterable(known[word] if word in known else learnt[word] for word in words)
        )


def _state(part: Any) -> dict[str, Any]:
    """Return a part of a tokenizer in the form of tokenizer.json."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _pattern(pre_tokenizer: dict[str, Any]) -> re.Pattern[str] | None:
    """Return the pattern that splits ASCII text, None if the pre-tokenizer is not a known one."""
    regex: object = None
    match pre_tokenizer:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            regex = _GPT2
        case {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": regex},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            pass
    if regex not in (_GPT2, _LLAMA3, _QWEN2):
        return None
    # Replace the Unicode classes by ASCII letters and digits, inside brackets and outside.
    inside = re.sub(r"\[\^[^\]]*\]", lambda match: _ascii(match[0]), str(regex))
    outside = inside.replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]")
    return re.compile(outside, re.ASCII)


def _ascii(brackets: str) -> str:
    return brackets.replace(r"\p{L}", "A-Za-z").replace(r"\p{N}", "0-9")
