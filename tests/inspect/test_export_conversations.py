"""``ajet export`` of conversations with tools, for fine-tuning elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ajet_cli.main import cli
from ajet_cli.sft.conversations import read_conversations
from ajet_core.timeline import MessageText
from ajet_server.gateway.rendering.canonical import canonical_tools
from ajet_testing.tokenizers import renderer_for, tokenizer_for
from ajet_worlds.chat_template import QWEN3_CHAT_TEMPLATE
from tests.inspect.recorded import Recording, said

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLS = '[{"arguments": {"city": "Jena"}, "id": "call-1", "name": "weather"}]'
QUESTION = said("user", "how is it in Jena?")
CALLED = MessageText("assistant", "I look.", tool_calls=CALLS)
RESULT = MessageText("tool", "sunny", tool_call_id="call-1", name="weather")


def export(*args: object) -> Result:
    return CliRunner().invoke(cli, ["export", *map(str, args)], prog_name="ajet")


def exported(run: Path, kind: str, *args: str) -> list[dict[str, Any]]:
    path = run / f"{kind}.jsonl"
    result = export(run, path, "--rows", kind, "--force", *args)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def with_tool(recording: Recording, name: str, reward: float, *, task: str = "task-1") -> None:
    """Record an episode with a tool call and an answer."""
    episode = recording.episode(name, task=task)
    tools = canonical_tools(TOOLS)
    first = recording.call(episode, [QUESTION], CALLED.content, tools=tools)
    # As the gateway records it: the parsed call is no text of the answer.
    object.__setattr__(first, "answer", CALLED)
    recording.call(episode, [QUESTION, CALLED, RESULT], f"It is sunny, {name}.", tools=tools)
    recording.end(episode, reward)


@pytest.fixture
def run(model_dir: Path, tmp_path: Path) -> Path:
    recording = Recording(model_dir)
    with_tool(recording, "one", 1.0)
    return recording.write(tmp_path / "run")


def test_openai_rows_have_tools_and_calls(run: Path) -> None:
    (row,) = exported(run, "messages")
    assert row == {
        "messages": [
            {"role": "user", "content": "how is it in Jena?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": "call-1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Jena"}'},
                    }
                ],
            },
            {
                "role": "tool",
                "content": "sunny",
                "tool_call_id": "call-1",
                "name": "weather",
            },
            {"role": "assistant", "content": "It is sunny, one."},
        ],
        "tools": TOOLS,
    }


def test_trl_rows_have_each_answer_as_a_completion(run: Path) -> None:
    first, second = exported(run, "completions")
    assert [len(row["prompt"]) for row in (first, second)] == [1, 3]
    (called,) = first["completion"]
    assert called["tool_calls"][0]["function"]["arguments"] == {"city": "Jena"}
    assert second["prompt"][1] == called
    assert second["completion"] == [{"role": "assistant", "content": "It is sunny, one."}]
    assert first["tools"] == TOOLS
    assert (first["episode_id"], first["task_id"], first["reward"]) == ("one", "task-1", 1.0)


@pytest.mark.torch
def test_a_chat_template_renders_the_rows_as_trl_does(run: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    def rendered(messages: list[dict[str, Any]], tools: Any, *, asking: bool) -> str:
        (text,), _ = render_jinja_template(
            conversations=[messages],
            tools=tools,
            chat_template=QWEN3_CHAT_TEMPLATE,
            add_generation_prompt=asking,
        )
        return str(text)

    for row in exported(run, "completions"):
        prompt = rendered(row["prompt"], row["tools"], asking=True)
        whole = rendered([*row["prompt"], *row["completion"]], row["tools"], asking=False)
        assert '"name": "weather"' in prompt
        # TRL trains what follows the prompt.
        assert whole.startswith(prompt)
        completion = whole.removeprefix(prompt)
        assert completion.rstrip().endswith("<|im_end|>")
        assert ('{"name": "weather", "arguments": {"city": "Jena"}}' in completion) == bool(
            row["completion"][0].get("tool_calls")
        )


def test_sft_trains_the_answers_of_the_rows(run: Path) -> None:
    tokenizer = tokenizer_for("qwen3")
    (calls,) = read_conversations(exported(run, "messages"), renderer_for("qwen3"))
    called, answered = (tokenizer.decode(call.sampled_ids) for call in calls)
    assert '"name": "weather", "arguments": {"city": "Jena"}' in called
    assert "It is sunny, one.<|im_end|>" in answered
    assert "Weather of a city" in tokenizer.decode(calls[0].prompt_ids)


def test_each_answer_is_trained_in_one_row(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir, untrained_agents=("titles",))
    episode = recording.episode("one")
    hello, again = said("user", "hello"), said("user", "and now?")
    given = said("assistant", "given")
    recording.call(episode, [hello], "first")
    recording.call(episode, [hello, said("assistant", "first"), again], "second")
    # Another continuation of the first answer, one after an answer of the client, and others.
    recording.call(episode, [hello, said("assistant", "first"), said("user", "or?")], "third")
    recording.call(episode, [hello, given, again], "fourth")
    recording.call(episode, [hello], "title", agent="titles")
    recording.call(episode, [hello], "cut", finish="abort")
    recording.end(episode, 1.0)
    rows = exported(recording.write(tmp_path / "run"), "messages")
    trained = [
        [one["content"] for one in row["messages"] if one["role"] == "assistant" and weight(one)]
        for row in rows
    ]
    assert trained == [["first", "second"], ["third"], ["fourth"]]
    assert not any("tools" in row for row in rows)
    completions = exported(tmp_path / "run", "completions")
    assert [row["completion"][0]["content"] for row in completions] == [
        "first",
        "second",
        "third",
        "fourth",
    ]
    assert completions[0]["tools"] is None


@pytest.mark.parametrize("of", ["messages", "completions"])
def test_side_calls_named_by_a_claim_are_left_out(model_dir: Path, tmp_path: Path, of: str) -> None:
    """`ajet exec` names those of a profile in its claims; the run's configuration has none."""
    recording = Recording(model_dir)
    episode = recording.episode("one")
    recording.call(episode, [said("user", "hello")], "a title", agent="titles")
    recording.call(episode, [said("user", "hello there")], "the answer")
    recording.end(episode, 1.0, rules={"untrained_agents": ["titles"]})
    (row,) = exported(recording.write(tmp_path / "run"), of)
    (answer,) = row["completion"] if of == "completions" else row["messages"][-1:]
    assert answer["content"] == "the answer"


def weight(message: dict[str, Any]) -> int:
    return int(message.get("weight", 1))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ["a1", "a2", "a3", "b1", "b2"]),
        (["--top", "1"], ["a2", "b2"]),
        (["--top", "2"], ["a2", "a3", "b1", "b2"]),
        (["--min-reward", "0.5"], ["a2", "a3", "b2"]),
        (["--best", "0.2"], ["a2"]),
        (["--top", "1", "--min-reward", "0.7"], ["a2"]),
    ],
)
@pytest.mark.parametrize("kind", ["completions", "timelines"])
def test_the_best_episodes_are_chosen(
    model_dir: Path, tmp_path: Path, args: list[str], expected: list[str], kind: str
) -> None:
    recording = Recording(model_dir)
    # The newest first among equal rewards: b2 before b1.
    rewards = {"a1": 0.0, "a2": 1.0, "a3": 0.6, "b1": 0.0, "b2": 0.5}
    for name, reward in rewards.items():
        recording.call(recording.episode(name, task=name[0]), [said("user", "hello")], "it was")
        recording.end(name, reward)
    rows = exported(recording.write(tmp_path / "run"), kind, *args)
    assert [row["episode_id"] for row in rows] == expected


def test_among_equal_rewards_the_newest_is_taken(model_dir: Path, tmp_path: Path) -> None:
    recording = Recording(model_dir)
    for name in ("old", "new"):
        recording.call(recording.episode(name), [said("user", "hello")], "it was")
        recording.end(name, 1.0)
    rows = exported(recording.write(tmp_path / "run"), "completions", "--top", "1")
    assert [row["episode_id"] for row in rows] == ["new"]


@pytest.mark.parametrize("args", [("x.parquet",), ("x.jsonl", "--text")])
def test_messages_are_text_in_json_lines(run: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    result = export(run, tmp_path / args[0], "--rows", "messages", *args[1:])
    assert result.exit_code == 2
    assert "are written as JSON lines" in result.stderr
    assert not (tmp_path / args[0]).exists()
