"""The report: compiled from the ledger, never written."""

from ajet_research.report.compiling import CompiledReport, compile_report, referents_of
from ajet_research.report.interpretation import (
    MOST_CHARACTERS,
    Referents,
    interpretation_problems,
    normalized,
)
from ajet_research.report.links import unlinked_numerals
from ajet_research.report.prose import refusals, word_problems

__all__ = [
    "MOST_CHARACTERS",
    "CompiledReport",
    "Referents",
    "compile_report",
    "interpretation_problems",
    "normalized",
    "referents_of",
    "refusals",
    "unlinked_numerals",
    "word_problems",
]
