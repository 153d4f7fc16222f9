"""What people may write in a report: no number, and no comparative that no verdict carries.

The sentences of decisions are written before any result, so that each word of comparison can be
held against the verdicts with which its sentence is printed. Researchers may not compare at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

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
        if not any(needed.issuperset(verdict) for verdict in verdicts):
            problems += [
                f"{word[0]!r} needs a comparison whose verdict is {' or '.join(sorted(needed))} "
                "whenever this sentence is printed"
                for word in words.finditer(text)
            ]
    return problems


_COMPARING = re.compile(
    r"\b(?:than|versus|vs|more|less|most|least|fewer|fewest|greate[rs]t?|large[rs]t?|smaller|"
    r"bigge[rs]t?|differs?|differed|different|tied|ties|top|works|worked|useless|useful|harmful|"
    r"winner|winning|(?:increas|decreas|reduc|exceed|surpass|dominat|prefer|advantag|disadvantag|"
    r"favou?r|effective|efficien|ineffective|boost|recommend|confirm|benefi|superior|inferior|"
    r"outperform|improv|significan)\w*)\b",
    re.IGNORECASE,
)
_NUMBERLIKE = re.compile(
    r"\b(?:zero|dozens?|hundreds|thousands|millions|billions?|(?:thir|four|fif|six|seven|eigh|nine)"
    r"teen|\w+fold|[IVXLC]{2,})\b"
)
_REFUSED = {
    "is a number": (_NUMBERS, _NUMBERLIKE),
    "compares": (_COMPARING, *(words for words, _ in _CARRIED)),
    "claims more than any verdict does": (_pattern(_CERTAINTY),),
}
_ADDRESS = re.compile(r"://|\bwww\.|\bhttps?\b", re.IGNORECASE)
_COMMON_WORDS = (
    "a about across after all also an and any are arm arms as at be because been before being "
    "between both budget but by can comparison comparisons could did difference do does each "
    "effect either every expected for from had has have how if in interest interval into is it its "
    "look may mean metric might neither no nor not observed of on one only or other others "
    "outcome pairs question report run runs seed seeds so some study such task tasks that the "
    "their them then there these they this those through to trial trials under until verdict "
    "verdicts was were what when where whether which while who why will with within without would "
    "yet keep use uses choose take try stop stay add remove leave method methods setting settings"
)
_COMMON = frozenset(_COMMON_WORDS.split())
_LEAST_COMMON = 0.25
"""The share of common English words in a sentence. Words of comparison of other languages are not
known here."""


def word_problems(words: str) -> Iterator[str]:
    """Yield why words of a researcher may not be printed: they count, compare, or cannot be read.

    :param words: without the references that stand for numbers and claims.
    """
    if foreign := sorted({sign for sign in words if sign != "\n" and not " " <= sign <= "~"}):
        yield f"{''.join(foreign[:10])!a} is not ASCII; write English"
    # Signs of emphasis within a word do not hide it.
    for text in (words, re.sub(r"[-*_`~'^]", "", words)):
        for what, patterns in _REFUSED.items():
            for pattern in patterns:
                yield from (f"{match[0]!r} {what}" for match in pattern.finditer(text))
    if address := _ADDRESS.search(words):
        yield f"{address[0]!r} is a part of an address"
    for sentence in re.split(r"[.!?:;]+|\n", words):
        word_list = [word for word in re.findall(r"[A-Za-z']+", sentence) if len(word) > 1]
        common = sum(word.lower() in _COMMON for word in word_list)
        if word_list and common < max(1, _LEAST_COMMON * len(word_list)):
            yield f"{' '.join(word_list)[:60]!r} is not a plain English sentence"
