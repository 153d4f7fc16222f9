"""Suites of ``ajet research bench``: worlds whose truth is planted, or faults that are injected."""

from collections.abc import Callable
from typing import Any

from ajet_research.suites.adversaries import run_adversaries
from ajet_research.suites.faults import run_faults
from ajet_research.suites.links import run_links
from ajet_research.suites.mutations import run_mutations
from ajet_research.suites.planted import run_effects, run_null
from ajet_research.suites.researching import run_budgets, run_outage
from ajet_research.suites.searching import run_search
from ajet_research.suites.swarm import run_swarm
from ajet_research.suites.versions import run_versions

__all__ = ["SUITES"]

SUITES: dict[str, Callable[..., dict[str, Any]]] = {
    "null": run_null,
    "effects": run_effects,
    "search": run_search,
    "verify": run_mutations,
    "links": run_links,
    "faults": run_faults,
    "swarm": run_swarm,
    "adversaries": run_adversaries,
    "budgets": run_budgets,
    "outage": run_outage,
    "versions": run_versions,
}
