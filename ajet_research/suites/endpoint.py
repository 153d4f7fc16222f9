"""A scripted endpoint of the chat completions API that keeps its own count of requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

_OK = 200
_OF_A_MESSAGE = 10
PRICE = (1.0, 4.0)
"""Of a million tokens of prompts and of answers."""


@dataclass(frozen=True, slots=True)
class EndpointReply:
    """What the endpoint does with a request.

    :param text: of the answer; None is an answer without one.
    :param raw: the body, instead of a completion.
    :param charged: whether it costs something, whatever the client gets to see of it.
    :param usage: whether the answer says what it took.
    :param hangs: whether it never answers.
    :param cut: whether the connection ends within the body.
    """

    text: str | None = ""
    status: int = _OK
    raw: bytes | None = None
    charged: bool = True
    usage: bool = True
    hangs: bool = False
    cut: bool = False


Script = Callable[[dict[str, Any]], EndpointReply]
"""Takes the request of a researcher, with its number as ``number``."""


class RecordingEndpoint:
    """Serves on a port of this machine for the length of a ``with`` block.

    Each byte of a prompt counts as a token, and answers take all tokens that they may: this is the
    most that an honest endpoint can charge.

    :ivar requests: all of them so far, decoded.
    :ivar tokens: that were charged; `money` likewise, at `PRICE`.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.tokens = 0
        self.money = 0.0
        self._closing = threading.Event()
        endpoint = self

        class RecordingHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                endpoint.headers.append(dict(self.headers))
                asked = json.loads(body["messages"][-1]["content"])
                endpoint.requests.append(asked)
                reply = script({**asked, "number": len(endpoint.requests)})
                counts = endpoint.charge(body) if reply.charged else (0, 0)
                if reply.hangs:
                    endpoint.wait_for_end()
                    self.close_connection = True
                    return
                content = reply.raw
                if content is None:
                    content = json.dumps(_completion(reply, counts)).encode()
                self.send_response(reply.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content) + reply.cut))
                self.end_headers()
                self.close_connection = reply.cut
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class RecordingServer(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Say nothing of clients that have gone."""

        self._server = RecordingServer(("127.0.0.1", 0), RecordingHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def base_url(self) -> str:
        """The URL for clients, with ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def charge(self, body: dict[str, Any]) -> tuple[int, int]:
        """Charge a request; return the tokens of its prompt and of its answer."""
        prompt = sum(len(one["content"].encode()) + _OF_A_MESSAGE for one in body["messages"])
        written = int(body.get("max_tokens") or body["max_completion_tokens"])
        self.tokens += prompt + written
        self.money += (prompt * PRICE[0] + written * PRICE[1]) / 1e6
        return prompt, written

    def wait_for_end(self) -> None:
        """Wait until the endpoint is closed."""
        self._closing.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _completion(reply: EndpointReply, counts: tuple[int, int]) -> dict[str, Any]:
    if reply.status != _OK:
        return {"error": {"message": "this endpoint is scripted", "type": "server_error"}}
    completion: dict[str, Any] = {
        "id": "call",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": reply.text},
                "finish_reason": "stop",
            }
        ],
    }
    if reply.usage:
        prompt, written = counts
        completion["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }
    return completion
