"""Episodes in a terminal: a table of several, a tree of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ajet_core.protocol import EpisodeTimelines, TimelineCall, TimelineFork, TimelineNode
from ajet_server.page.summary import EpisodeSummary
from ajet_server.page.text_diff import text_diff
from ajet_server.page.token_texts import TokenTexts
from ajet_server.page.visible_text import shorten, visible

_COLUMNS = (
    *("episode", "task", "group", "state", "step", "reward", "calls", "timelines"),
    *("tokens raw", "in tree", "recomputed", "forks"),
)
_WORDS = 5
_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_TEXT_WIDTH = 88
_MESSAGES = 8
_DEPTH = 8
_DIFF_WIDTH = 800
_REASONS = 5
_REASON_WIDTH = 160


def episode_table(episodes: Sequence[EpisodeSummary]) -> Table:
    """Build a table with one row per episode."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(_COLUMNS):
        # Ids must not be broken, so that they can be copied; names may be.
        word = 0 < number < _WORDS - 1
        table.add_column(
            name,
            justify="right" if number >= _WORDS - 1 else "left",
            no_wrap=not word,
            overflow="fold" if word else "ellipsis",
        )
    for episode in episodes:
        kind = " (eval)" if episode.kind == "eval" else ""
        aborted = f" +{episode.calls_aborted} aborted" if episode.calls_aborted else ""
        cells = (
            episode.episode_id,
            visible(episode.task_id),
            visible(episode.group),
            f"{episode.state}{kind}",
            "" if episode.step is None else str(episode.step),
            _number(episode.reward),
            f"{episode.calls}{aborted}",
            str(episode.timelines),
            str(episode.tokens_raw),
            str(episode.tokens),
            str(episode.recomputed_tokens) if episode.recomputed_tokens else "",
            str(episode.forks) if episode.forks else "",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def abort_lines(episodes: Sequence[EpisodeSummary]) -> list[RenderableType]:
    """Return a line for each reason with which episodes were aborted, the most frequent first."""
    reasons = Counter(episode.reason for episode in episodes if episode.state == "aborted")
    lines: list[RenderableType] = [
        Text(f"{count} aborted: {shorten(visible(reason), _REASON_WIDTH)}", style="red")
        for reason, count in reasons.most_common(_REASONS)
    ]
    if (others := len(reasons) - _REASONS) > 0:
        lines.append(Text(f"... and {others} other reasons", style="dim"))
    return lines


def episode_tree(episode: EpisodeTimelines, texts: TokenTexts) -> RenderableType:
    """Build the timelines of one episode: messages, their authors, and training results."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(episode.nodes):
        children.setdefault(node.parent, []).append(number)
    root = Tree(_title(episode), guide_style="dim")
    waiting = [(root, number, 0) for number in reversed(children.get(-1, []))]
    while waiting:
        place, number, depth = waiting.pop()
        rows: list[RenderableType] = []
        if depth > _DEPTH:
            parent = episode.nodes[number].parent
            rows.append(Text(f"after {_depth(episode, parent)} tokens:", style="dim"))
        # Nodes without branches between them are listed below each other, so that a long
        # conversation does not become a staircase.
        rows.append(_node(episode, number, texts))
        while len(following := children.get(number, [])) == 1:
            number = following[0]
            rows.append(_node(episode, number, texts))
        branch = place.add(Group(*rows))
        # Deeper branches would leave no room for text: add them to the deepest level.
        below = branch if depth < _DEPTH else place
        waiting += [(below, child, depth + 1) for child in reversed(following)]
    return root


def fork_list(episode: EpisodeTimelines) -> RenderableType:
    """Build the list of an episode's forks: message, field, and what changed."""
    if not episode.forks:
        return Text("no forks", style="dim")
    table = Table(box=None, pad_edge=False, show_header=False)
    for number in range(3):
        table.add_column(no_wrap=number < 2, overflow="fold")
    indices = {call.call_id: call.index for call in episode.calls}
    for fork in episode.forks:
        table.add_row(
            Text(f"call {indices[fork.call_id]}", style="bold"),
            Text(fork.kind, style="yellow" if fork.recomputed_tokens else "dim"),
            _fork(fork, indices),
        )
    return table


def _depth(episode: EpisodeTimelines, number: int) -> int:
    """Return the number of tokens from the root to the end of a node."""
    tokens = 0
    while number >= 0:
        tokens += len(episode.nodes[number].token_ids)
        number = episode.nodes[number].parent
    return tokens


def _title(episode: EpisodeTimelines) -> Text:
    title = Text()
    title.append(episode.episode_id, "bold")
    title.append(f"  task {visible(episode.task_id)}, group {visible(episode.group)}")
    title.append(f", {episode.kind}, {episode.state}")
    if episode.reward is not None:
        title.append(f", reward {_number(episode.reward)}", "bold")
    if episode.reason:
        title.append(f" ({visible(episode.reason)})", "red")
    title.append(
        f"\n{len(episode.calls)} calls, {episode.timelines} timelines, {episode.tokens} tokens "
        f"({episode.tokens_raw} raw), merged by {episode.merger}",
        "dim",
    )
    if episode.tokens_altered:
        title.append(f" ({episode.tokens_altered} tokens altered)", "yellow")
    for agent, reward in sorted(episode.agent_rewards.items()):
        title.append(f"\nreward of {visible(agent)}: {_number(reward)}", "dim")
    return title


def _node(episode: EpisodeTimelines, number: int, texts: TokenTexts) -> Group:
    node = episode.nodes[number]
    rows = [Text(_tokens(node), style="dim")]
    if node.samplings:
        rows = [_sampling(episode.calls[s.call], node, s.start) for s in node.samplings]
    return Group(*rows, *_messages(node, texts))


def _tokens(node: TimelineNode) -> str:
    size = len(node.token_ids)
    return f"{size} token" if size == 1 else f"{size} tokens"


def _sampling(call: TimelineCall, node: TimelineNode, start: int) -> Text:
    end = start + len(node.token_ids)
    row = Text(_tokens(node), style="dim")
    agent = visible(call.agent) or "unnamed agent"
    row.append(f" sampled by {agent}, call {call.index} ({call.call_id})", "default")
    versions = sorted(set(call.policy_versions[start:end]))
    row.append(f", policy {'+'.join(map(str, versions))}")
    row.append(f", logprob {_mean(call.logprobs[start:end])}")
    if trainer := call.trainer_logprobs[start:end]:
        row.append(f" (trainer {_mean(trainer)})")
    if call.advantage is not None:
        colour = "green" if call.advantage > 0 else "red" if call.advantage < 0 else "dim"
        row.append(f", advantage {call.advantage:+.3g}", colour)
    if call.reward is not None:
        row.append(f", reward {_number(call.reward)}", "bold")
    if call.finish_reason != "stop":
        row.append(f", {call.finish_reason}", "red")
    if call.drift_tokens:
        row.append(f", {call.drift_tokens} tokens would have changed through text", "yellow")
    if call.echo_fields:
        fields = visible(call.echo_fields)
        row.append(f", the previous answer came back with another {fields}", "yellow")
    if call.ignored:
        row.append(f", without effect: {visible(call.ignored)}", "yellow")
    return row


def _messages(node: TimelineNode, texts: TokenTexts) -> list[Text]:
    rows = []
    for role in node.roles[:_MESSAGES]:
        row = Text("  ")
        name = f" {visible(role.name)}" if role.name else ""
        row.append(f"{visible(role.role)}{name}: ", _STYLES.get(role.role, "bold"))
        row.append(_shortened(node.token_ids[role.start : role.end], texts))
        rows.append(row)
    if len(node.roles) > _MESSAGES:
        rows.append(Text(f"  and {len(node.roles) - _MESSAGES} more messages", style="dim"))
    if not node.roles:
        rows.append(Text("  ").append(_shortened(node.token_ids, texts), "dim"))
    return rows


def _shortened(token_ids: Sequence[int], texts: TokenTexts) -> str:
    """Return the text of tokens, shortened before decoding: a node may have very many."""
    if len(token_ids) > 2 * _TEXT_WIDTH:
        head = visible(texts.text(token_ids[:_TEXT_WIDTH]))
        tail = visible(texts.text(token_ids[-_TEXT_WIDTH:]))
        return f"{head[: _TEXT_WIDTH * 2 // 3]}...{tail[-_TEXT_WIDTH // 3 :]}"
    return shorten(visible(texts.text(token_ids)), _TEXT_WIDTH)


def _fork(fork: TimelineFork, indices: dict[str, int]) -> Text:
    row = Text()
    if fork.before_call_id is not None:
        row.append(f"parts from call {indices[fork.before_call_id]}")
    if fork.message >= 0:
        row.append(f" at message {fork.message} ({visible(fork.role)}), field {fork.field}")
    if fork.recomputed_tokens:
        row.append(f", {fork.recomputed_tokens} tokens recomputed", "bold")
    if fork.before or fork.after:
        diff = text_diff(fork.before, fork.after)
        row.append(f"\n{shorten(visible(diff), _DIFF_WIDTH)}")
    return row


def _mean(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None]
    return f"{fmean(finite):.4f}" if finite else "none"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
