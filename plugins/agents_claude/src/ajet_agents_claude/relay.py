"""A server on this machine that takes model calls of processes and sends them in their episode.

A process cannot be instrumented. Its calls come here, and are sent again with httpx2: what holds
for other calls of an episode, from sampling to several models, then holds for them. The key of the
episode stays in this process, away from the commands that a model makes up.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2

from agentjet.agents import Route, agent_name, routed

_HOST = "127.0.0.1"
_NOWHERE = "http://per.episode"
_NO_CALL = {"type": "error", "error": {"type": "not_found_error", "message": "not a model call"}}
_DROPPED = frozenset({"connection", "content-encoding", "content-length", "transfer-encoding"})


@dataclass(frozen=True)
class Caller:
    """A process whose calls belong to an episode.

    :param agent: the name of its main agent, None if it has none.
    :param others: the system prompts of its sub-agents, by name.
    """

    route: Route = field(repr=False)
    agent: str | None
    others: Mapping[str, str]

    def speaker(self, body: bytes) -> str | None:
        """Return the name of the agent that sends a request, None if it has none."""
        if self.others:
            system = _system(body)
            for name, prompt in self.others.items():
                if prompt.strip() and prompt.strip() in system:
                    return name
        return self.agent


class CallRelay:
    """The server, with a URL for each process."""

    def __init__(self) -> None:
        self._server = _RelayServer((_HOST, 0), _Handler)
        thread = threading.Thread(
            target=self._server.serve_forever, name="ajet-claude-relay", daemon=True
        )
        thread.start()

    def url_for(self, caller: Caller) -> str:
        """Return a URL for a process, without ``/v1``; it works until the episode ends."""
        key = secrets.token_urlsafe(16)
        callers = self._server.callers
        callers[key] = caller
        caller.route.at_end(lambda: callers.pop(key, None))
        return f"http://{_HOST}:{self._server.server_address[1]}/{key}"


class _RelayServer(ThreadingHTTPServer):
    """Has a thread for each connection.

    :ivar callers: the processes of open episodes, by the first part of their path.
    :ivar client: sends their calls; refuses requests other than model calls.
    """

    daemon_threads = True
    # As many processes as there are episodes may connect at once.
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        self.callers: dict[str, Caller] = {}
        refusing = httpx2.MockTransport(lambda _request: httpx2.Response(404, json=_NO_CALL))
        self.client = httpx2.Client(transport=refusing, timeout=None, trust_env=False)
        super().__init__(*args)

    def handle_error(self, *_args: Any) -> None:
        """Log nothing if a process ends in the middle of its call."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*_args)


_relays: dict[int, CallRelay] = {}
_lock = threading.Lock()


def relay() -> CallRelay:
    """Return the server of this process, which is started on first use."""
    # A forked process has no threads of its parent.
    pid = os.getpid()
    with _lock:
        if pid not in _relays:
            _relays[pid] = CallRelay()
        return _relays[pid]


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    server: _RelayServer
    _begun = False

    def do_POST(self) -> None:
        """Send a call in its episode, and pass its answer on as it comes."""
        self._begun = False
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        _, key, rest = f"{self.path}//".split("/", 2)
        caller = self.server.callers.get(key)
        if caller is None:
            self._refuse(404, "not_found_error", "the episode is over")
            return
        request = httpx2.Request(
            "POST", f"{_NOWHERE}/{rest[:-2]}", headers=self.headers.items(), content=body
        )
        name = caller.speaker(body)
        try:
            with routed(caller.route), agent_name(name) if name else nullcontext():
                response = self.server.client.send(request, stream=True)
            with closing(response):
                self._pass_on(response)
        except httpx2.HTTPError as error:
            if self._begun:
                # The process sees that the answer is not complete.
                self.close_connection = True
            else:
                self._refuse(502, "api_error", f"the server did not answer: {error}")

    def do_GET(self) -> None:
        """Refuse what is not a model call."""
        self._refuse(404, "not_found_error", "not a model call")

    def log_message(self, *_args: Any) -> None:
        """Log nothing: the server records all calls."""

    def _pass_on(self, response: httpx2.Response) -> None:
        self.send_response(response.status_code)
        for name, value in response.headers.multi_items():
            if name not in _DROPPED:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._begun = True
        for part in response.iter_bytes():
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, status: int, kind: str, message: str) -> None:
        content = json.dumps({"type": "error", "error": {"type": kind, "message": message}})
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())


def _system(body: bytes) -> str:
    """Return the system prompt of a request."""
    try:
        system = json.loads(body).get("system")
    except (ValueError, AttributeError):
        return ""
    if isinstance(system, list):
        return "\n".join(str(part.get("text", "")) for part in system if isinstance(part, dict))
    return str(system or "")
