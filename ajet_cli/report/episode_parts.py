"""What the model wrote and what failed, as parts of a page."""

from __future__ import annotations

from collections.abc import Sequence

from ajet_cli.report.markup import (
    NAME_CHARS,
    TEXT_CHARS,
    Child,
    Html,
    clock,
    cut,
    joined,
    percent,
    table,
    tag,
)
from ajet_cli.report.reading import RunReport
from ajet_cli.report.samples import (
    FIRST_MESSAGES,
    LAST_MESSAGES,
    MESSAGE_CHARS,
    ShownEpisode,
    StepSample,
)
from ajet_cli.words import number
from ajet_server.averages import mean
from ajet_server.page.models import Conversation, SaidCall, SaidMessage

_TOP = 10


def hacking(samples: Sequence[StepSample]) -> Html:
    """Return the signs that rewards are gamed, in the first and the last step."""
    if not samples:
        return Html("")
    columns = [f"step {sample.step}" for sample in samples]
    rows: list[list[str]] = [
        ["episodes", *(number(len(sample.rows)) for sample in samples)],
        ["mean reward", *(_mean(sample.rewards) for sample in samples)],
        ["mean length, sampled tokens", *(_mean([n for n, _ in s.lengths]) for s in samples)],
        ["correlation of reward and length", *(number(sample.correlation) for sample in samples)],
        ["repeated text", *(_share(sample.repeats) for sample in samples)],
        ["calls that reached their limit", *(_share(sample.cut_off) for sample in samples)],
        ["episodes with the most frequent ending", *(_share(s.same_ending) for s in samples)],
    ]
    return joined(
        tag(
            "p",
            {"class": "dim"},
            "Of at most the first 100 episodes of the first and the last batch. A reward that "
            "grows with length or repetition, or many episodes with one ending, may mean that the "
            "model games the reward: read the episodes with the highest rewards.",
        ),
        table("Signs", ["", *columns], rows, right="12"),
        tag("div", {"class": "scatters"}, *map(_scatter, samples)),
        *map(_endings, samples),
        _highest(samples[-1]),
    )


def _mean(values: Sequence[float]) -> str:
    return number(mean(values)) if values else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _scatter(sample: StepSample) -> Html:
    points = sample.lengths
    if len(points) < 2:
        return Html("")
    most = max(*(tokens for tokens, _ in points), 1)
    low, high = min(r for _, r in points), max(r for _, r in points)
    # The whole of a very large range would overflow.
    half = high / 2 - low / 2
    dots = [
        tag(
            "circle",
            {
                "cx": f"{10 + 400 * tokens / most:.1f}",
                "cy": f"{150 - 140 * ((reward / 2 - low / 2) / half) if half else 80:.1f}",
                "r": "3.5",
            },
        )
        for tokens, reward in points
    ]
    relation = number(sample.correlation)
    title = f"Step {sample.step}: reward against length of {len(points)} episodes"
    return tag(
        "figure",
        {"class": "scatter"},
        tag(
            "svg",
            {
                "viewBox": "0 0 420 160",
                "role": "img",
                "aria-label": f"{title}, correlation {relation}",
            },
            *dots,
        ),
        tag(
            "figcaption",
            {"class": "dim"},
            f"{title}: 0 to {number(most)} sampled tokens, reward {number(low)} to {number(high)}; "
            f"correlation {relation}",
        ),
    )


def _endings(sample: StepSample) -> Html:
    if not sample.endings:
        return Html("")
    return table(
        f"Identical endings of step {sample.step}",
        ["episodes", "mean reward", "ending"],
        [[number(one.episodes), number(one.reward), _ending(one.text)] for one in sample.endings],
        right="01",
    )


def _ending(text: str) -> Html:
    return tag("span", {"class": "ending"}, text)


def _highest(sample: StepSample) -> Html:
    return table(
        f"Episodes of step {sample.step}, the highest reward first",
        ["episode", "task", "reward", "calls", "tokens", "repeats", "ending"],
        [
            [
                row.episode_id,
                cut(row.task_id, NAME_CHARS),
                number(row.reward),
                number(row.output.calls if row.output else None),
                number(row.output.tokens if row.output else None),
                _share(row.output.repeats if row.output else None),
                _ending(row.output.ending if row.output else ""),
            ]
            for row in sample.rows[:_TOP]
        ],
        right="2345",
    )


def failures(report: RunReport) -> Html:
    """Return the aborted episodes by cause."""
    survey = report.survey
    if not survey.totals:
        return Html("")
    total = sum(survey.totals.values())
    if not survey.failures:
        return tag("p", {"class": "good"}, f"None of {number(total)} episodes was aborted.")
    causes = sorted(survey.failures.items(), key=lambda each: (-each[1].episodes, each[0]))
    return table(
        f"Aborted episodes by cause, of {number(total)} episodes",
        ["cause", "episodes", "share", "last reason"],
        [
            [
                cause.replace("_", " "),
                number(one.episodes),
                percent(one.episodes / total),
                one.reason,
            ]
            for cause, one in causes
        ],
        right="12",
    )


def episodes(report: RunReport) -> Html:
    """Return the best and the worst episodes with their messages."""
    if not report.best:
        return Html("")
    same = {shown.episode_id for shown in report.best}
    worst = [shown for shown in report.worst if shown.episode_id not in same]
    return joined(
        tag(
            "p",
            {"class": "dim"},
            "Those with the highest and the lowest rewards of the run, of different tasks where "
            "possible; of equal rewards, the newest. Each text is cut to "
            f"{number(MESSAGE_CHARS)} characters, and an episode to its first and last calls.",
        ),
        tag("h3", {}, "The best"),
        *map(_episode, report.best),
        *([tag("h3", {}, "The worst"), *map(_episode, worst)] if worst else []),
    )


def _episode(shown: ShownEpisode) -> Html:
    if shown.last is None:
        return tag(
            "p", {"class": "bad"}, f"Episode {shown.episode_id}: {cut(shown.problem, TEXT_CHARS)}"
        )
    row = shown.last.episode
    parts = {**row.components, **row.agent_rewards}
    rewards = ", ".join(f"{cut(n, NAME_CHARS)} {number(v)}" for n, v in list(parts.items())[:20])
    spoken: list[Html] = []
    if shown.first is not None:
        spoken += _calls(shown.first)
    if shown.last.omitted:
        spoken.append(
            tag("li", {"class": "dim"}, f"{number(shown.last.omitted)} calls are left out.")
        )
    spoken += _calls(shown.last)
    return tag(
        "article",
        {},
        tag(
            "p",
            {},
            tag("span", {"class": "tag"}, f"reward {number(row.reward)}"),
            f" {row.kind} episode {row.episode_id} of task {cut(row.task_id, NAME_CHARS)}, policy "
            f"version {number(row.version)}, {clock(row.claimed_at)}"
            f"{f' ({rewards})' if rewards else ''}",
        ),
        tag("ol", {"class": "conversation"}, *spoken)
        if spoken
        else tag("p", {}, "It has no call."),
    )


def _calls(conversation: Conversation) -> list[Html]:
    return [part for call in conversation.calls for part in _call(call)]


def _call(call: SaidCall) -> list[Html]:
    messages = call.messages
    left = len(messages) - FIRST_MESSAGES - LAST_MESSAGES
    if left > 0:
        gap = tag("li", {"class": "dim"}, f"{number(left)} messages are left out.")
        shown = [
            *(_message(message, "") for message in messages[:FIRST_MESSAGES]),
            gap,
            *(_message(message, "") for message in messages[-LAST_MESSAGES:]),
        ]
    else:
        shown = [_message(message, "") for message in messages]
    if call.answer is None:
        return [*shown, tag("li", {"class": "dim"}, "The client disconnected before the answer.")]
    agent = f"{cut(call.agent, NAME_CHARS)}, " if call.agent else ""
    note = f" \u00b7 {agent}{number(call.tokens)} tokens, {call.finish_reason}"
    return [*shown, _message(call.answer, note)]


def _message(message: SaidMessage, note: str) -> Html:
    known = message.role if message.role in {"system", "user", "assistant", "tool"} else ""
    name = f" {cut(message.name, NAME_CHARS)}" if message.name else ""
    texts: list[Child] = [
        tag("pre", {"class": kind}, text)
        for kind, text in (
            ("reasoning", message.reasoning),
            (None, message.content),
            ("calls", message.tool_calls),
        )
        if text
    ]
    role = f"{cut(message.role, NAME_CHARS)}{name}{note}"
    return tag(
        "li", {"class": f"message {known}".strip()}, tag("div", {"class": "dim"}, role), *texts
    )
