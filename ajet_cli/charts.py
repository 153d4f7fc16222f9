"""The charts of a run that the monitor and reports draw."""

from __future__ import annotations

CHARTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Reward", ("reward_mean",), ""),
    ("Tasks with equal rewards", ("tasks_equal", "tasks"), "tasks"),
    ("Loss", ("loss",), ""),
    ("Entropy", ("entropy", "sampled_entropy"), "nats"),
    ("KL to the reference model", ("kl",), "nats"),
    ("Trainer against engine", ("logprob_gap_mean", "logprob_gap"), "nats"),
    ("Staleness", ("staleness_mean", "staleness_max"), "steps"),
    ("Length of an answer", ("tokens_per_call",), "tokens"),
    ("Sampled tokens per second", ("tokens_per_second",), "tokens/s"),
)
"""Title, metrics and unit of each, as in the overview of the live page."""

PHASES = (
    "idle_seconds",
    "rollout_seconds",
    "merge_seconds",
    "update_seconds",
    "sync_seconds",
    "other_seconds",
)
"""The parts of `step_seconds`."""
