"""Interpretations: prose of researchers, in which numbers and claims are references.

A reference is written between double braces, and is refused if the report has no such thing:
``{{number b-vs-a.gain}}`` shows a number of the report; ``{{claim b-vs-a better}}`` says what a
verdict means, and needs that verdict; ``{{finding b-vs-a}}``, ``{{arm b-vs-a}}`` and
``{{against b-vs-a}}`` are names. Outside references, prose has neither numbers nor words that
compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ajet_research.analysis import final_verdicts
from ajet_research.inference import Verdict
from ajet_research.report.document import Reference, Span, Text
from ajet_research.report.prose import word_problems
from ajet_research.state import StudyState
from ajet_research.study import Compare, arm_name

MOST_CHARACTERS = 3000
_REFERENCE = re.compile(r"\{\{([^{}]*)\}\}")
_ASCII = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014", "-"),
        "\u2026": "...",
        "\u00a0": " ",
    }
)


@dataclass(frozen=True, slots=True)
class Referents:
    """What the prose about a study may refer to.

    :param numbers: of the report, by name.
    """

    state: StudyState
    numbers: Mapping[str, Reference]

    def span(self, text: str) -> Span | str:
        """Return what a reference shows, or why it is refused."""
        kind, *rest = text.split()
        known = {one.id: one for one in self.state.registered.compare}
        if kind == "number" and len(rest) == 1:
            number = self.numbers.get(rest[0])
            return number or f"the report has no number {rest[0]!r}"
        if kind not in _WORDS or len(rest) != _WORDS[kind]:
            return f"a reference is one of: {', '.join(_SYNTAX)}"
        if (one := known.get(rest[0])) is None:
            return f"unknown comparison {rest[0]!r}; known: {', '.join(known)}"
        verdict = final_verdicts(self.state)[one.id]
        if kind == "claim" and rest[1] != verdict:
            return f"the verdict of {one.id} is {verdict}, not {rest[1]}"
        shown = {
            "finding": one.id,
            "arm": arm_name(one.arm),
            "against": arm_name(one.against),
            "claim": _claim(one, verdict, self.state.registered.outcome.metric),
        }
        return Reference(shown[kind], f"finding-{one.id}")


_WORDS = {"claim": 2, "finding": 1, "arm": 1, "against": 1}
_SYNTAX = (
    "{{number NAME}}",
    "{{claim COMPARISON VERDICT}}",
    "{{finding COMPARISON}}",
    "{{arm COMPARISON}}",
    "{{against COMPARISON}}",
)


def _claim(one: Compare, verdict: Verdict, metric: str) -> str:
    arm, against = arm_name(one.arm), arm_name(one.against)
    match verdict:
        case "better" | "worse":
            return (
                f"{arm} is {verdict} than {against} in {metric}, by more than the smallest effect "
                "of interest"
            )
        case "equivalent":
            return (
                f"{arm} and {against} are equivalent in {metric}, within the smallest effect of "
                "interest"
            )
        case "undecided":
            return f"whether {arm} and {against} differ in {metric} is undecided"
        case "invalid":
            return f"the comparison of {arm} and {against} is invalid"


def normalized(prose: str) -> str:
    """Return prose with the usual typographic signs as ASCII, in paragraphs of one line."""
    paragraphs = re.split(r"\n\s*\n", prose.translate(_ASCII).strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def interpretation_problems(prose: str, referents: Referents) -> list[str]:
    """Return why normalized prose may not be printed; an empty list if it may."""
    if not prose:
        return ["the prose is empty"]
    if len(prose) > MOST_CHARACTERS:
        return [f"the prose has more than {MOST_CHARACTERS} characters"]
    return list(dict.fromkeys(_problems(prose, referents)))[:20]


def _problems(prose: str, referents: Referents) -> Iterator[str]:
    if prose != normalized(prose):
        yield "the prose is not normalized"
    for match in _REFERENCE.finditer(prose):
        shown = referents.span(match[1]) if match[1].strip() else "an empty reference"
        if isinstance(shown, str):
            yield f"{match[0]}: {shown}"
        elif match[1].split()[0] == "claim" and not _stands_alone(prose, match):
            yield f"{match[0]}: a claim is a sentence of its own, which ends with a full stop"
    words = _REFERENCE.sub(" ", prose)
    if "{" in words or "}" in words:
        yield f"braces that are not a reference; one is: {', '.join(_SYNTAX)}"
    yield from word_problems(words)


def _stands_alone(prose: str, match: re.Match[str]) -> bool:
    before, after = prose[: match.start()].rstrip(" "), prose[match.end() :]
    begins = not before or before[-1] in ".!\n"
    return begins and re.match(r"\.(\s|$)", after) is not None


def interpretation_spans(prose: str, referents: Referents) -> list[list[Span]]:
    """Return the paragraphs of prose without problems."""
    paragraphs = []
    for paragraph in prose.split("\n\n"):
        spans: list[Span] = []
        for index, piece in enumerate(_REFERENCE.split(paragraph)):
            if index % 2:
                shown = referents.span(piece)
                assert not isinstance(shown, str), "the prose was checked"
                spans.append(shown)
            elif piece:
                spans.append(Text(piece))
        paragraphs.append(spans)
    return paragraphs
