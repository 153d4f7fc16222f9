"""The agent of an arm that tries what code of arms must not be able to do. It prints what worked.

A test writes `FORBIDDEN` in front: paths that must not be readable, a port of the host's loopback,
a path to write to, and a name for the process that stays behind.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

FORBIDDEN = globals()["FORBIDDEN"]
asked = json.load(sys.stdin)
base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
root = base.removesuffix("/v1")
worked = []


def called(method, url, body=None):
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def attempt(name, attack):
    try:
        attack()
    except Exception:  # noqa: BLE001 - whatever stops it
        return
    worked.append(name)


def connect(host, port):
    socket.create_connection((host, port), timeout=2).close()


for path in FORBIDDEN["readable"]:
    attempt(f"read {path}", lambda path=path: Path(path).read_bytes()[0])
episode = os.environ["AJET_EPISODE_ID"]
attempt("end", lambda: called("POST", f"{root}/v1/episodes/{episode}/end", {"reward": 1.0}))
attempt("abort", lambda: called("POST", f"{root}/v1/episodes/{episode}/abort", {"reason": "no"}))
attempt("claim", lambda: called("POST", f"{root}/v1/episodes", {"task_id": "mine"}))
attempt("pause", lambda: called("POST", f"{root}/v1/run/pause", {}))
attempt("token", lambda: called("POST", f"{root}/v1/tokens", {"name": "mine", "role": "control"}))
for route in ("status", "evaluations", "episodes", "tasks", "tokens", "run"):
    attempt(route, lambda route=route: called("GET", f"{root}/v1/{route}"))
attempt("the network", lambda: connect("1.1.1.1", 53))
attempt("a port of the host", lambda: connect("127.0.0.1", FORBIDDEN["port"]))
attempt("write to Python", lambda: Path(os.__file__).with_name("planted.py").write_text("x"))
attempt("write to /etc", lambda: Path("/etc/planted").write_text("x"))
attempt("import", lambda: __import__("ajet_worlds"))
for secret in ("AJET_SERVER__CONTROL_TOKEN", "AJET_SERVER__CLIENT_TOKEN"):
    attempt(secret, lambda secret=secret: os.environ[secret])
if os.environ["AJET_TASK_ID"] != "turn":
    worked.append("the id of the task")
worked += set(asked) - {"messages", "tools", "agent", "max_tokens"}
try:
    # Its own directory vanishes, whatever name of the host it has.
    Path(FORBIDDEN["written"]).parent.mkdir(parents=True, exist_ok=True)
    Path(FORBIDDEN["written"]).write_text("x")
except OSError:
    pass
sleeper = f"import time; time.sleep(3600)  # {FORBIDDEN['daemon']}"
subprocess.Popen(
    [sys.executable, "-c", sleeper],
    start_new_session=True,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
)
called(
    "POST",
    f"{base}/chat/completions",
    {"model": os.environ["AJET_MODEL"], "messages": asked["messages"], "max_tokens": 4},
)
sys.stdout.write(json.dumps({"worked": worked}))
