"""Researchers: clients of a study, which propose one or write about its report.

A study needs none. What a researcher says counts only once registration or the checks of prose
accept it, and it never computes, decides or starts anything.
"""

from ajet_research.researchers.asking import TRANSCRIPTS
from ajet_research.researchers.interface import (
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
)
from ajet_research.researchers.interpreting import interpret_study
from ajet_research.researchers.model import ModelResearcher, ModelTerms
from ajet_research.researchers.program import ProgramResearcher, ProgramRules
from ajet_research.researchers.proposing import ProposedStudy, propose_study

__all__ = [
    "TRANSCRIPTS",
    "ModelResearcher",
    "ModelTerms",
    "ProgramResearcher",
    "ProgramRules",
    "ProposedStudy",
    "Request",
    "Researcher",
    "ResearcherAnswer",
    "ResearcherFailedError",
    "interpret_study",
    "propose_study",
]
