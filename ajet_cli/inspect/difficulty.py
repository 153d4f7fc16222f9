"""The difficulty of a run's tasks over its steps, as numbers and as a picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from xml.sax.saxutils import escape

_MOST_BINS = 9
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 180, 60, 46
_MOST_COLUMNS = 160


@dataclass(frozen=True, slots=True)
class DifficultyStep:
    """Success rates by task: mean rewards, scaled so that the run's least is 0, its greatest 1.

    :param batch: of the tasks of the step's batch.
    :param known: of all tasks so far, each by the last step that had it.
    """

    step: int
    batch: Sequence[float]
    known: Sequence[float]


def difficulty_steps(rewards: Iterable[tuple[int, str, float]]) -> list[DifficultyStep]:
    """Return the success rates of each step in order.

    :param rewards: step, task id and reward of each episode that was trained.
    """
    by_step: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    least, greatest = math.inf, -math.inf
    for step, task_id, reward in rewards:
        by_step[step][task_id].append(reward)
        least, greatest = min(least, reward), max(greatest, reward)
    # Rewards that are all equal have no scale.
    span = (greatest - least) or 1.0
    known: dict[str, float] = {}
    steps = []
    for step in sorted(by_step):
        batch = {name: (fmean(values) - least) / span for name, values in by_step[step].items()}
        known |= batch
        steps.append(DifficultyStep(step, list(batch.values()), list(known.values())))
    return steps


def shares(rates: Sequence[float], bins: int) -> list[float]:
    """Return the share of tasks in each of `bins` equal ranges of the success rate, from 0 to 1."""
    counts = [0] * bins
    for rate in rates:
        counts[min(int(rate * bins), bins - 1)] += 1
    return [count / len(rates) for count in counts]


def picture(steps: Sequence[DifficultyStep], title: str) -> str:
    """Draw two heat maps over the steps as SVG: tasks of the batch, and all tasks so far.

    Darker is a larger share of the tasks; the line is the median success rate.
    """
    panels = (
        ("tasks of the step's batch", [step.batch for step in steps]),
        ("all tasks so far, by their last batch", [step.known for step in steps]),
    )
    # Four episodes have five success rates, which would leave gaps in more ranges.
    bins = min(_MOST_BINS, max(2, len({rate for step in steps for rate in step.batch})))
    height = _TOP + len(panels) * (_HEIGHT + 54)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" height="{height}">',
        "<style>text { font: 12px sans-serif } rect { shape-rendering: crispEdges }</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="20">{escape(title)}</text>',
    ]
    for number, (caption, rates) in enumerate(panels):
        parts += _panel(caption, rates, steps, _TOP + number * (_HEIGHT + 54), bins)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    caption: str,
    rates: Sequence[Sequence[float]],
    steps: Sequence[DifficultyStep],
    top: float,
    bins: int,
) -> list[str]:
    # Steps that share a column are shown by the last of them.
    columns = min(len(steps), _MOST_COLUMNS)
    chosen = [math.ceil((column + 1) * len(steps) / columns) - 1 for column in range(columns)]
    wide, high = _WIDTH / columns, _HEIGHT / bins
    bottom = top + _HEIGHT
    parts = [f'<text x="{_LEFT}" y="{top - 6:.1f}">{escape(caption)}</text>']
    line = []
    for column, index in enumerate(chosen):
        left = _LEFT + column * wide
        for place, share in enumerate(shares(rates[index], bins)):
            if share:
                # The root, so that a few tasks can be seen.
                parts.append(
                    f'<rect x="{left:.2f}" y="{bottom - (place + 1) * high:.2f}" '
                    f'width="{wide:.2f}" height="{high:.2f}" fill="#1f5fa8" '
                    f'fill-opacity="{math.sqrt(share):.3f}"/>'
                )
        line.append(f"{left + wide / 2:.2f},{bottom - median(rates[index]) * _HEIGHT:.2f}")
    parts += [
        f'<path d="M{_LEFT} {top}h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z" fill="none" stroke="#888"/>',
        f'<polyline points="{" ".join(line)}" fill="none" stroke="#d95f02" stroke-width="2"/>',
    ]
    for rate, word in ((0.0, "0"), (0.5, "0.5"), (1.0, "1")):
        parts.append(
            f'<text x="{_LEFT - 6}" y="{bottom - rate * _HEIGHT + 4:.1f}" text-anchor="end">'
            f"{word}</text>"
        )
    middle = top + _HEIGHT / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        "success rate</text>"
    )
    ends = ((_LEFT, "start", steps[0]), (_LEFT + _WIDTH, "end", steps[-1]))
    parts += [
        f'<text x="{x}" y="{bottom + 16}" text-anchor="{anchor}">step {step.step}</text>'
        for x, anchor, step in ends
    ]
    return parts
