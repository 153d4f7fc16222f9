"""A tokenizer whose tokens are the printable ASCII characters, for models in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["ascii_text", "write_ascii_tokenizer"]

_FIRST = 32
_PRINTABLE = 95


def ascii_text(ids: Sequence[int]) -> str:
    """Return the text of token ids below 95; others become question marks."""
    return "".join(chr(_FIRST + i) if i < _PRINTABLE else "?" for i in ids)


def write_ascii_tokenizer(directory: Path, vocab_size: int) -> None:
    """Write ``tokenizer.json``: token i is the character 32 + i; from 95 on, other bytes.

    :param vocab_size: 95 to 256.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # In such files, a letter stands for every byte.
    spelt = _letters()
    order = [*range(_FIRST, _FIRST + _PRINTABLE), *range(_FIRST), *range(_FIRST + _PRINTABLE, 256)]
    vocabulary = {spelt[byte]: i for i, byte in enumerate(order[:vocab_size])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))


def _letters() -> dict[int, str]:
    """Return the letter of each byte in byte-level BPE: itself if visible, else from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {
        byte: chr(256 + i) for i, byte in enumerate(hidden)
    }
