"""The messages of an episode as lines."""

from __future__ import annotations

from collections.abc import Iterator

from ajet_cli.monitor.layout import Glyphs, Line, Tone, line, paragraph, wrapped
from ajet_cli.words import clock, count, date, number
from ajet_server.page.models import Conversation, EpisodeRow, SaidCall, SaidMessage


def facts(row: EpisodeRow, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what an episode is, and its rewards."""
    parts = [f"{name} {number(value)}" for name, value in row.components.items()]
    parts += [f"{name} {number(value)}" for name, value in row.agent_rewards.items()]
    rewards = f" ({', '.join(parts)})" if parts else ""
    text = (
        f"{row.kind} episode of task {row.task_id}, {row.state}, reward {number(row.reward)}"
        f"{rewards}, claimed {date(row.claimed_at)} at version {row.version} by {row.client}"
    )
    return [
        *paragraph([(f"Episode {glyphs.text(row.episode_id)}", "strong")], width),
        *paragraph([(glyphs.text(text), "")], width, "  "),
    ]


def conversation_lines(said: Conversation, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what was said in an episode, in the order in which calls ended."""
    row = said.episode
    lines = facts(row, width, glyphs)
    if row.reason:
        lines += _body(row.reason, "bad", width, glyphs)
    lines.append(line())
    if said.omitted:
        lines.append(line(f"{count(said.omitted, 'earlier call')} left out.", "dim"))
    if not said.calls:
        lines.append(line("No model call has ended yet.", "dim"))
    for call in said.calls:
        for message in call.messages:
            lines += _message(message, "", width, glyphs)
        lines += _answer(call, width, glyphs)
    return lines


def _answer(call: SaidCall, width: int, glyphs: Glyphs) -> list[Line]:
    if call.answer is None:
        return [line("The client disconnected before the answer was sent.", "dim")]
    agent = f"{call.agent}, " if call.agent else ""
    note = f"{agent}{count(call.tokens, 'token')}, {call.finish_reason}, {clock(call.at)}"
    return list(_message(call.answer, note, width, glyphs))


def _message(message: SaidMessage, note: str, width: int, glyphs: Glyphs) -> Iterator[Line]:
    title = glyphs.text(f"{message.role} {message.name}".rstrip())
    about = f"  {glyphs.text(note)}" if note else ""
    if message.cut:
        about += f"  {count(message.cut, 'character')} left out"
    yield from paragraph([(title, "strong"), (about, "dim")], width, "  ")
    parts: tuple[tuple[str, Tone], ...] = (
        (message.reasoning, "dim"),
        (message.content, ""),
        (message.tool_calls, "warn"),
    )
    for text, tone in parts:
        if text:
            yield from _body(text, tone, width, glyphs)
    yield line()


def _body(text: str, tone: Tone, width: int, glyphs: Glyphs) -> Iterator[Line]:
    room = max(2, width - 2)
    for each in glyphs.lines(text):
        for piece in wrapped(each, room):
            yield line(f"  {piece}", tone)
