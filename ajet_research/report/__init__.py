"""The report: compiled from the ledger, never written."""

from ajet_research.report.compiling import CompiledReport, compile_report
from ajet_research.report.links import unlinked_numerals
from ajet_research.report.prose import refusals

__all__ = ["CompiledReport", "compile_report", "refusals", "unlinked_numerals"]
