"""GridWalk as a program for rows: `rows.jsonl?program=grid_program:walk&judge=...`."""

from __future__ import annotations

from typing import Any

import httpx2

from ajet_core.interfaces import EpisodeOutcome
from ajet_worlds.gridwalk import TOOLS, GridWalk

URL = "https://api.openai.com/v1/chat/completions"


async def walk(row: dict[str, Any]) -> EpisodeOutcome:
    """Walk with a tool, by calls of a client that is not agentjet's."""
    its = GridWalk(row["id"])
    messages = its.messages()
    async with httpx2.AsyncClient(timeout=None) as client:
        while not its.done:
            body = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 32}
            answer = await client.post(URL, json=body)
            message = answer.raise_for_status().json()["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls") or []
            if not calls:
                its.reject()
            for call in calls:
                said = its.call(call["function"]["name"], call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
    outcome = its.outcome()
    return EpisodeOutcome(reward=outcome.reward, components={"success": float(outcome.success)})


def judge(_: dict[str, Any], outcome: EpisodeOutcome) -> EpisodeOutcome:
    """Take the program's own outcome."""
    return outcome
