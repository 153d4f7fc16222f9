"""A stand-in for ``podman`` and ``docker``: it runs programs of containers on the host."""

from __future__ import annotations

import sys
from pathlib import Path

_SOURCE = """#!@PYTHON@ -IS
import json, os, subprocess, sys, uuid

HERE = "@HERE@"
verb, arguments = sys.argv[1], sys.argv[2:]


def place(container):
    return os.path.join(HERE, container)


def write(container, state):
    with open(place(container) + ".new", "w") as file:
        json.dump(state, file)
    os.replace(place(container) + ".new", place(container))


def read(container):
    try:
        with open(place(container)) as file:
            return json.load(file)
    except OSError:
        sys.exit("Error: no such container")


def mounted(created, inside):
    (found,) = (text for text in created if text.split(":")[1:2] == [inside])
    return found.split(":")[0]


if verb == "create":
    container = uuid.uuid4().hex
    write(container, {"Pid": 0, "Running": False, "ExitCode": 0, "Created": arguments})
    print(container)
elif verb == "inspect":
    state = read(arguments[-1])
    print(json.dumps([{"State": state}]))
elif verb == "rm":
    os.path.exists(place(arguments[-1])) and os.unlink(place(arguments[-1]))
elif verb == "start":
    container = arguments[-1]
    state = read(container)
    created = state["Created"]
    state |= {"Pid": os.getpid(), "Running": True}
    write(container, state)
    work = mounted(created, "/work")
    open(os.path.join(work, ".ajet-probe"), "w").close()
    with open(os.path.join(mounted(created, "/ajet-gate"), "gate")) as gate:
        gate.readline()
    program = created[created.index("/bin/sh") + 4 :]
    status = subprocess.run(program, cwd=work).returncode
    fault = os.path.join(work, "fault")
    fault = open(fault).read().strip() if os.path.exists(fault) else ""
    if fault == "removed":
        os.unlink(place(container))
        sys.exit(125)
    if fault == "running":
        sys.exit(125)
    write(container, state | {"Running": False, "ExitCode": status})
    sys.exit(1 if fault == "lost" else status)
"""


def write_container_program(directory: Path, name: str = "podman") -> None:
    """Write the program, which knows one image.

    A container is faulty if its program leaves a file ``fault`` in its working copy: it is then
    "removed" or still "running" when its client ends, or the client ends as if it had "lost" the
    container.
    """
    state = directory / "containers"
    state.mkdir(parents=True)
    program = directory / name
    program.write_text(_SOURCE.replace("@PYTHON@", sys.executable).replace("@HERE@", str(state)))
    program.chmod(0o755)
