"""Stands for the service of W&B: the part of its HTTP API that a run uses online."""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"
ENTITY = "walkers"

_NAME = re.compile(r"\b(?:query|mutation)\s+(\w+)")
_STREAM = re.compile(r"/files/[^/]+/[^/]+/([^/]+)/file_stream")


class WandbService:
    """Keeps what runs send, by the id of the run.

    :ivar rows: rows of the history.
    :ivar config: the configuration, as W&B stores it.
    :ivar summary: the last value of each name.
    :ivar ends: exit codes.
    :ivar bodies: all that was received, as text.
    :ivar keys: API keys of requests.
    :ivar refuse: number of rows that it still refuses with 503.
    """

    def __init__(self) -> None:
        self.forget()
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                key = self.headers.get("authorization", "").removeprefix("Basic ")
                status, answer = service.answer(self.path, body.decode(), key)
                self.reply(status, answer)

            def do_GET(self) -> None:
                self.reply(404, {})

            def reply(self, status: int, answer: object) -> None:
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def forget(self) -> None:
        """Begin as an empty service."""
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.config: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, str] = {}
        self.alerts: list[dict[str, Any]] = []
        self.summary: dict[str, dict[str, Any]] = {}
        self.ends: list[tuple[str, int]] = []
        self.bodies: list[str] = []
        self.unknown: list[str] = []
        self.keys: set[str] = set()
        self.refuse = 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: str, key: str) -> tuple[int, object]:
        """Return status and answer to a request."""
        with self._lock:
            self.bodies.append(body)
            self.keys.add(base64.b64decode(key).decode().partition(":")[2])
            if (stream := _STREAM.fullmatch(path)) is not None:
                return self._streamed(stream[1], json.loads(body))
            if path == "/graphql":
                asked = json.loads(body)
                named = _NAME.search(asked["query"])
                name = named[1] if named is not None else ""
                answers: dict[str, Callable[[Any], object]] = {
                    "Viewer": self._viewer,
                    "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
                    "RunResumeStatus": self._resumed,
                    "UpsertBucket": self._begun,
                    "NotifyScriptableRunAlert": self._alerted,
                }
                if name in answers:
                    return 200, {"data": answers[name](asked["variables"])}
                self.unknown.append(name)
                return 400, {"errors": [{"message": f"{name} is not part of this service"}]}
            self.unknown.append(path)
            return 404, {}

    def _viewer(self, _: Any) -> object:
        return {
            "viewer": {
                "id": "1",
                "entity": ENTITY,
                "username": ENTITY,
                "email": "",
                "flags": "{}",
                "teams": {"edges": []},
            }
        }

    def _resumed(self, asked: Any) -> object:
        """Return what is kept of a run, which continues after its last row."""
        name, rows = asked["name"], self.rows.get(asked["name"])
        bucket = None
        if rows is not None:
            bucket = {
                "id": name,
                "name": name,
                "displayName": name,
                "summaryMetrics": json.dumps(self.summary.get(name, {})),
                "config": json.dumps(self.config[name]),
                "historyLineCount": len(rows),
                "eventsLineCount": 0,
                "logLineCount": 0,
                "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
                "eventsTail": "[]",
                "tags": [],
                "notes": None,
                "wandbConfig": "{}",
            }
        entity = {"id": "1", "name": ENTITY}
        return {"model": {"id": "1", "name": asked["project"], "entity": entity, "bucket": bucket}}

    def _begun(self, asked: Any) -> object:
        name = asked["name"]
        inserted = name not in self.rows
        self.rows.setdefault(name, [])
        if asked.get("config"):
            self.config[name] = json.loads(asked["config"])
        if asked.get("groupName"):
            self.groups[name] = asked["groupName"]
        project = {"id": "1", "name": asked.get("project"), "entity": {"id": "1", "name": ENTITY}}
        bucket = {
            "id": name,
            "name": name,
            "displayName": asked.get("displayName") or name,
            "description": None,
            "config": json.dumps(self.config.get(name, {})),
            "sweepName": None,
            "project": project,
            "historyLineCount": len(self.rows[name]),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}

    def _alerted(self, asked: Any) -> object:
        self.alerts.append(asked)
        return {"notifyScriptableRunAlert": {"success": True}}

    def _streamed(self, run: str, sent: Any) -> tuple[int, object]:
        files = sent.get("files") or {}
        if (history := files.get("wandb-history.jsonl")) is not None:
            if self.refuse:
                self.refuse -= 1
                return 503, {"error": "try again"}
            # A batch that is sent again takes its own place.
            rows = self.rows[run]
            rows[history["offset"] :] = map(json.loads, history["content"])
        for line in (files.get("wandb-summary.json") or {}).get("content", []):
            self.summary[run] = json.loads(line)
        if sent.get("complete"):
            self.ends.append((run, sent["exitcode"]))
        return 200, {}
