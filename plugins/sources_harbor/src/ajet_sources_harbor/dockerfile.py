"""What a Dockerfile says, for boxes that have the files of the host instead of those of an image.

The base image is left aside. Files are copied, variables and the working directory are set, and
``RUN`` is run in the box.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_WITHOUT_EFFECT = frozenset(
    {
        *("FROM", "ARG", "LABEL", "MAINTAINER", "EXPOSE", "CMD", "ENTRYPOINT", "USER", "VOLUME"),
        *("STOPSIGNAL", "HEALTHCHECK", "SHELL", "ONBUILD"),
    }
)


class DockerfileError(ValueError):
    """An instruction that needs an image."""


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Files of the context that are copied.

    :param into: whether `target` is a directory into which they go.
    """

    sources: tuple[Path, ...]
    target: str
    into: bool


@dataclass(frozen=True, slots=True)
class RunStep:
    """A command and the directory in which it runs."""

    command: str
    cwd: str


@dataclass(slots=True)
class DockerfilePlan:
    """What is to be done before a task begins."""

    workdir: str
    environ: dict[str, str] = field(default_factory=dict)
    steps: list[CopyStep | RunStep] = field(default_factory=list)

    def directories(self) -> list[str]:
        """Return the directories that are written to, `workdir` first."""
        targets = [
            one.target if one.into else str(PurePosixPath(one.target).parent)
            for one in self.steps
            if isinstance(one, CopyStep)
        ]
        return [
            self.workdir,
            *(one.cwd for one in self.steps if isinstance(one, RunStep)),
            *targets,
        ]


def read_dockerfile(path: Path, workdir: str) -> DockerfilePlan:
    """Return what a Dockerfile says.

    :param workdir: the working directory, if the file names none.
    :raises DockerfileError: it cannot be followed without an image; the message says which line.
    """
    build = DockerfilePlan(workdir)
    for instruction, rest in _instructions(path):
        if instruction == "WORKDIR":
            build.workdir = str(PurePosixPath(build.workdir) / rest)
        elif instruction == "ENV":
            build.environ |= _variables(rest)
        elif instruction in {"COPY", "ADD"}:
            build.steps.append(_copied(rest, path.parent, build.workdir))
        elif instruction == "RUN":
            build.steps.append(RunStep(_command(rest), build.workdir))
        elif instruction not in _WITHOUT_EFFECT:
            raise DockerfileError(f"{path}: {instruction} is not known")
    return build


def _instructions(path: Path) -> list[tuple[str, str]]:
    lines: list[str] = []
    open_line = False
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if open_line:
            lines[-1] += " " + text
        else:
            lines.append(text)
        open_line = text.endswith("\\")
        if open_line:
            lines[-1] = lines[-1][:-1].rstrip()
    parts = [line.partition(" ") for line in lines]
    if stages := [rest for name, _, rest in parts if name.upper() == "FROM"][1:]:
        raise DockerfileError(f"{path}: a second stage (FROM {stages[0]}) needs an image")
    return [(name.upper(), rest.strip()) for name, _, rest in parts]


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    pairs = (word.partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def _command(rest: str) -> str:
    if rest.startswith("["):
        return shlex.join(json.loads(rest))
    if "<<" in rest.split(maxsplit=1)[0] or rest.startswith("--"):
        raise DockerfileError(f"RUN {rest}: needs an image")
    return rest


def _copied(rest: str, context: Path, workdir: str) -> CopyStep:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    options = [word for word in words if word.startswith("--")]
    if any(option.startswith("--from") for option in options) or "<<" in rest:
        raise DockerfileError(f"COPY {rest}: needs an image")
    *patterns, target = [word for word in words if not word.startswith("--")]
    root = context.resolve()
    sources: list[Path] = []
    for pattern in patterns:
        if "://" in pattern:
            raise DockerfileError(f"ADD {rest}: needs an image")
        relative = pattern.lstrip("/").rstrip("/")
        matches = [root] if relative in {"", "."} else sorted(root.glob(relative))
        if not matches:
            raise DockerfileError(f"COPY {rest}: there is no {pattern} in {context}")
        if any(not one.resolve().is_relative_to(root) for one in matches):
            raise DockerfileError(f"COPY {rest}: {pattern} is not in {context}")
        sources += matches
    into = target.endswith("/") or len(sources) > 1 or target == "." or sources[0].is_dir()
    return CopyStep(tuple(sources), str(PurePosixPath(workdir) / target), into)
