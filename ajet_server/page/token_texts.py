"""Texts of token ids, if the tokenizer of the run's model is available."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ajet_core.errors import AjetError
from ajet_server.gateway.rendering.tokenizer import GatewayTokenizer, load_tokenizer, token_bytes

_WORD_START = "\u2581"


class TokenTexts:
    """Texts of tokens, with a cache.

    :param tokenizer: None if there is none.
    :param problem: why there is no tokenizer; "" otherwise.
    """

    def __init__(self, tokenizer: GatewayTokenizer | None, problem: str = "") -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, bytes | None] = {}
        self.problem = problem

    @classmethod
    def load(cls, directory: Path | None) -> TokenTexts:
        """Load the tokenizer of a model directory; without one, tokens are shown as ids."""
        if directory is None:
            return cls(None, "no run was configured, so the model is unknown")
        if not directory.is_dir():
            return cls(None, f"the model directory {directory} does not exist")
        try:
            return cls(load_tokenizer(directory))
        except AjetError as error:
            return cls(None, error.message)

    def piece(self, token_id: int) -> bytes | None:
        """Return the bytes of a token, possibly part of a character; None if unknown."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self._piece(token_id)
        return self._pieces[token_id]

    def text(self, token_ids: Iterable[int]) -> str:
        """Return the text of tokens; those without a text as ``<id>``."""
        return self.bytes_of(token_ids).decode("utf-8", "replace")

    def bytes_of(self, token_ids: Iterable[int]) -> bytes:
        """Return the UTF-8 text of tokens, which may end, or begin, within a character."""
        parts = []
        for token_id in token_ids:
            piece = self.piece(token_id)
            parts.append(f"<{token_id}>".encode() if piece is None else piece)
        return b"".join(parts)

    def _piece(self, token_id: int) -> bytes | None:
        if self._tokenizer is None:
            return None
        try:
            spelling = self._tokenizer.convert_ids_to_tokens(token_id)
            text = self._tokenizer.decode([token_id])
        except (OverflowError, IndexError, KeyError):
            # An id that is out of range for tokenizers of this kind.
            return None
        if spelling is None:
            return None
        if spelling.startswith(_WORD_START) and not text.startswith(" "):
            # SentencePiece decoders omit the space before the first word of their input.
            text = spelling.replace(_WORD_START, " ")
        return token_bytes(self._tokenizer, token_id, text)
