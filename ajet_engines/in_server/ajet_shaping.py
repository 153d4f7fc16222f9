"""Penalties, bias and grammar of a request, where its sampling distribution is not the policy's.

This module also runs in model servers, as a top-level module on their path, so it must not import
anything of agentjet.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger("ajet.shaping")

# As ajet_server writes it into schemas.
_WHITE_SPACE = re.compile(r'"x-guidance": \{"whitespace_pattern": ("(?:[^"\\]|\\.)*")\}')
_BOUNDED = 'start: %json {"x-guidance": {"whitespace_pattern": " {0,1}"}, "type": "object"}'


class Shaping:
    """Offsets for the logits of a request's next token.

    :param size: size of the vocabulary.
    :param frequency: subtracted from a token's logit for each time it was sampled.
    :param presence: subtracted once if the token was sampled at all.
    :param bias: pairs of a token id and the number added to its logit.
    :param matcher: llguidance's matcher of the grammar; None if there is none.
    :param stops: tokens allowed when the grammar has ended.
    """

    def __init__(
        self,
        size: int,
        *,
        frequency: float = 0.0,
        presence: float = 0.0,
        bias: Sequence[tuple[int, float]] = (),
        matcher: Any = None,
        stops: Sequence[int] = (),
    ) -> None:
        self._frequency, self._presence = frequency, presence
        self._matcher, self._stops = matcher, list(stops)
        self._counts: dict[int, int] = {}
        self._added = np.zeros(size, np.float32)
        for token_id, added in bias:
            self._added[token_id] += added

    def row(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return [size] float32, minus infinity for forbidden tokens. Must not be modified."""
        if self._matcher is None:
            return self._added
        size = len(self._added)
        if self._matcher.is_error():
            if not self._stops:
                return self._added
            allowed = np.zeros(size, bool)
            allowed[self._stops] = True
        else:
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(mask, count=size, bitorder="little").astype(bool)
        return np.where(allowed, self._added, np.float32(-np.inf))

    def take(self, token_id: int) -> None:
        """Record a sampled token."""
        if self._matcher is not None and token_id not in self._stops:
            self._matcher.consume_token(token_id)
        if self._frequency or self._presence:
            before = self._counts.get(token_id, 0)
            self._counts[token_id] = before + 1
            self._added[token_id] -= self._frequency + (0.0 if before else self._presence)


class _Nothing:
    """A matcher that matches nothing."""

    def is_error(self) -> bool:
        return True

    def consume_token(self, token_id: int) -> bool:  # noqa: ARG002
        return False


class Grammars:
    """Creates matchers of grammars over a model's tokens.

    :param model: the model's directory.
    :param size: size of the vocabulary.
    """

    def __init__(self, model: str, size: int) -> None:
        self.size = size
        self.file = Path(model) / "tokenizer.json"
        self._tokenizers: dict[tuple[int, ...], Any] = {}
        self._bounds: bool | None = None

    def matcher(self, grammar: str, stops: Sequence[int]) -> Any:
        """Create a matcher for the start of a completion.

        This takes milliseconds, the first time perhaps a second.

        :param grammar: a Lark grammar in llguidance's syntax.
        :param stops: any of these tokens ends a match.
        :raises ValueError: the grammar is invalid or cannot be enforced.
        """
        # Imported here because few requests need it.
        import llguidance

        tokenizer = self._tokenizers.get(tuple(stops))
        if tokenizer is None:
            tokenizer = llguidance.LLTokenizer(
                str(self.file), n_vocab=self.size, eos_token=list(stops)
            )
            self._tokenizers[tuple(stops)] = tokenizer
        if self._bounds is None:
            self._bounds = _bounds_white_space(tokenizer)
        if not self._bounds:
            grammar = _WHITE_SPACE.sub(_around_separators, grammar)
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error().splitlines()[0])
        return matcher


def _bounds_white_space(tokenizer: Any) -> bool:
    """Return whether llguidance enforces the bounds of ``whitespace_pattern``.

    Versions before https://github.com/guidance-ai/llguidance/pull/370 (vLLM 0.32 and SGLang 0.5.23
    come with one) match the pattern again and again.
    """
    import llguidance

    tokens = tokenizer.tokenize_str("{    }")
    matcher = llguidance.LLMatcher(tokenizer, _BOUNDED, log_level=0)
    return bool(matcher.validate_tokens(tokens) < len(tokens))


def _around_separators(match: re.Match[str]) -> str:
    """Allow white space only around commas and colons, whose patterns match once."""
    spaces = json.loads(match[1])
    separators = {
        "whitespace_flexible": False,
        "item_separator": f"{spaces},{spaces}",
        "key_separator": f"{spaces}:{spaces}",
    }
    return f'"x-guidance": {json.dumps(separators)}'


class Followed:
    """The shaping of a request in a model server that passes all tokens sampled so far.

    It never raises, because that would kill the server with all its requests: if this llguidance
    does not accept a grammar that another one did, the completion ends at once.

    :param said: the result of `encoded_shaping`.
    :param prompt_ids: [P] the server's prompt, which may end with tokens sampled by another server.
    """

    def __init__(self, said: str, grammars: Grammars, prompt_ids: Sequence[int]) -> None:
        self._said = json.loads(said)
        self._grammars = grammars
        earlier = int(self._said["sampled"])
        self._earlier = list(prompt_ids[len(prompt_ids) - earlier :]) if earlier else []
        self._taken = 0
        self._shaping = self._begin()

    def row(self, sampled: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return [vocabulary] float32 to add to the logits of the next token.

        :param sampled: [T] all tokens that this server has sampled for the request.
        """
        try:
            if len(sampled) < self._taken:
                # The server has restarted the request from an earlier token.
                self._taken, self._shaping = 0, self._begin()
            for token_id in sampled[self._taken :]:
                self._shaping.take(int(token_id))
            self._taken = len(sampled)
            return self._shaping.row()
        except Exception:  # noqa: BLE001 - see the class
            _log.exception("the completion was ended because it cannot follow its grammar")
            self._shaping = self._end()
            return self._shaping.row()

    def _begin(self) -> Shaping:
        try:
            return self._from_the_beginning()
        except Exception:  # noqa: BLE001 - see the class
            _log.exception(
                "the completion was ended because this server cannot enforce its grammar"
            )
            return self._end()

    def _end(self) -> Shaping:
        return Shaping(self._grammars.size, matcher=_Nothing(), stops=self._said["stops"])

    def _from_the_beginning(self) -> Shaping:
        said = self._said
        shaping = Shaping(
            self._grammars.size,
            frequency=said["frequency"],
            presence=said["presence"],
            bias=said["bias"],
            matcher=self._grammars.matcher(said["grammar"], said["stops"])
            if said["grammar"]
            else None,
            stops=said["stops"],
        )
        for token_id in self._earlier:
            shaping.take(token_id)
        return shaping


class Placed:
    """The shaping of a request in a server that passes positions, and may look ahead speculatively.

    :param prompt_ids: [P].
    """

    def __init__(self, said: str, grammars: Grammars, prompt_ids: Sequence[int]) -> None:
        self._prompt_tokens = len(prompt_ids)
        self._followed = Followed(said, grammars, prompt_ids)
        self._sampled: list[int] = []

    def row(self, position: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """Return [vocabulary] float32 for the logits after a position; None within the prompt."""
        index = self._index(position)
        return None if index < 0 else self._followed.row(self._sampled[:index])

    def sampled(self, position: int, token_id: int) -> None:
        """Record the token sampled after a position, and forget tokens sampled after later ones."""
        self._sampled[self._index(position) :] = [token_id]

    def _index(self, position: int) -> int:
        return position + 1 - self._prompt_tokens


def encoded_shaping(
    *,
    frequency: float,
    presence: float,
    bias: Sequence[tuple[int, float]],
    grammar: str,
    stops: Sequence[int],
    sampled: int,
) -> str:
    """Encode a request's shaping for a server, as input of `Followed`.

    :param sampled: number of tokens at the end of the prompt that were sampled before.
    """
    return json.dumps(
        {
            "frequency": frequency,
            "presence": presence,
            "bias": [[token_id, added] for token_id, added in bias],
            "grammar": grammar,
            "stops": list(stops),
            "sampled": sampled,
        }
    )
