"""What is the same for all episodes of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet_core.interfaces import BoxLimits
from ajet_core.protocol import CallRules
from ajet_exec.grading import ProgramResult
from ajet_exec.profiles import EndpointProfile, load_profiles

HIDDEN_FIELDS = frozenset({"answer", "solution"})


def _openai() -> EndpointProfile:
    return load_profiles()["openai"]


@dataclass(frozen=True, kw_only=True)
class ProgramTerms:
    """How a program becomes an episode.

    :param argv: the command, with placeholders ``{prompt}``, ``{prompt_file}``, ``{task_file}``,
        ``{model}``, ``{base_url}``, ``{work}``.
    :param reward: the command that rewards an episode, or a function of its result, which returns
        a number or an `EpisodeOutcome`, or an awaitable of it.
    :param profile: how the program learns where its model is.
    :param environ: more variables of the program. Of the host's it gets PATH, LANG and TERM.
    :param files: a directory that is copied for each episode.
    :param git: a repository and a commit whose files each episode gets, as a repository with this
        commit alone.
    :param tests: a directory that only the reward sees, at ``/tests``.
    :param read_only: files and directories of the host that both see, by path in the box.
    :param ends_calls: whether the server refuses calls of the episode once the program has ended,
        so that the reward makes none; False if an episode is several runs of the program.
    :param rules: limits of the program's model calls, and sampling parameters that replace its own.
    :param timeout: seconds for the program; `reward_timeout` for the reward.
    :param stdin: what the program reads from its stdin.
    :param hidden: more files and directories that the program must not see, such as its tasks.
    :param prompt_field: the field of a task with its prompt.
    :param hidden_fields: fields of a task that only the reward sees.
    :param host_network: the program reaches what the host does; `reward_network`: the reward does.
    :param allow_hosts: hosts that the program reaches by a proxy: ``HOST`` or ``HOST:PORT``.
    :param artifacts: patterns of files in the working copy that are kept for each episode.
    :param out: directory of what is kept, by episode.
    :param keep: keep everything of each episode; `keep_failed`: of so many that were aborted.
    :param disk_bytes: of disk that the files of all episodes may use together.
    """

    argv: tuple[str, ...]
    reward: tuple[str, ...] | Callable[[ProgramResult], Any]
    profile: EndpointProfile = field(default_factory=_openai)
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Path | None = None
    git: tuple[Path, str] | None = None
    tests: Path | None = None
    read_only: Mapping[str, Path] = field(default_factory=dict)
    ends_calls: bool = True
    rules: CallRules = field(default_factory=CallRules)
    timeout: float = 600.0
    reward_timeout: float = 60.0
    grace: float = 5.0
    stdin: Literal["nothing", "prompt"] = "nothing"
    hidden: tuple[Path, ...] = ()
    prompt_field: str = "prompt"
    hidden_fields: frozenset[str] = HIDDEN_FIELDS
    limits: BoxLimits = field(default_factory=BoxLimits)
    host_network: bool = False
    reward_network: bool = False
    allow_hosts: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    out: Path = Path("runs/exec")
    keep: bool = False
    keep_failed: int = 0
    disk_bytes: int | None = None

    @property
    def call_rules(self) -> CallRules:
        """The rules with the side calls of the profile, which are not trained."""
        side_calls = self.profile.agents
        changes = {
            "agents": {**self.rules.agents, **side_calls},
            "untrained_agents": (*self.rules.untrained_agents, *side_calls),
        }
        return self.rules.model_copy(update=changes)
