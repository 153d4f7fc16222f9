"""What one request's tokens are drawn from, where that is not the policy: penalties, bias, grammar.

Runs in model servers too, where it is found by itself on the server's path: nothing of agentjet is imported here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger("ajet.shaping")


class Shaping:
    """What is added to the logits of a request's next token.

    :param size: of the vocabulary.
    :param frequency: taken off a token's logit for each time it was sampled.
    :param presence: taken off once if it was sampled at all.
    :param bias: (token id, what is added) pairs.
    :param matcher: llguidance's, of the grammar; None if there is none.
    :param stops: allowed when the matcher knows no further; a grammar's end.
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
        """[size] float32, minus infinity for tokens that may not come. Not to be changed."""
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
        """A token was sampled."""
        if self._matcher is not None and token_id not in self._stops:
            self._matcher.consume_token(token_id)
        if self._frequency or self._presence:
            before = self._counts.get(token_id, 0)
            self._counts[token_id] = before + 1
            self._added[token_id] -= self._frequency + (0.0 if before else self._presence)


class _Nothing:
    """A matcher of what cannot be matched."""

    def is_error(self) -> bool:
        return True

    def consume_token(self, token_id: int) -> bool:  # noqa: ARG002
        return False


class Grammars:
    """Makes matchers of grammars over a model's tokens.

    :param model: the model's directory.
    :param size: of the vocabulary.
    """

    def __init__(self, model: str, size: int) -> None:
        self.size = size
        self.file = Path(model) / "tokenizer.json"
        self._tokenizers: dict[tuple[int, ...], Any] = {}

    def matcher(self, grammar: str, stops: Sequence[int]) -> Any:
        """A matcher at the beginning of a completion. Takes milliseconds, the first one perhaps a second.

        :param grammar: Lark, as llguidance reads it.
        :param stops: one of these tokens ends what matches.
        :raises ValueError: the grammar is none, or says what cannot be enforced.
        """
        # Here: few requests need it.
        import llguidance

        tokenizer = self._tokenizers.get(tuple(stops))
        if tokenizer is None:
            tokenizer = llguidance.LLTokenizer(
                str(self.file), n_vocab=self.size, eos_token=list(stops)
            )
            self._tokenizers[tuple(stops)] = tokenizer
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error().splitlines()[0])
        return matcher


class Followed:
    """The shaping of a request in a model server, which knows what it has sampled so far.

    It does not raise, because a server dies of that, and with it the requests of others: a grammar that this llguidance does not
    take, although another one did, lets the completion end at once.

    :param said: what `told` gave.
    :param prompt_ids: [P] the server's prompt, at whose end may be tokens that another server sampled.
    """

    def __init__(self, said: str, grammars: Grammars, prompt_ids: Sequence[int]) -> None:
        self._said = json.loads(said)
        self._grammars = grammars
        earlier = int(self._said["sampled"])
        self._earlier = list(prompt_ids[len(prompt_ids) - earlier :]) if earlier else []
        self._taken = 0
        self._shaping = self._begin()

    def row(self, sampled: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[vocabulary] float32 to add to the logits of the token after these.

        :param sampled: [T] all that this server has sampled for the request.
        """
        try:
            if len(sampled) < self._taken:
                # It takes the request up again where it was before.
                self._taken, self._shaping = 0, self._begin()
            for token_id in sampled[self._taken :]:
                self._shaping.take(int(token_id))
            self._taken = len(sampled)
            return self._shaping.row()
        except Exception:  # noqa: BLE001 - see the class
            _log.exception("the completion is ended: its grammar cannot be followed")
            self._shaping = self._end()
            return self._shaping.row()

    def _begin(self) -> Shaping:
        try:
            return self._from_the_beginning()
        except Exception:  # noqa: BLE001 - see the class
            _log.exception("the completion is ended: its grammar cannot be enforced here")
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
    """The same in a server that knows places, and may look at a place before it knows that it will stay there.

    :param prompt_ids: [P].
    """

    def __init__(self, said: str, grammars: Grammars, prompt_ids: Sequence[int]) -> None:
        self._prompt_tokens = len(prompt_ids)
        self._followed = Followed(said, grammars, prompt_ids)
        self._sampled: list[int] = []

    def row(self, position: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
        """[vocabulary] float32 to add to the logits of the token after a position; None while it is in the prompt."""
        index = self._index(position)
        return None if index < 0 else self._followed.row(self._sampled[:index])

    def sampled(self, position: int, token_id: int) -> None:
        """Note the token that was sampled after a position; forget what was sampled after later ones."""
        self._sampled[self._index(position) :] = [token_id]

    def _index(self, position: int) -> int:
        return position + 1 - self._prompt_tokens


def told(
    *,
    frequency: float,
    presence: float,
    bias: Sequence[tuple[int, float]],
    grammar: str,
    stops: Sequence[int],
    sampled: int,
) -> str:
    """What a server is told of a request's shaping, for `Followed`.

    :param sampled: so many tokens at the end of the prompt were sampled before.
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
