"""Mutations of the part of ajet_research that is trusted: fold, actions, inference and verify.

Each replaces one place of a module's text. `SUITES` has the tests that must catch the mutations of
a module.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.planting import put

_TESTS = "tests/research/"
SUITES = {
    "state": ("test_ledger.py", "test_steering.py", "test_leader.py"),
    "actions": ("test_actions.py", "test_leader.py", "test_steering.py"),
    "inference": ("test_inference.py",),
    "analysis": ("test_analysis.py",),
    "verifying": (
        "test_verifying_rows.py",
        "test_verifying.py",
        "test_disk_rows.py",
        "test_steering.py",
        "test_interpretation.py",
    ),
}


@dataclass(frozen=True)
class Edit:
    """A mutation: the only occurrence of `old` in `ajet_research.MODULE` becomes `new`."""

    module: str
    old: str
    new: str

    @property
    def suites(self) -> list[str]:
        """The files of the tests that must catch it."""
        return [_TESTS + name for name in SUITES[self.module]]

    @property
    def path(self) -> Path:
        """The file of the module."""
        return Path(__file__).parents[2] / "ajet_research" / f"{self.module}.py"

    def text(self) -> str:
        """Return the mutated text of the module.

        :raises ValueError: the place is not there, or not the only one.
        """
        text = self.path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.path.name} has {self.old!r} {count} times")
        return text.replace(self.old, self.new)

    def plant(self) -> None:
        """Import the mutated module, before anything imports the one of the file."""
        name = f"ajet_research.{self.module}"
        assert name not in sys.modules, f"{name} was imported before its mutation"
        spec = importlib.util.find_spec(name)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        exec(compile(self.text(), str(self.path), "exec"), module.__dict__)
        put(importlib.import_module("ajet_research"), self.module, module)


EDITS = {
    # --- The fold of the ledger ---
    "reservations_last": Edit(
        "state", "self.reserved -= trial.blueprint.seconds", "self.reserved -= 0.0"
    ),
    "spent_time_is_forgotten": Edit(
        "state", "self.settled += event.seconds", "self.settled += 0.0"
    ),
    "attempts_come_in_any_order": Edit(
        "state", "event.attempt != trial.attempts + 1 or self.decided", "self.decided"
    ),
    "attempts_start_after_the_decision": Edit(
        "state", "trial.attempts + 1 or self.decided is not None:", "trial.attempts + 1:"
    ),
    "results_are_of_any_attempt": Edit("state", "if event.attempt != trial.attempts:", "if False:"),
    "metrics_may_be_missing": Edit(
        "state",
        "if event.metrics.keys() != (set() if event.failed else self.metrics.keys()):",
        "if False:",
    ),
    "looks_come_in_any_order": Edit(
        "state", "if look == len(self.findings) and self.decided is None:", "if True:"
    ),
    "looks_are_unlimited": Edit(
        "state", "if look >= len(self.registered.inference.looks):", "if False:"
    ),
    "a_study_is_decided_twice": Edit(
        "state", "case Decided() if self.decided is None:", "case Decided():"
    ),
    "a_report_needs_no_decision": Edit(
        "state", "case Reported() if self.decided is not None:", "case Reported():"
    ),
    "rows_follow_the_report": Edit(
        "state",
        "if not begun or (self.reported is not None and not isinstance(event, _AFTER_THE_REPORT)):",
        "if not begun:",
    ),
    "the_digest_is_not_compared": Edit(
        "state", "if self.study.digest() != event.digest:", "if False:"
    ),
    "trials_need_no_arm": Edit(
        "state",
        "if event.arms.keys() != {one.id for one in event.blueprints} or used",
        "if used",
    ),
    "a_finished_trial_starts_again": Edit(
        "state", "if trial is None or trial.status != status:", "if trial is None:"
    ),
    "pauses_take_time": Edit(
        "state", "if not self.held:\n            self.wall", "if True:\n            self.wall"
    ),
    "the_first_finding_lasts": Edit(
        "state", "latest.update(findings)", "latest = findings | latest"
    ),
    "limits_may_stay_as_they_are": Edit(
        "state", "if not limit > limits[name]:", "if not limit >= limits[name]:"
    ),
    "fixed_limits_grow": Edit("state", "numbers - FIXED_LIMITS", "numbers"),
    "a_decided_study_is_steered": Edit(
        "state",
        "case _ if self.decided is not None:\n                reason",
        "case _ if False:\n                reason",
    ),
    "requests_count_twice": Edit("state", "(own and event.request in known)", "False"),
    # --- What to do next ---
    "seeds_of_the_next_look_are_needed": Edit(
        "actions", "trial.blueprint.seed < last", "trial.blueprint.seed <= last"
    ),
    "all_seeds_are_needed_at_once": Edit(
        "actions", "looks[len(state.findings)].seeds", "looks[-1].seeds"
    ),
    "closed_comparisons_get_trials": Edit(
        "actions", " for one in study.compare if one.id in undecided]", " for one in study.compare]"
    ),
    "repeated_trials_are_left_out": Edit(
        "actions", "(trial.arm in arms or (arms and trial.blueprint.repeat))", "trial.arm in arms"
    ),
    "one_attempt_more_is_made": Edit(
        "actions", ".attempts >= state.budget.attempts:", ".attempts > state.budget.attempts:"
    ),
    "attempts_count_as_trials": Edit(
        "actions", "begun += not state.trials[id_].attempts", "begun += 1"
    ),
    "one_trial_more_is_started": Edit(
        "actions", "if begun > budget.trials:", "if begun > budget.trials + 1:"
    ),
    "the_last_trial_is_not_started": Edit(
        "actions", "if begun > budget.trials:", "if begun >= budget.trials:"
    ),
    "time_is_not_limited": Edit("actions", "if seconds > limit * (1 + 1e-9):", "if False:"),
    "reserved_time_is_free": Edit(
        "actions", "seconds = state.settled + state.reserved", "seconds = state.settled"
    ),
    "spent_time_is_free": Edit(
        "actions", "seconds = state.settled + state.reserved", "seconds = state.reserved"
    ),
    "an_attempt_may_outlast_the_wall_time": Edit(
        "actions", "state.wall + trial.blueprint.seconds >", "state.wall >"
    ),
    "wall_time_is_left": Edit("actions", "state.wall + trial", "2 * state.wall + trial"),
    "a_budget_ends_while_trials_run": Edit(
        "actions", "elif idle and not allowed:", "elif not allowed:"
    ),
    "a_look_does_not_wait": Edit("actions", "return waiting or [partial or", "return [partial or"),
    "a_question_does_not_wait": Edit(
        "actions", "return waiting or [Ask(state.due.id)]", "return [Ask(state.due.id)]"
    ),
    "a_decision_does_not_wait": Edit(
        "actions", 'return waiting or [Proceed("decision")]', 'return [Proceed("decision")]'
    ),
    "an_ended_study_goes_on": Edit("actions", " if state.ended is None else []", ""),
    "a_used_up_budget_ends_nothing": Edit(
        "actions", "if next_ones and (state.exhausted is None or", "if next_ones and (True or"
    ),
    "a_look_that_is_complete_is_not_taken": Edit(
        "actions", ' or next_ones == [Proceed("look")]):', "):"
    ),
    "a_pause_holds_nothing": Edit("actions", "if state.held:", "if False:"),
    "a_verdict_closes_nothing": Edit(
        "actions",
        'if one.id not in verdicts or verdicts[one.id].verdict == "undecided"',
        "",
    ),
    "a_finished_study_is_reported_again": Edit(
        "actions",
        "if state.reported is not None:\n        return []",
        "if False:\n        return []",
    ),
    # --- Inference ---
    "the_observed_signs_do_not_count": Edit(
        "inference", "2.0 * (1 + min(below, above))", "2.0 * min(below, above)"
    ),
    "p_is_one_sided": Edit("inference", "2.0 * (1 + min(below, above))", "(1 + min(below, above))"),
    "p_takes_the_other_tail": Edit("inference", "min(below, above)", "max(below, above)"),
    "ties_are_not_as_extreme": Edit(
        "inference", "below = int((means <= slack).sum())", "below = int((means < -slack).sum())"
    ),
    "alpha_is_doubled": Edit("inference", "alpha * 2.0 ** (seeds - 1)", "alpha * 2.0 ** seeds"),
    "the_rank_is_rounded_down": Edit("inference", "(seeds - 1) * (1 + 1e-12))", "(seeds - 1))"),
    "the_lower_end_is_one_rank_higher": Edit(
        "inference", "float(ordered[rank - 1])", "float(np.sort(means)[rank])"
    ),
    "the_upper_end_is_one_rank_lower": Edit(
        "inference",
        "float(ordered[len(means) - rank])",
        "float(np.sort(means)[len(means) - rank - 1])",
    ),
    "ties_win_nothing": Edit("inference", "0.5 if d >= -slack", "0.0 if d >= -slack"),
    "any_gain_is_better": Edit(
        "inference", "if estimated.low > smallest + slack:", "if estimated.low > slack:"
    ),
    "any_loss_is_worse": Edit(
        "inference", "if estimated.high < -smallest - slack:", "if estimated.high < -slack:"
    ),
    "one_end_shows_equivalence": Edit(
        "inference",
        "if estimated.low > -smallest + slack and estimated.high",
        "if estimated.low > -smallest + slack or estimated.high",
    ),
    "the_smallest_effect_itself_is_better": Edit(
        "inference", "if estimated.low > smallest + slack:", "if estimated.low >= smallest - slack:"
    ),
    "a_guardrail_holds_by_its_mean": Edit(
        "inference", "return estimated.low > -margin", "return estimated.gain > -margin"
    ),
    "less_is_never_better": Edit(
        "inference", "seed: sign * (value - against[seed])", "seed: value - against[seed]"
    ),
    "pairs_are_turned_round": Edit(
        "inference", "(value - against[seed])", "(against[seed] - value)"
    ),
    "one_seed_more_is_asked_for": Edit(
        "inference", "while least_p(seeds) > alpha:", "while least_p(seeds) >= alpha:"
    ),
    "too_many_seeds_are_enumerated": Edit(
        "inference", "if not 1 <= n <= MOST_SEEDS or", "if not 1 <= n or"
    ),
    # --- Verification: each kind of problem is not seen ---
    "reservations_are_not_called_for": Edit(
        "verifying", "fits = fits and Reserve(event.trial) in todo", "fits = True"
    ),
    "results_are_not_called_for": Edit(
        "verifying", "fits = Await(event.trial) in todo", "fits = True"
    ),
    "losses_are_not_called_for": Edit(
        "verifying", "fits = GiveUp(event.trial) in todo", "fits = True"
    ),
    "ends_of_budgets_are_not_called_for": Edit(
        "verifying", "fits = Stop(event.resource, event.used, event.limit) in todo", "fits = True"
    ),
    "measured_ends_are_not_compared": Edit(
        "verifying",
        '"wall_hours" | "disk_mib") if event.used > event.limit:',
        '"wall_hours" | "disk_mib"):',
    ),
    "limits_of_measured_ends_are_not_compared": Edit(
        "verifying", "fits = event.limit == getattr(state.budget, event.resource)", "fits = True"
    ),
    "looks_come_early": Edit(
        "verifying",
        "fits = [one.to for one in todo if isinstance(one, Proceed)] == [place[event.kind]]",
        "fits = True",
    ),
    "questions_are_not_called_for": Edit(
        "verifying", "fits = todo == [Ask(event.question)]", "fits = True"
    ),
    "comparisons_of_a_look_are_not_compared": Edit(
        "verifying", "if sorted(event.findings) != sorted(expected):", "if False:"
    ),
    "decisions_are_not_derived": Edit(
        "verifying", "if verdicts != event.verdicts or branch != event.branch:", "if False:"
    ),
    "pairs_are_not_derived": Edit("verifying", "if finding.seeds != list(values):", "if False:"),
    "missing_pairs_are_not_derived": Edit(
        "verifying",
        "if finding.missing != [seed for seed in seeds if seed not in values]:",
        "if False:",
    ),
    "alpha_is_not_compared": Edit("verifying", "if finding.alpha != alpha:", "if False:"),
    "means_are_not_derived": Edit(
        "verifying",
        "if theirs is None or not _near(mine := math.fsum(sample) / len(each), theirs, sample):",
        "if (mine := 0.0):",
    ),
    "gains_are_not_derived": Edit(
        "verifying",
        "if finding.gain is None or not _near(gain, finding.gain, values):",
        "if False:",
    ),
    "p_is_not_derived": Edit(
        "verifying",
        "if finding.p is None or not least - _NEAR <= finding.p <= most + _NEAR:",
        "if False:",
    ),
    "wins_are_not_derived": Edit(
        "verifying",
        "if finding.wins is None or abs(wins - finding.wins) > _NEAR:",
        "if False:",
    ),
    "intervals_are_not_derived": Edit(
        "verifying",
        '        if wrong:\n            yield f"the {name} end',
        '        if False:\n            yield f"the {name} end',
    ),
    "verdicts_are_not_derived": Edit("verifying", "if verdict != finding.verdict:", "if False:"),
    "guardrails_are_not_derived": Edit(
        "verifying",
        "if guarded.holds != holds or not _near(gain, guarded.gain, guarded_values):",
        "if False:",
    ),
    "guardrails_may_be_added": Edit(
        "verifying",
        "if set(finding.guardrails) - {guard.metric for guard in study.outcome.guardrails}:",
        "if False:",
    ),
    "study_files_are_not_compared": Edit(
        "verifying", "if own.digest() != first.digest:", "if False:"
    ),
    "trials_are_not_those_of_the_study": Edit(
        "verifying", "if first.blueprints != list(again.blueprints.values()):", "if False:"
    ),
    "arms_are_not_compared": Edit(
        "verifying",
        "if [first.arms.get(one.id) for one in first.blueprints] != list(again.arms.values()):",
        "if False:",
    ),
    "code_of_arms_is_not_compared": Edit(
        "verifying", "if first.files != again.files:", "if False:"
    ),
    "metrics_are_not_compared": Edit(
        "verifying",
        "if known != {name: (one.direction, one.worst) for name, one in arena.metrics.items()}:",
        "if False:",
    ),
    "trials_beside_the_ledger_are_not_seen": Edit(
        "verifying",
        "for name in sorted(present - {id_ for id_, one in state.trials.items() if one.attempts}):",
        "for name in ():",
    ),
    "failed_attempts_may_have_results": Edit(
        "verifying",
        "            if ended is not None and (\n",
        "            if False and ended is not None and (\n",
    ),
    "blueprints_are_not_compared": Edit(
        "verifying",
        'if json.loads((trial / BLUEPRINT).read_bytes()) != blueprint.model_dump(mode="json"):',
        "if False:",
    ),
    "times_of_results_are_not_compared": Edit(
        "verifying",
        "if ended is None or (ended.seconds, ended.mebibytes) != (event.seconds, event.mebibytes):",
        "if ended is None:",
    ),
    "stores_are_not_hashed": Edit(
        "verifying", "if store_hashes(trial / STORE) != event.store:", "if False:"
    ),
    "outcomes_are_not_derived": Edit(
        "verifying",
        '        yield "its outcome is not the one of its raw store"',
        "        pass",
    ),
    "limits_of_time_are_not_checked": Edit(
        "verifying", '            yield "it ended before it reached a limit"', "            pass"
    ),
    "outcomes_beyond_the_time_are_taken": Edit(
        "verifying",
        '            yield "it has an outcome, though it reached a limit"',
        "            pass",
    ),
    "outcomes_beyond_the_disk_are_taken": Edit(
        "verifying", "if ended.reached(blueprint) == DISK_LIMIT:", "if False:"
    ),
    "reservations_may_have_other_limits": Edit(
        "verifying", "event.limits == trial.blueprint.limits", "True"
    ),
    "transcripts_are_not_hashed": Edit("verifying", "if own != expected:", "if False:"),
    "reports_are_not_hashed": Edit(
        "verifying", "if compiled.hashes != state.reported.files:", "if False:"
    ),
    "files_of_reports_are_not_compared": Edit(
        "verifying",
        "elif hashlib.sha256(present[name]).hexdigest() != compiled.hashes[name]:",
        "elif False:",
    ),
    "files_may_be_missing": Edit(
        "verifying", '            yield f"The report lacks {name}."', "            pass"
    ),
    "files_may_be_added": Edit(
        "verifying",
        '            yield f"The report has a file that was not compiled: {name}."',
        "            pass",
    ),
    "prose_is_not_checked": Edit(
        "verifying",
        "for problem in interpretation_problems(event.prose, referents_of(state)):",
        "for problem in ():",
    ),
    "requests_beyond_the_budget_are_not_seen": Edit(
        "verifying",
        "if state.spending.excess(event.tokens, event.money, limits):",
        "if False:",
    ),
    "decided_comparisons_are_analysed_again": Edit(
        "analysis",
        'if before.get(one.id, "undecided") == "undecided"',
        "if True",
    ),
    "open_comparisons_are_not_analysed_again": Edit(
        "analysis",
        'if before.get(one.id, "undecided") == "undecided"',
        "if one.id not in before",
    ),
    "a_decision_is_the_otherwise": Edit(
        "analysis",
        "if branch.otherwise or branch.applies(verdicts)",
        "if branch.otherwise",
    ),
    "a_decision_is_the_first_branch": Edit(
        "analysis",
        "if branch.otherwise or branch.applies(verdicts)",
        "if True",
    ),
    "failed_trials_have_the_worst_value": Edit(
        "analysis",
        'if metric == registered.metric and registered.failed != "worst":',
        "if False:",
    ),
    "other_metrics_have_the_registered_value": Edit(
        "analysis",
        "if metric == registered.metric and registered.failed",
        "if registered.failed",
    ),
    "repeats_are_outcomes": Edit(
        "analysis",
        "        if trial.arm != arm or trial.blueprint.repeat or outcome is None:\n",
        "        if trial.arm != arm or outcome is None:\n",
    ),
    "outcomes_are_of_any_arm": Edit(
        "analysis",
        "        if trial.arm != arm or trial.blueprint.repeat or outcome is None:\n",
        "        if trial.blueprint.repeat or outcome is None:\n",
    ),
    "failed_trials_have_no_outcome": Edit(
        "analysis",
        "values[trial.blueprint.seed] = value",
        "pass",
    ),
    "a_rung_is_the_first": Edit(
        "analysis",
        "arm = candidate_arm(candidate, rung)",
        "arm = candidate_arm(candidate, rung + 1)",
    ),
    "means_of_candidates_are_sums": Edit(
        "analysis",
        "return math.fsum(values) / len(values) if values else None",
        "return math.fsum(values) if values else None",
    ),
    "the_worst_candidates_are_kept": Edit(
        "analysis",
        "-turn * value",
        "turn * value",
    ),
    "the_direction_of_candidates_is_ignored": Edit(
        "analysis",
        "-turn * value",
        "-value",
    ),
    "ties_of_candidates_go_to_the_last": Edit(
        "analysis",
        "(known[number], number)",
        "(known[number], -number)",
    ),
    "one_more_candidate_is_kept": Edit(
        "analysis",
        "rungs[state.rung].keep]",
        "rungs[state.rung].keep + 1]",
    ),
    "the_direction_is_ignored": Edit(
        "analysis",
        'return 1.0 if state.metrics[metric].direction == "max" else -1.0',
        "return 1.0",
    ),
    "later_seeds_count_already": Edit(
        "analysis",
        "if seed < first + count}",
        "if True}",
    ),
    "the_last_seed_does_not_count": Edit(
        "analysis",
        "if seed < first + count}",
        "if seed < first + count - 1}",
    ),
    "alpha_is_of_the_first_look": Edit(
        "analysis",
        "study.alpha_of(look)",
        "study.alpha_of(0)",
    ),
    "missing_pairs_are_not_listed": Edit(
        "analysis",
        "if seed not in pairs]",
        "if seed in ()]",
    ),
    "without_pairs_it_is_undecided": Edit(
        "analysis",
        '            verdict="invalid",\n            reason="no pair',
        '            verdict="undecided",\n            reason="no pair',
    ),
    "guardrails_always_hold": Edit(
        "analysis",
        "holds=holds(guarded, guard.margin)",
        "holds=True",
    ),
    "guardrails_are_of_the_outcome": Edit(
        "analysis",
        "differences(guard.metric)",
        "differences(metric)",
    ),
    "guardrails_have_no_margin": Edit(
        "analysis",
        "holds(guarded, guard.margin)",
        "holds(guarded, 1e9)",
    ),
    "any_number_of_pairs_may_be_missing": Edit(
        "analysis",
        "too_many = len(missing) / count > study",
        "too_many = len(missing) / count > 1 + study",
    ),
    "exactly_as_many_as_allowed_are_too_many": Edit(
        "analysis",
        "len(missing) / count > study",
        "len(missing) / count >= study",
    ),
    "too_many_missing_pairs_are_invalid_at_once": Edit(
        "analysis",
        '"invalid" if last else "undecided"',
        '"invalid"',
    ),
    "means_are_of_all_seeds": Edit(
        "analysis",
        "arm_mean=_mean(outcomes(state, arm, metric), seeds)",
        "arm_mean=_mean(outcomes(state, arm, metric), list(outcomes(state, arm, metric)))",
    ),
    "the_mean_of_the_other_arm_is_its_own": Edit(
        "analysis",
        "against_mean=_mean(outcomes(state, against, metric)",
        "against_mean=_mean(outcomes(state, arm, metric)",
    ),
    "equal_measurements_are_believed": Edit(
        "analysis",
        "if same := _same_fingerprint(state, arm):",
        'if False and (same := ""):',
    ),
    "equal_measurements_of_one_arm_are_believed": Edit(
        "analysis",
        "    for arm in arms:\n",
        "    for arm in arms[1:]:\n",
    ),
    "any_effect_is_better": Edit(
        "analysis",
        "verdict_of(estimated, state.registered.outcome.smallest)",
        "verdict_of(estimated, 1e-9)",
    ),
    "a_guardrail_does_not_bind_the_equivalent": Edit(
        "analysis",
        'if verdict in ("better", "equivalent") and broken:',
        'if verdict == "better" and broken:',
    ),
    "a_guardrail_saves_the_worse": Edit(
        "analysis",
        'if verdict in ("better", "equivalent") and broken:',
        "if broken:",
    ),
    "failures_that_are_the_same_are_invalid": Edit(
        "analysis",
        " or outcome is None or outcome.failed:\n",
        " or outcome is None:\n",
    ),
    "repeats_must_differ": Edit(
        "analysis",
        " or trial.blueprint.repeat or outcome is None or outcome.failed",
        " or outcome is None or outcome.failed",
    ),
    "arms_must_differ": Edit(
        "analysis",
        "trial.arm != arm or trial.blueprint.repeat or outcome is None or outcome.failed",
        "trial.blueprint.repeat or outcome is None or outcome.failed",
    ),
    "intervals_without_end_are_numbers": Edit(
        "analysis",
        "return value if math.isfinite(value) else None",
        "return value",
    ),
}
"""By name, all mutations."""
