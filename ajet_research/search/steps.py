"""The rows of a search: the next candidate, and those that enter the next rung."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ajet_research.analysis import search_value, sign
from ajet_research.arenas import Arena
from ajet_research.events import Advanced, Proposed
from ajet_research.parts import Scalar
from ajet_research.planning import compared_arms, planned_trials, rung_trials
from ajet_research.search.refusals import candidate_refusal
from ajet_research.search.sampling import TriedCandidate, proposed_values
from ajet_research.search.space import chosen_level
from ajet_research.state import StudyState


def next_candidate(state: StudyState, arena: Arena) -> Proposed:
    """Return the row of the next candidate.

    :raises ConfigError: the sampler is not installed.
    """
    study = state.registered
    assert study.search is not None
    turn = sign(state, study.outcome.metric)
    tried = []
    for number in state.entered:
        value = search_value(state, number, 0)
        chosen_values = state.candidates[number - 1].values
        tried.append(TriedCandidate(chosen_values, None if value is None else turn * value))
    values, by = proposed_values(study.search, len(state.candidates) + 1, tried)
    return candidate_row(state, arena, values, by)


def candidate_row(
    state: StudyState, arena: Arena, values: Mapping[str, Scalar], by: str
) -> Proposed:
    """Return the row of the next candidate, whose values are known."""
    study, number = state.registered, len(state.candidates) + 1
    earlier = [one.values for one in state.candidates]
    refused = candidate_refusal(study, arena, values, earlier)
    trials = {} if refused else rung_trials(study, arena, 0, {number: values}, state.code)[0]
    return Proposed(
        candidate=number,
        values=dict(values),
        by=by,
        refused=refused,
        blueprints=list(trials.values()),
    )


def next_rung(state: StudyState, arena: Arena, kept: Sequence[int]) -> Advanced:
    """Return the row with which candidates enter the next rung, or are confirmed.

    :param kept: their numbers, the best first.
    """
    study, rung = state.registered, state.rung + 1
    assert study.search is not None
    values = {number: state.candidates[number - 1].values for number in kept}
    if rung < len(study.search.rungs):
        blueprints, arms = rung_trials(study, arena, rung, values, state.code)
    else:
        chosen = {chosen_level(rank): value for rank, value in enumerate(values.values(), 1)}
        resolved = compared_arms(study, arena, chosen)
        blueprints, arms = planned_trials(study, arena, resolved, state.code)
    return Advanced(
        rung=rung, candidates=list(kept), blueprints=list(blueprints.values()), arms=arms
    )
