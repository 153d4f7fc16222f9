"""Requests of real programs on a real socket: the model sees what they say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ajet_core.protocol import ServerState
from ajet_core.timeline import Call
from ajet_server.gateway.rendering.renderer import ChatRenderer
from ajet_server.store.call_metadata import DRIFT_TOKENS, ECHO_FIELDS
from ajet_testing.servers import (
    CLIENT,
    CONTROL,
    Running,
    ServerFactory,
    claim_as,
    key,
    new_token,
)
from ajet_testing.tokenizers import renderer_for, write_model
from tests.support.runs import status, until_state

pytestmark = pytest.mark.processes

# Their templates take one system message, at the beginning.
FAMILIES = ("qwen3.8", "nemotron-3")
PROMPT = "You are a coding assistant."
RULES = "Follow AGENTS.md."
REMINDER = "The file was changed by the user."
QUESTION = "Add a test."
WRITE = {
    "name": "write_file",
    "description": "Writes a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
}
SAID = "</think>\n\nDone.<|im_end|>"


@dataclass
class Model:
    """A family's model on a running server, in an episode."""

    server: Running
    grant: dict[str, Any]
    renderer: ChatRenderer

    async def post(self, route: str, **body: Any) -> dict[str, Any]:
        answer = await self.server.http.post(
            f"/v1/{route}", headers=key(self.grant), json={"model": "any", **body}
        )
        assert answer.status_code == 200, answer.text
        return json.loads(answer.text)

    async def calls(self) -> list[Call]:
        found = await self.server.service.store.calls([self.grant["episode_id"]])
        return sorted(found[self.grant["episode_id"]], key=lambda call: call.index)

    async def prompts(self) -> list[str]:
        return [self.renderer.decode(call.prompt_ids) for call in await self.calls()]


@contextlib.asynccontextmanager
async def says(
    text: str, family: str, directory: Path, template: str | None = None
) -> AsyncIterator[Model]:
    """A model that says `text`; with a template, the server knows nothing else of it."""
    model = write_model(directory / "models" / "tiny", family, template)
    (model / "model.safetensors").write_bytes(b"")
    renderer = renderer_for(family)
    async with ServerFactory(model, directory / "run").running() as server:
        await server.roll(
            model={"path": str(model), "renderer": "default" if template else family},
            engine={"reply_ids": renderer.encode(text)},
        )
        yield Model(server, await server.claim(), renderer)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_coding_assistant_with_two_system_messages_and_a_reminder(
    family: str, tmp_path: Path
) -> None:
    said: list[dict[str, Any]] = [
        {"role": "system", "content": PROMPT},
        {"role": "developer", "content": [{"type": "text", "text": RULES}]},
        {"role": "user", "content": QUESTION},
    ]
    tools = [{"type": "function", "function": WRITE}]
    async with says(SAID, family, tmp_path) as model:
        answer = await model.post("chat/completions", messages=said, tools=tools)
        said += [
            answer["choices"][0]["message"],
            {"role": "system", "content": REMINDER},
            {"role": "user", "content": "Go on."},
        ]
        await model.post("chat/completions", messages=said, tools=tools)
        first, second = await model.calls()
        asked, reminded = await model.prompts()
    assert f"{PROMPT}\n\n{RULES}" in asked
    assert asked.count("<|im_start|>system") == 1
    # The turn before is extended by what is new.
    assert second.prompt_ids[: first.length] == first.token_ids
    assert f"<|im_start|>user\n{REMINDER}<|im_end|>" in reminded
    # What is recorded is what the agent said.
    texts = [(message.text.role, message.text.content) for message in second.conversation()]
    assert texts == [
        ("system", PROMPT),
        ("system", RULES),
        ("user", QUESTION),
        ("assistant", "Done."),
        ("system", REMINDER),
        ("user", "Go on."),
    ]


@pytest.mark.parametrize("family", FAMILIES)
async def test_instructions_beside_a_developer_item(family: str, tmp_path: Path) -> None:
    items = [
        {"type": "message", "role": "developer", "content": RULES},
        {"type": "message", "role": "user", "content": QUESTION},
    ]
    async with says(SAID, family, tmp_path) as model:
        first = await model.post("responses", instructions=PROMPT, input=items)
        await model.post(
            "responses", instructions=PROMPT, previous_response_id=first["id"], input="Go on."
        )
        await model.post("responses", previous_response_id=first["id"], input="Go on.")
        _, second, third = await model.prompts()
        calls = await model.calls()
    assert f"{PROMPT}\n\n{RULES}" in second
    assert calls[1].prompt_ids[: calls[0].length] == calls[0].token_ids
    # Instructions are not carried over, and the developer's message is.
    assert PROMPT not in third and RULES in third


@pytest.mark.parametrize("family", FAMILIES)
async def test_messages_with_a_system_prompt_and_a_system_message(
    family: str, tmp_path: Path
) -> None:
    system = [{"type": "text", "text": PROMPT}, {"type": "text", "text": RULES}]
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "system", "content": REMINDER},
    ]
    async with says(SAID, family, tmp_path) as model:
        await model.post("messages", system=system, messages=messages, max_tokens=50)
        (prompt,) = await model.prompts()
    assert prompt.index(PROMPT) < prompt.index(RULES) < prompt.index(QUESTION)
    assert f"<|im_start|>user\n{REMINDER}<|im_end|>" in prompt


SOURCE = '    if x:\n\treturn "</parameter>"\n'
PARAMETERS = "<parameter=path>\na.py\n</parameter>\n<parameter=content>\nTEXT\n</parameter>\n"
# What a model samples for a call of `write_file`, as its template writes it.
WRITTEN = {
    "qwen3.6": "\n</think>\n\n<tool_call>\n<function=write_file>\n"
    f"{PARAMETERS}</function>\n</tool_call><|im_end|>",
    "nemotron-3": "</think>\n<tool_call>\n<function=write_file>\n"
    f"{PARAMETERS}</function>\n</tool_call>\n<|im_end|>",
    "glm-5": "</think><tool_call>write_file<arg_key>path</arg_key><arg_value>a.py</arg_value>"
    "<arg_key>content</arg_key><arg_value>TEXT</arg_value></tool_call><|observation|>",
    "minimax-m2": '\n<minimax:tool_call>\n<invoke name="write_file">\n'
    '<parameter name="path">a.py</parameter>\n'
    '<parameter name="content">TEXT</parameter>\n</invoke>\n</minimax:tool_call>[e~[',
    "laguna-s-2.1": "</think><tool_call>write_file"
    "<arg_key>path</arg_key><arg_value>a.py</arg_value>"
    "<arg_key>content</arg_key><arg_value>TEXT</arg_value></tool_call></assistant>",
}
FILE = {"path": "a.py", "content": SOURCE}


@pytest.mark.parametrize("family", WRITTEN)
async def test_a_file_is_written_to_the_last_character(family: str, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": WRITE}]
    async with says(WRITTEN[family].replace("TEXT", SOURCE), family, tmp_path) as model:
        answer = await model.post("chat/completions", messages=said, tools=tools)
        message = answer["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == FILE
        said += [message, {"role": "tool", "tool_call_id": call["id"], "content": "written"}]
        await model.post("chat/completions", messages=said, tools=tools)
        first, second = await model.calls()
    assert second.prompt_ids[: first.length] == first.token_ids
    # The template would write the very tokens that were sampled, and the agent gave back what it
    # got.
    assert DRIFT_TOKENS not in first.metadata
    assert ECHO_FIELDS not in second.metadata


async def test_a_file_is_written_to_the_last_character_in_every_dialect(tmp_path: Path) -> None:
    tools = [{"name": "write_file", "input_schema": WRITE["parameters"]}]
    asked = [{"role": "user", "content": QUESTION}]
    async with says(WRITTEN["qwen3.6"].replace("TEXT", SOURCE), "qwen3.6", tmp_path) as model:
        message = await model.post("messages", messages=asked, tools=tools, max_tokens=200)
        response = await model.post("responses", input=asked, tools=[{"type": "function", **WRITE}])
        streamed = await model.server.http.post(
            "/v1/chat/completions",
            headers=key(model.grant),
            json={
                "model": "any",
                "messages": asked,
                "tools": [{"type": "function", "function": WRITE}],
                "stream": True,
            },
        )
    assert message["content"][-1]["input"] == FILE
    assert json.loads(response["output"][-1]["arguments"]) == FILE
    lines = [line for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line[6:])["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
    assert json.loads("".join(call.get("arguments") or "" for call in calls)) == FILE


# A template that is all the server has, with calls as Qwen 2.5 writes them.
HERMES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLED = (
    f'<tool_call>\n{{"name": "write_file", "arguments": {json.dumps(FILE)}}}\n'
    "</tool_call><|im_end|>"
)
UNREAD = HERMES.replace("tool_call>", "call>")


async def test_calls_of_a_model_with_a_template_of_its_own_are_run(tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": WRITE}]
    async with says(CALLED, "qwen3", tmp_path, HERMES) as model:
        answer = await model.post("chat/completions", messages=said, tools=tools)
        message = answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        (call,) = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == FILE
        said += [message, {"role": "tool", "tool_call_id": call["id"], "content": "written"}]
        await model.post("chat/completions", messages=said, tools=tools)
        first, second = await model.calls()
        findings = model.server.service.findings()
        # A busy machine stops the event loop at times.
        assert [found.code for found in findings if found.code != "loop_blocked"] == []
    assert second.prompt_ids[: first.length] == first.token_ids
    assert second.parent_call_id == first.call_id


async def test_tools_whose_calls_nobody_reads_are_a_finding(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with says(CALLED, "qwen3", tmp_path, UNREAD) as model:

        async def codes() -> list[str]:
            status = await model.server.http.get("/v1/status", headers=CLIENT)
            return [finding["code"] for finding in status.json()["findings"]]

        asked = [{"role": "user", "content": QUESTION}]
        await model.post("chat/completions", messages=asked)
        assert "tool_calls_unread" not in await codes()
        for _ in range(2):
            tools = [{"type": "function", "function": WRITE}]
            answer = await model.post("chat/completions", messages=asked, tools=tools)
        assert "tool_calls_unread" in await codes()
        # A preflight of their batch says so too, also after a restart.
        offered = ["calls_unread" in call.metadata for call in await model.calls()]
        assert offered == [False, True, True]
    # What was meant as a call stays visible.
    assert "write_file" in answer["choices"][0]["message"]["content"]
    assert caplog.text.count("no known parser can read") == 1


async def test_a_first_batch_whose_tool_calls_nobody_reads_pauses_the_run_untrained(
    tmp_path: Path,
) -> None:
    async with says(CALLED, "qwen3", tmp_path, UNREAD) as model:
        server, coordinator = model.server, model.server.service.coordinator
        tools = [{"type": "function", "function": WRITE}]
        others = [await server.claim(task) for task in "abb"]
        for number, grant in enumerate([model.grant, *others]):
            assert (await server.chat(grant, tools=tools)).status_code == 200
            assert (await server.end(grant, float(number % 2))).status_code == 200
        await until_state(server, ServerState.PAUSED)
        said = (await status(server))["paused"]
        assert "the preflight of step 1 failed before anything was trained: tools:" in said
        assert "4 of 4 calls offer tools" in said
        assert coordinator.step == 0
        # Its agent may read them by itself.
        await server.http.post("/v1/run/resume", headers=CONTROL)
        await server.service.board.wait_until(lambda: coordinator.step == 1)


async def test_a_client_whose_tool_calls_nobody_reads_does_not_pause_the_run_of_others(
    tmp_path: Path,
) -> None:
    async with says(CALLED, "qwen3", tmp_path, UNREAD) as model:
        server, coordinator = model.server, model.server.service.coordinator
        _, other = await new_token(server, "other")
        claims = [
            await claim_as(server, headers, task)
            for headers, task in ((CLIENT, "a"), (other, "b"), (other, "b"))
        ]
        grants = [model.grant, *(claim.json() for claim in claims)]
        for number, grant in enumerate(grants):
            headers = CLIENT if number < 2 else other
            tools: dict[str, Any] = {"tools": [{"type": "function", "function": WRITE}]}
            if headers is other:
                tools = {}
            assert (await server.chat(grant, **tools)).status_code == 200
            url = f"/v1/episodes/{grant['episode_id']}/end"
            end = {"reward": float(number % 2)}
            assert (await server.http.post(url, headers=headers, json=end)).status_code == 200
        await server.service.board.wait_until(
            lambda: coordinator.step == 1 or server.service.board.state is ServerState.PAUSED
        )
        assert coordinator.step == 1
        checks = (await status(server))["preflight"]["checks"]
        (check,) = [check for check in checks if check["name"] == "tools"]
        assert check["verdict"] == "warn"
        assert "only the calls of client" in check["found"]


# A template that leaves tool results out.
DROPS_RESULTS = HERMES.replace(
    "{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}"
)


async def test_a_template_that_drops_tool_results_fails_the_preflight(tmp_path: Path) -> None:
    async with says(CALLED, "qwen3", tmp_path, DROPS_RESULTS) as model:
        server = model.server
        tools = [{"type": "function", "function": WRITE}]
        others = [await server.claim(task) for task in "abb"]
        for number, grant in enumerate([model.grant, *others]):
            said: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
            answer = await server.chat(grant, messages=said, tools=tools)
            message = answer.json()["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"]}
            said += [message, {**result, "content": "The file was written to disk"}]
            assert (await server.chat(grant, messages=said, tools=tools)).status_code == 200
            assert (await server.end(grant, float(number % 2))).status_code == 200
        await server.service.board.wait_until(lambda: server.service.coordinator.step == 1)
        checks = (await status(server))["preflight"]["checks"]
        (check,) = [check for check in checks if check["name"] == "template"]
        assert check["verdict"] == "fail"
        assert "4 of role 'tool'" in check["found"]
