"""An OpenAI-compatible endpoint other than a swarm server; it answers chat completions only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["EndpointCall", "PlainEndpoint"]


@dataclass(frozen=True, slots=True)
class EndpointCall:
    """A request that the endpoint got.

    :param key: of the authorization, or of the path ``/e/KEY/v1``.
    :param text: the contents of its messages.
    """

    key: str
    model: str
    text: str
    body: dict[str, Any] = field(repr=False)


class PlainEndpoint:
    """Serves on a port of this machine for the length of a ``with`` block, each call in a thread.

    :param answer: returns the text of an answer, its whole message, or the status of an error.
    :ivar calls: all calls so far.
    """

    def __init__(self, answer: Callable[[EndpointCall], str | int | Mapping[str, Any]]) -> None:
        self.calls: list[EndpointCall] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                key = self.headers.get("authorization", "").removeprefix("Bearer ")
                if self.path.startswith("/e/"):
                    key = self.path.split("/")[2]
                text = "\n".join(str(one.get("content")) for one in body["messages"])
                call = EndpointCall(key, body.get("model", ""), text, body)
                endpoint.calls.append(call)
                said = answer(call)
                status = said if isinstance(said, int) else 200
                number = len(endpoint.calls)
                self._send(status, _content(said, body, number), stream=bool(body.get("stream")))

            def _send(self, status: int, content: dict[str, Any], *, stream: bool) -> None:
                kind, data = "application/json", json.dumps(content).encode()
                if stream and "choices" in content:
                    kind = "text/event-stream"
                    (choice,) = content["choices"]
                    part = {**content, "object": "chat.completion.chunk"}
                    part["choices"] = [
                        {"index": 0, "delta": choice["message"], "finish_reason": "stop"}
                    ]
                    data = f"data: {json.dumps(part)}\n\ndata: [DONE]\n\n".encode()
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 512
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def base_url(self) -> str:
        """The URL for clients, with ``/v1``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _content(
    said: str | int | Mapping[str, Any], body: dict[str, Any], number: int
) -> dict[str, Any]:
    if isinstance(said, int):
        return {"error": {"message": f"the test wants {said}", "type": "server_error"}}
    message = said if isinstance(said, Mapping) else {"content": said}
    return {
        "id": f"call-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", ""),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", **message},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
