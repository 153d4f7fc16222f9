"""An endpoint whose model is a function of the material that it judges."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Verdict = Callable[[dict[str, Any], dict[str, Any]], Any]
"""Maps the material and the request to a verdict, an answer's text, or a status of an error."""


class JudgingEndpoint:
    """:ivar requests: bodies of all requests.

    :ivar most: the largest number of requests at a time.
    :ivar tokens: that each answer says it has used.
    """

    def __init__(self, verdict: Verdict, *, structured: bool = True, tokens: float = 10) -> None:
        self.verdict = verdict
        self.structured = structured
        self.tokens = tokens
        self.requests: list[dict[str, Any]] = []
        self.keys: Counter[str | None] = Counter()
        self.most = 0
        self._open = 0
        self._lock = threading.Lock()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[JudgingEndpoint]:
        """Serve on loopback."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                body = json.loads(self.rfile.read(length))
                status, answer = endpoint.answer(body, self.headers["authorization"])
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, body: dict[str, Any], key: str | None) -> tuple[int, Any]:
        """Answer one request."""
        with self._lock:
            self.requests.append(body)
            self.keys[key] += 1
            self._open += 1
            self.most = max(self.most, self._open)
        try:
            if "input" in body:
                # A text has a direction for each of its letters.
                vector = [float(body["input"].count(letter)) for letter in "abcdefgh"]
                return 200, {"data": [{"embedding": vector}], "usage": {"total_tokens": 10}}
            if not self.structured and "response_format" in body:
                return 400, {"error": {"message": "response_format is not supported"}}
            lines = body["messages"][1]["content"].splitlines()
            material = dict(line.split(": ", 1) for line in lines)
            verdict = self.verdict({k: json.loads(v) for k, v in material.items()}, body)
        finally:
            with self._lock:
                self._open -= 1
        if isinstance(verdict, int):
            return verdict, {"error": {"message": "no"}}
        text = verdict if isinstance(verdict, str) else json.dumps(verdict)
        message = {"role": "assistant", "content": text}
        return 200, {"choices": [{"message": message}], "usage": {"total_tokens": self.tokens}}
