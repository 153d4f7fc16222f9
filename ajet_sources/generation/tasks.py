"""What a model that writes tasks is asked, and what it answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentjet.judges.endpoint import json_objects

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "tasks": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
                "required": ["question", "answer"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["tasks"],
    "additionalProperties": False,
}
"""JSON schema of an answer."""

# Some models think before they answer, where the endpoint does not take it out.
_THOUGHTS = re.compile(r"\A.*</think>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTask:
    """A task in an answer."""

    question: str
    answer: str

    @property
    def task_id(self) -> str:
        """[16] hex digits of a digest of question and answer."""
        text = json.dumps([self.question, self.answer])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_tasks_of(text: str) -> tuple[list[WrittenTask], int]:
    """Return the tasks in an answer, and how many things in it are malformed.

    The answer may have other text around the JSON, be cut off, or have the tasks without the list.
    If there is neither a task nor an empty list, the answer is one malformed thing.
    """
    items: list[Any] = []
    empty = False
    for value in json_objects(_THOUGHTS.sub("", text)):
        listed = value.get("tasks")
        if isinstance(listed, list):
            items += listed
            empty = empty or not listed
        elif "question" in value or "answer" in value:
            items.append(value)
    tasks = [task for item in items if (task := _task(item)) is not None]
    malformed = len(items) - len(tasks)
    return tasks, malformed if items or empty else 1


def request_body(
    *,
    model: str,
    instructions: str,
    material: str,
    seed: int,
    temperature: float | None,
    max_tokens: int,
) -> dict[str, Any]:
    """Return the request for tasks from some material."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            {
                "role": "system",
                "content": f"{instructions}\n\nAnswer with one JSON object of this schema: "
                f"{json.dumps(SCHEMA)}",
            },
            {"role": "user", "content": material},
        ],
        "max_tokens": max_tokens,
        "seed": seed,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "tasks", "schema": SCHEMA, "strict": True},
        },
    }
    return body if temperature is None else {**body, "temperature": temperature}


def example_lines(examples: Sequence[WrittenTask]) -> str:
    """Return examples as a user's message."""
    return "\n".join(
        json.dumps({"question": example.question, "answer": example.answer}, ensure_ascii=False)
        for example in examples
    )


def _task(item: Any) -> WrittenTask | None:
    if not isinstance(item, Mapping):
        return None
    question, answer = item.get("question"), item.get("answer")
    # Without structured output, many models write numbers as such.
    if isinstance(answer, int | float) and not isinstance(answer, bool):
        answer = json.dumps(answer)
    if not isinstance(question, str) or not isinstance(answer, str):
        return None
    question, answer = question.strip(), answer.strip()
    try:
        (question + answer).encode()
    except UnicodeEncodeError:
        return None
    return WrittenTask(question=question, answer=answer) if question and answer else None
