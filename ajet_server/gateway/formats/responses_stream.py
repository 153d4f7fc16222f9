"""The events of OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ajet_server.gateway.formats.dialect import StreamWriter, event
from ajet_server.gateway.formats.events import Choice, Delta, Event, Grown, Started
from ajet_server.gateway.formats.exchange import Exchange
from ajet_server.gateway.formats.json_text import object_text
from ajet_server.gateway.formats.responses_json import (
    call_item,
    message_item,
    reasoning_item,
    status_of,
)
from ajet_server.gateway.formats.token_spans import Spans


class ResponseForm(Protocol):
    """Makes the response that the events of a stream are about."""

    def begun(self, exchange: Exchange) -> dict[str, Any]:
        """A response without any items yet."""

    def complete(
        self, exchange: Exchange, choice: Choice, items: list[dict[str, Any]], spans: Spans
    ) -> dict[str, Any]:
        """A response with all of its items."""


@dataclass(slots=True)
class ResponseWriter(StreamWriter):
    """Writes the events of a response; of its items one is open at a time.

    :ivar done: items that are complete.
    """

    form: ResponseForm
    exchange: Exchange
    done: list[dict[str, Any]] = field(default_factory=list)
    _spans: Spans | None = None
    _kind: str = ""
    _text: str = ""
    _said: str = ""
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _item: dict[str, Any] = field(default_factory=dict)
    _number: int = 0

    def write(self, happened: Event) -> Iterator[bytes]:
        """From ``response.created`` to ``response.completed``."""
        match happened:
            case Started(_, generation):
                self._spans = Spans(generation, self.exchange.request.tools)
                yield from self._begun()
            case Grown(_, delta):
                yield from self._grown(delta)
            case Choice(_, _, answer, reason, rest):
                assert self._spans is not None, "a choice starts before it ends"
                yield from self._grown(rest)
                if not (answer.content or answer.tool_calls):
                    yield from self._in_text()
                yield from self._closed(status_of(reason))
                response = self.form.complete(self.exchange, happened, self.done, self._spans)
                yield self._event(f"response.{response['status']}", response=response)

    def heartbeat(self) -> Iterator[bytes]:
        """OpenAI's event ``keepalive``; or the first events, before which its SDK takes no other."""
        if self._number:
            yield self._event("keepalive")
        else:
            yield from self._begun()

    def _begun(self) -> Iterator[bytes]:
        if not self._number:
            begun = self.form.begun(self.exchange)
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)

    def _event(self, name: str, /, **content: Any) -> bytes:
        """The next event."""
        number, self._number = self._number, self._number + 1
        return event(object_text({"type": name, "sequence_number": number, **content}), name)

    def _grown(self, delta: Delta) -> Iterator[bytes]:
        """The events of a delta."""
        if delta.reasoning:
            if self._kind != "reasoning":
                yield from self._open("reasoning", reasoning_item(self.exchange, "", "in_progress"))
                yield self._part("response.content_part.added")
            self._text += delta.reasoning
            yield self._inside("response.reasoning_text.delta", delta=delta.reasoning)
        if delta.content:
            yield from self._in_text()
            self._text += delta.content
            logprobs = self._more_logprobs(delta.content)
            yield self._inside("response.output_text.delta", delta=delta.content, logprobs=logprobs)
        for call in delta.calls:
            if call.id is not None:
                item = call_item(
                    self.exchange, call.index, call.id, call.name or "", "", "in_progress"
                )
                yield from self._open("function_call", item)
            self._text += call.arguments
            if call.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=call.arguments)

    def _in_text(self) -> Iterator[bytes]:
        """Be in a message."""
        if self._kind != "message":
            item = message_item(self.exchange, "", "in_progress", [])
            if any(one["type"] == "message" for one in self.done):
                # What was said after a call.
                item["id"] += f"-{len(self.done)}"
            yield from self._open("message", item)
            yield self._part("response.content_part.added")

    def _closed(self, status: str = "completed") -> Iterator[bytes]:
        """The end of the item that is open."""
        text, kind = self._text, self._kind
        match kind:
            case "reasoning":
                self._item["content"][0]["text"] = text
                yield self._inside("response.reasoning_text.done", text=text)
                yield self._part("response.content_part.done")
            case "message":
                listed = self._logprobs
                self._item["content"][0] |= {"text": text, "logprobs": listed}
                yield self._inside("response.output_text.done", text=text, logprobs=listed)
                yield self._part("response.content_part.done")
            case "function_call":
                self._item["arguments"] = text
                name = self._item["name"]
                yield self._of_item(
                    "response.function_call_arguments.done", name=name, arguments=text
                )
            case _:
                return
        self._item["status"] = status
        self.done.append(self._item)
        yield self._event(
            "response.output_item.done", output_index=len(self.done) - 1, item=self._item
        )
        self._kind = ""

    def _open(self, kind: str, item: dict[str, Any]) -> Iterator[bytes]:
        yield from self._closed()
        self._kind, self._text, self._logprobs, self._item = kind, "", [], item
        # Without its parts, which are added by events of their own.
        bare = {**item, "content": []} if "content" in item else item
        yield self._event("response.output_item.added", output_index=len(self.done), item=bare)

    def _more_logprobs(self, text: str) -> list[dict[str, Any]]:
        self._said += text
        if self._spans is None or not self.exchange.request.logprobs:
            return []
        more = self._spans.more_text(self._said)
        self._logprobs += more
        return more

    def _of_item(self, name: str, /, **content: Any) -> bytes:
        return self._event(name, item_id=self._item["id"], output_index=len(self.done), **content)

    def _inside(self, name: str, /, **content: Any) -> bytes:
        return self._of_item(name, content_index=0, **content)

    def _part(self, name: str) -> bytes:
        return self._inside(name, part=self._item["content"][0])
