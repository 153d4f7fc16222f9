"""What people may write in a report: no number, and no comparative that no verdict carries.

The sentences of decisions are written before any result, so that each word of comparison can be
held against the verdicts with which its sentence is printed.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from ajet_research.inference import Verdict

_NUMBER_WORDS = (
    "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty "
    "seventy eighty ninety hundred thousand million half third quarter twice thrice double "
    "doubles doubled triple triples tripled percent"
)
_DIFFERENCE = (
    "better worse best worst improves improve improved improvement improvements outperforms "
    "outperform outperformed beats beat wins win superior inferior higher lower faster slower "
    "stronger weaker gain gains harms harm hurts hurt helps help degrades degrade"
)
_SAMENESS = "equivalent equal equally same identical indistinguishable comparable interchangeable"
_CERTAINTY = (
    "proves prove proven proof significant significantly certain certainly definitely undoubtedly "
    "guarantees guarantee guaranteed always never clearly obviously conclusive conclusively "
    "demonstrates"
)


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join(words.split())})\b", re.IGNORECASE)


_NUMBERS = re.compile(rf"\d[\d.,]*|\b(?:{'|'.join(_NUMBER_WORDS.split())})\b", re.IGNORECASE)
_CARRIED: tuple[tuple[re.Pattern[str], frozenset[Verdict]], ...] = (
    (_pattern(_DIFFERENCE), frozenset({"better", "worse"})),
    (_pattern(_SAMENESS), frozenset({"equivalent"})),
)


def refusals(text: str, verdicts: Collection[Collection[Verdict]]) -> list[str]:
    """Return why a sentence may not be printed; an empty list if it may.

    :param verdicts: for each comparison that the sentence depends on, those verdicts with which it
        is printed. A word needs one comparison that carries it in every case.
    """
    problems = [
        f"{word[0]!r} is a number; the report links its own numbers"
        for word in _NUMBERS.finditer(text)
    ]
    problems += [
        f"{word[0]!r} claims more than any verdict does"
        for word in _pattern(_CERTAINTY).finditer(text)
    ]
    for words, needed in _CARRIED:
        if not any(needed.issuperset(its) for its in verdicts):
            problems += [
                f"{word[0]!r} needs a comparison whose verdict is {' or '.join(sorted(needed))} "
                "whenever this sentence is printed"
                for word in words.finditer(text)
            ]
    return problems
