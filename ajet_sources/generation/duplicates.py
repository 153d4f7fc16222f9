"""Texts that say the same as an earlier one, or nearly.

Near duplicates are texts whose sets of shingles (runs of three words) have at least a given Jaccard
similarity. Of two such sets, the first few elements in any fixed order share one (the prefix filter
of Bayardo, Ma and Srikant, "Scaling up all pairs similarity search", 2007), so only texts with a
common element there are compared. The result is exact, unlike that of MinHash.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from typing import Literal

Likeness = Literal["duplicate", "near_duplicate"]

_WORD = re.compile(r"\w+|[^\w\s]")
_END = " .?!"
_SHINGLE = 3
_CLOSE = 1e-9


def normalized(text: str) -> str:
    """Return the words and signs of a text, one space apart.

    They are in lower case and in Unicode's compatibility form. The end of the sentence is left out.
    """
    words = _WORD.findall(unicodedata.normalize("NFKC", text).casefold())
    return " ".join(words).rstrip(_END)


def shingles(text: str) -> frozenset[int]:
    """Return hashes of the runs of three words of a normalized text; of a shorter one, of all."""
    words = text.split()
    last = max(1, len(words) - _SHINGLE + 1)
    return frozenset(_hash(" ".join(words[at : at + _SHINGLE])) for at in range(last))


def similarity(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard similarity of two sets, from 0 to 1."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)


class SeenTexts:
    """The texts so far.

    :param near: from which similarity texts are near duplicates, 0 < near <= 1; with 1 only texts
        with the same shingles are.
    """

    def __init__(self, near: float) -> None:
        self._near = near
        self._exact: set[str] = set()
        self._sets: list[frozenset[int]] = []
        self._places: dict[int, list[int]] = {}

    def add(self, text: str) -> Likeness | None:
        """Add a text, unless it is a duplicate.

        :return: the kind of duplicate; None if the text was added.
        """
        plain = normalized(text)
        if plain in self._exact:
            return "duplicate"
        own = shingles(plain)
        size = len(own)
        # Sets whose similarity is enough have at least this many elements in common.
        least = max(1, math.ceil(self._near * size - _CLOSE))
        prefix = sorted(own)[: size - least + 1]
        candidates = {place for element in prefix for place in self._places.get(element, ())}
        if any(similarity(own, self._sets[place]) >= self._near - _CLOSE for place in candidates):
            return "near_duplicate"
        self._exact.add(plain)
        for element in prefix:
            self._places.setdefault(element, []).append(len(self._sets))
        self._sets.append(own)
        return None


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
