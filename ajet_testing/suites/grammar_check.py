"""Checks of scripted answers against grammars. Needs numpy and llguidance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from ajet_core.errors import RequestError
from ajet_core.interfaces import GenerateRequest
from ajet_engines.shaping import Shapings


class GrammarCheck:
    """Checks whether an engine that supports grammars could give a scripted answer.

    :param model: the model's directory, with its tokenizer.
    :param size: size of the vocabulary.
    """

    def __init__(self, model: Path, size: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._shapings = Shapings(str(model), size)

    def check(self, request: GenerateRequest, ids: Sequence[int]) -> None:
        """Check [T] scripted tokens.

        :raises RequestError: the request's grammar forbids one of them.
        """
        shaping = self._shapings.begin(request) if request.sampling.grammar else None
        if shaping is None:
            return
        for i, token in enumerate(ids):
            if shaping.row()[token] == -math.inf:
                said = self._tokenizer.decode(ids[:i], skip_special_tokens=False)
                here = self._tokenizer.decode([token], skip_special_tokens=False)
                raise RequestError(f"the grammar forbids {here!r} after {said!r}", param="grammar")
            shaping.take(token)
