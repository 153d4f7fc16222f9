"""Researchers: clients of a study, which propose one or write about its report.

A study needs none. What a researcher says counts only once registration or the checks of prose
accept it, and it never computes, decides or starts anything.
"""

from ajet_research.researchers.accounts import TRANSCRIPTS
from ajet_research.researchers.assistant import AssistantResearcher, AssistantRules
from ajet_research.researchers.interface import (
    Request,
    Researcher,
    ResearcherAnswer,
    ResearcherFailedError,
)
from ajet_research.researchers.interpreting import interpret_study, request_about
from ajet_research.researchers.model import ModelResearcher, ModelTerms
from ajet_research.researchers.program import ProgramResearcher, ProgramRules
from ajet_research.researchers.proposing import (
    ProposedStudy,
    proposal_request,
    propose_study,
    read_topic,
)
from ajet_research.researchers.submitting import Submission, submit_proposal, submit_prose

__all__ = [
    "TRANSCRIPTS",
    "AssistantResearcher",
    "AssistantRules",
    "ModelResearcher",
    "ModelTerms",
    "ProgramResearcher",
    "ProgramRules",
    "ProposedStudy",
    "Request",
    "Researcher",
    "ResearcherAnswer",
    "ResearcherFailedError",
    "Submission",
    "interpret_study",
    "proposal_request",
    "propose_study",
    "read_topic",
    "request_about",
    "submit_proposal",
    "submit_prose",
]
