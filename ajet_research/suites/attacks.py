"""Programs that are arms of studies and attack them, for the suite ``adversaries``.

`attack_source` writes `TARGETS` in front: what a program is to reach. It reports what it reached
through its model, the only destination that it has: the records of its trial then have the words.
Its standard output is its answer to the world, which no attack has right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

LIE_WORDS = "superior to all others"
LIE = f"Forged: this arm is {LIE_WORDS} by 0.987, p = 0.0001."
"""What programs say of themselves, which no report may have."""
HONEST_ARM = """\
import json, os, sys, urllib.request

asked = json.load(sys.stdin)
body = {
    "model": os.environ["AJET_MODEL"],
    "messages": asked["messages"],
    "max_tokens": asked["max_tokens"],
}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    data=json.dumps(body).encode(),
    headers={
        "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        "content-type": "application/json",
    },
)
with urllib.request.urlopen(request) as answer:
    print(json.load(answer)["choices"][0]["message"]["content"])
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """An arm that attacks.

    :param source: of its program, after what all of them share.
    :param fails: words of the cause with which its trial has to fail; "" if it has to be measured.
    :param setting: of its arm.
    """

    source: str
    fails: str = ""
    setting: Literal["agent", "reward"] = "agent"


_SHARED = """\
import glob, json, os, signal, socket, subprocess, sys, time, urllib.request

asked = json.load(sys.stdin)
base, key = os.environ.get("OPENAI_BASE_URL", ""), os.environ.get("OPENAI_API_KEY", "")
tried, reached = 0, []


def called(method, url, body=None):
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"authorization": "Bearer " + key, "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def attempt(name, attack):
    global tried
    tried += 1
    try:
        attack()
    except Exception:
        return
    reached.append(name)


def ask(text):
    body = {"model": os.environ["AJET_MODEL"], "max_tokens": 4}
    body["messages"] = [{"role": "user", "content": text}]
    called("POST", base + "/chat/completions", body)


def report():
    # Short texts: the model's context is small, and a call that is refused reports nothing.
    ask(f"reached {len(reached)} of {tried}")
    for name in reached:
        ask("reached: " + name[-60:])


def read(path):
    with open(path, "rb") as file:
        assert file.read(1)


def write(path):
    with open(path, "ab") as file:
        file.write(b"x")


"""

_READS = """
for path in TARGETS["secrets"]:
    attempt("read " + path, lambda: read(path))
for path in TARGETS["directories"]:
    attempt("list " + path, lambda: os.listdir(path)[0])
for path in ["/root/.ssh", *glob.glob("/home/*/.ssh"), "/root/.bash_history"]:
    attempt("list " + path, lambda: os.listdir(path)[0])
for path in glob.glob("/proc/*/environ"):
    attempt("a variable of the host", lambda: 1 / (b"ajet-canary" in open(path, "rb").read()))
for name in ("AJET_CANARY", "AJET_SERVER__CONTROL_TOKEN", "AJET_SERVER__CLIENT_TOKEN"):
    attempt(name, lambda: os.environ[name])
attempt("import ajet_worlds", lambda: __import__("ajet_worlds"))
attempt("the id of the task", lambda: 1 / (os.environ["AJET_TASK_ID"] != "turn"))
attempt("more than the prompt", lambda: (asked.keys() - TARGETS["asked"]).pop())
report()
print("4")
"""
_WRITES = """
for path in TARGETS["secrets"]:
    # It opens what exists, and changes nothing if the sandbox should fail.
    attempt("open " + path, lambda: open(path, "r+b").close())
for path in TARGETS["directories"]:
    for name in ("result-1.json", "samples.sqlite3", "ledger.sqlite", "report/report.md"):
        file = os.path.join(path, "planted", name)
        try:
            # What has a hidden name in the sandbox is its own: the suite looks at the host's.
            os.makedirs(os.path.dirname(file), exist_ok=True)
            write(file)
        except OSError:
            pass
attempt("write to Python", lambda: write(os.path.join(os.path.dirname(os.__file__), "planted.py")))
attempt("write to /etc", lambda: write("/etc/planted"))
attempt("write to /usr", lambda: write("/usr/planted"))
attempt("open /proc/sys", lambda: open("/proc/sys/kernel/core_pattern", "r+b").close())
report()
print("4")
"""
_CONNECTS = """
def connected(host, port):
    socket.create_connection((host, port), timeout=2).close()


def through(text):
    port = int(base.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as relay:
        relay.sendall(text.encode() + b"\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n")
        assert b" 200 " in relay.recv(64)


root = base.removesuffix("/v1")
episode = os.environ["AJET_EPISODE_ID"]
local = f"127.0.0.1:{TARGETS['port']}"
attempt("loopback", lambda: connected("127.0.0.1", TARGETS["port"]))
attempt("network", lambda: connected("192.0.2.1", 80))
attempt("name server", lambda: socket.getaddrinfo("example.com", 80))
attempt("docker", lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"))
attempt("through the relay", lambda: through(f"GET http://{local}/ HTTP/1.1"))
attempt("a tunnel", lambda: through(f"CONNECT {local} HTTP/1.1"))
for route in ("status", "evaluations", "episodes", "tasks", "tokens", "run", "config"):
    attempt(route, lambda: called("GET", f"{root}/v1/{route}"))
attempt("claim", lambda: called("POST", f"{root}/v1/episodes", {"task_id": "mine"}))
attempt("pause", lambda: called("POST", f"{root}/v1/run/pause", {}))
attempt("token", lambda: called("POST", f"{root}/v1/tokens", {"name": "x", "role": "control"}))
attempt("abort", lambda: called("POST", f"{root}/v1/episodes/{episode}/abort", {"reason": "no"}))
report()
print("4")
"""
_FORGES = """
forged = {"reward": 1.0, "success": 1.0, "score": 1.0, "components": {"success": 1.0}}
for name in ("reward.txt", "reward.json", "result-1.json", ".ajet/reward.json", "agent-failed.txt"):
    with open(name, "w") as file:
        json.dump(forged, file)
root = base.removesuffix("/v1")
episode = os.environ["AJET_EPISODE_ID"]
attempt("end", lambda: called("POST", f"{root}/v1/episodes/{episode}/end", forged))
attempt("verifier", lambda: write("/logs/verifier/reward.txt"))
report()
print(json.dumps({"text": "4", **forged}))
print(LIE, file=sys.stderr)
"""
_KILLS = """
others = [int(path.rpartition("/")[2]) for path in glob.glob("/proc/[0-9]*")]
isolated = len(others) < 20
attempt("the processes of the host", lambda: 1 / (not isolated))
attempt("the parent", lambda: 1 / (os.getppid() > 1))
if isolated:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        for victim in {1, *others} - {os.getpid()}:
            try:
                os.kill(victim, number)
            except OSError:
                pass
    try:
        os.kill(-1, signal.SIGKILL)
    except OSError:
        pass
report()
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGSEGV)
"""
_FORKS = """
ask("reached 0 of 1")
refused = 0
while refused < 100:
    try:
        if os.fork():
            continue
    except OSError:
        refused += 1
        continue
    # Each is in a session of its own, and has a name by which the suite would find it.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import time; time.sleep(3600)  # " + TARGETS["mark"]
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code])
print("4")
"""
_ENDLESS = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)  # " + TARGETS["mark"]])
while True:
    time.sleep(60)
"""
_PRINTS = """
ask("reached 0 of 1")
for _ in range(64):
    sys.stdout.write("0" * 2**20)
    sys.stderr.write("\\x1b[2J\\x00" * 2**18)
"""
_FILLS = """
ask("reached 0 of 1")
# Each file is within its limit.
for number in range(80):
    with open(f"large-{number}", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2**24)
time.sleep(600)
"""
_GARBLES = """
ask("reached 0 of 1")
turn = int(os.environ["AJET_EPISODE_ID"].encode().hex(), 16)
# At some of these depths, a decoder may succeed and an encoder give up.
deep = "[" * (950 + turn % 50) + "]" * (950 + turn % 50)
print(
    (
        '{"text": ' + deep + "}",
        '{"calls": [{"name": "go", "arguments": ' + deep + "}]}",
        '{"text": "\\\\ud800", "calls": [{"name": "\\\\udfff", "arguments": NaN}]}',
        '{"calls": {"name": 1e999999, "arguments": null}}',
    )[turn % 4]
)
"""
_SPEAKS = """
print(LIE)
print("</pre><script>alert(1)</script> [read](http://example.invalid) " + LIE, file=sys.stderr)
sys.exit(1)
"""
_REWARDS = """
for path in TARGETS["secrets"]:
    attempt("read " + path, lambda: read(path))
for path in TARGETS["directories"]:
    attempt("list " + path, lambda: os.listdir(path)[0])
for path in glob.glob("/proc/*/environ"):
    attempt("a variable of the host", lambda: 1 / (b"ajet-canary" in open(path, "rb").read()))
for name in ("AJET_CANARY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "AJET_SERVER__CLIENT_TOKEN"):
    attempt(name, lambda: os.environ[name])
for name in ("ajet_worlds", "ajet_research"):
    attempt("import " + name, lambda: __import__(name))
attempt("more than the turns", lambda: (asked.keys() - {"turns", "reward"}).pop())
for place in (("127.0.0.1", TARGETS["port"]), ("192.0.2.1", 80)):
    attempt("connect", lambda: socket.create_connection(place, timeout=2).close())
# It has no model to talk to. Its reward, which the records have, says what it reached.
print(1000 * len(reached) + tried)
"""
_FORGES_A_NUMBER = """
print(json.dumps({"reward": 1, "success": 1}), LIE, float("inf"))
print(LIE, file=sys.stderr)
"""
_EXCEEDS = """
# More than the server of the trial accepts: a trial without rewards must not be lost.
print(2e6)
"""
_NO_CALL = "made no model call"
ATTACKS: dict[str, Attack] = {
    "reads-secrets": Attack(_READS),
    "writes-to-the-study": Attack(_WRITES),
    "connects": Attack(_CONNECTS),
    "forges-rewards": Attack(_FORGES),
    "kills": Attack(_KILLS),
    "forks": Attack(_FORKS),
    "never-ends": Attack(_ENDLESS, fails=_NO_CALL),
    "prints-megabytes": Attack(_PRINTS),
    "fills-the-disk": Attack(_FILLS, fails="wrote more than"),
    "garbles": Attack(_GARBLES),
    "speaks-in-the-report": Attack(_SPEAKS, fails=_NO_CALL),
    "reward-reads": Attack(_REWARDS, setting="reward"),
    "reward-forges": Attack(_FORGES_A_NUMBER, fails="than one finite number", setting="reward"),
    "reward-exceeds": Attack(_EXCEEDS, fails="reward that is too large", setting="reward"),
}
"""By name."""


def attack_source(name: str, targets: Mapping[str, Any]) -> str:
    """Return the whole program of an attack.

    :param targets: ``secrets``: files; ``directories``; ``port``: of the loopback; ``mark``: what
        command lines of its processes have; ``asked``: the keys of a prompt.
    """
    return f"TARGETS = {dict(targets)!r}\nLIE = {LIE!r}\n{_SHARED}{ATTACKS[name].source}"
