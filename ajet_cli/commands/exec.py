"""``ajet exec``."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agentjet import AsyncSwarmClient, Task
from agentjet.agents import read_tasks, task_of, train_async
from agentjet.agents.tasks import item_of
from agentjet.client import EpisodeFailure
from ajet_cli.output import echo_plain
from ajet_cli.run_files import read_run
from ajet_cli.state import CliState, config_option, pass_state, set_flags
from ajet_core.errors import ConfigError, SandboxError, UnreadableFileError
from ajet_core.interfaces import BoxLimits, Sandbox
from ajet_core.plugin import PluginManager
from ajet_core.protocol import CallRules, CallSampling
from ajet_exec import BoxedProgram, ProgramTerms, load_profiles, load_sandbox
from ajet_exec.endpoint import target_of
from ajet_exec.limits import limits_in_force
from ajet_exec.terms import HIDDEN_FIELDS

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LIMITS = {
    "memory": "memory_bytes",
    "processes": "processes",
    "file": "file_bytes",
    "cpu": "cpu_seconds",
    "output": "output_bytes",
}
_CONTAINERS = ("podman", "docker")
_FAILED = 1


@click.command("exec")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGUMENT]...")
@click.option("--tasks", metavar="FILE", help="Tasks, one JSON object on each line.")
@click.option("--reader", default="jsonl", show_default=True, help="Reader of the tasks.")
@click.option("--reward", metavar="COMMAND", help="Command, or MODULE:FUNCTION, for rewards.")
@click.option("--once", is_flag=True, help="Run one episode, show everything, train nothing.")
@click.option("--task", metavar="FILE", help="With --once: a JSON object; else the first task.")
@click.option("--profile", default="openai", show_default=True, help="How PROGRAM finds its model.")
@click.option("--profiles", metavar="FILE", help="TOML file with profiles of your own.")
@click.option("--list-profiles", is_flag=True, help="List the profiles and end.")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="Pass a variable.")
@click.option("--files", metavar="DIR", help="Directory to copy for each episode.")
@click.option("--git", metavar="REPO@COMMIT", help="Commit to check out for each episode.")
@click.option("--tests", metavar="DIR", help="Directory that only the reward sees, at /tests.")
@click.option("--read-only", multiple=True, metavar="PATH", help="Show a path of the host.")
@click.option(
    "--stdin",
    type=click.Choice(["nothing", "prompt"]),
    default="nothing",
    show_default=True,
    help="What PROGRAM reads from its standard input.",
)
@click.option("--prompt-field", default="prompt", show_default=True, help="Field of the prompt.")
@click.option("--hide", multiple=True, metavar="FIELD", help="Fields that only the reward sees.")
@click.option("--box", default="bubblewrap", show_default=True, help="Name of the sandbox.")
@click.option("--image", metavar="IMAGE", help="Run in a container of an image instead.")
@click.option("--network", is_flag=True, help="Give PROGRAM the network of the host.")
@click.option("--reward-network", is_flag=True, help="Give the reward the network of the host.")
@click.option("--allow-host", multiple=True, metavar="HOST", help="Let PROGRAM reach a host.")
@click.option("--limit", "limits", multiple=True, metavar="NAME=VALUE", help="Such as memory=4G.")
@click.option("--disk", metavar="SIZE", help="Disk for all working copies, such as 20G.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for PROGRAM.")
@click.option("--reward-timeout", default=60.0, show_default=True, help="Seconds for the reward.")
@click.option("--max-calls", type=click.IntRange(1), help="Model calls of an episode.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens sampled for an episode.")
@click.option("--temperature", type=float, help="Replaces what PROGRAM requests.")
@click.option("--group", type=click.IntRange(1), help="Episodes per task.  [default: the run's]")
@click.option("--concurrency", type=click.IntRange(1), help="Episodes at once.")
@click.option(
    "--epochs", type=click.IntRange(1), default=1, show_default=True, help="Passes over the tasks."
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Further attempts at an episode that was aborted.",
)
@click.option("--resume", is_flag=True, help="Skip episodes that have already ended.")
@click.option(
    "--run",
    "run_file",
    metavar="FILE",
    help="TOML or JSON file of the run to start if none is active.",
)
@click.option("--artifact", "artifacts", multiple=True, metavar="GLOB", help="Files to keep.")
@click.option("--out", default="runs/exec", show_default=True, help="Directory of kept files.")
@click.option("--keep", is_flag=True, help="Keep all files of all episodes.")
@click.option("--keep-failed", type=int, default=5, show_default=True, help="Of so many aborted.")
@click.option("--url", help="URL of the server.  [default: AJET_URL, or http://127.0.0.1:8642]")
@config_option
@pass_state
def exec_(
    state: CliState,
    /,
    program: tuple[str, ...],
    *,
    list_profiles: bool,
    url: str | None,
    **options: Any,
) -> None:
    """Roll out episodes of PROGRAM, each in a sandbox, and reward them.

    In the arguments of PROGRAM, {prompt}, {prompt_file}, {task_file}, {model}, {base_url} and
    {work} are replaced. An episode is aborted if PROGRAM makes no model call, or if the reward
    cannot be determined. docs/exec.md has an example.
    """
    profiles = load_profiles(_path(options["profiles"]))
    if list_profiles:
        for name, profile in profiles.items():
            version = f" ({profile.run_with})" if profile.run_with else ""
            click.echo(f"{name}: {profile.status}{version}: {profile.about}")
        return
    if not program:
        raise click.UsageError(
            "give the program after --, such as: ajet exec ... -- agent {prompt}"
        )
    if options["reward"] is None:
        raise click.UsageError("give the command that rewards an episode: --reward")
    if options["profile"] not in profiles:
        raise click.UsageError(
            f"there is no profile {options['profile']!r}; there are {', '.join(profiles)}"
        )
    tasks = _tasks(options, state.plugins)
    profile = profiles[options["profile"]]
    terms = ProgramTerms(
        argv=program,
        reward=_reward(options["reward"]),
        profile=profile,
        environ=_variables(options["variables"]),
        files=_path(options["files"]),
        git=_git(options["git"]),
        tests=_path(options["tests"]),
        read_only={path: Path(path) for path in map(_absolute, options["read_only"])},
        rules=CallRules(
            max_calls=options["max_calls"],
            max_tokens=options["max_tokens"],
            sampling=CallSampling(temperature=options["temperature"]),
        ),
        timeout=options["timeout"],
        reward_timeout=options["reward_timeout"],
        stdin=options["stdin"],
        prompt_field=options["prompt_field"],
        limits=_limits(options["limits"]),
        host_network=options["network"],
        reward_network=options["reward_network"],
        allow_hosts=_hosts(options["allow_host"]),
        artifacts=_artifacts(options["artifacts"]),
        hidden=tuple(Path(options[name]) for name in ("tasks", "task") if options[name]),
        out=Path(options["out"]),
        keep=options["keep"],
        keep_failed=options["keep_failed"],
        disk_bytes=None if options["disk"] is None else _size("--disk", options["disk"]),
        hidden_fields=HIDDEN_FIELDS | frozenset(options["hide"]),
    )
    _refuse_without_prompt(terms, tasks)
    sandbox = _sandbox(options, state.plugins)
    _refuse_ignored(options["limits"], sandbox)
    in_force = limits_in_force(terms.limits, sandbox)
    if not sandbox.isolated:
        click.echo(
            f"warning: the sandbox {options['box']!r} isolates nothing: programs have the files, "
            "the tokens, the network and the processes of this user",
            err=True,
        )
    settings = state.settings(set_flags("client", url=url)).client
    token = settings.token.get_secret_value() if settings.token else None
    run = None if options["run_file"] is None else read_run(Path(options["run_file"]))

    async def roll_out() -> bool:
        async with AsyncSwarmClient(settings.url, token) as client:
            if options["once"]:
                click.echo(f"--- limits\n{in_force}")
                if run is not None:
                    await client.sync_train_config(run)
                    await client.start_engine()
                return await _once(client, terms, sandbox, tasks[0])
            click.echo(f"limits: {in_force}", err=True)
            async with BoxedProgram(terms, sandbox, client) as boxed:
                report = await train_async(
                    boxed,
                    tasks,
                    client=client,
                    config=run,
                    epochs=options["epochs"],
                    episodes_per_task=options["group"],
                    concurrency=options["concurrency"] or "auto",
                    retries=options["retries"],
                    resume=options["resume"],
                )
            echo_plain(str(report))
            return not report.failures

    if not asyncio.run(roll_out()):
        raise SystemExit(_FAILED)


async def _once(
    client: AsyncSwarmClient, terms: ProgramTerms, sandbox: Sandbox, task: Task
) -> bool:
    """Run one evaluation episode and show everything; return whether it has a reward."""

    def show(heading: str, text: str) -> None:
        echo_plain(f"--- {heading}\n{text}")

    failures: list[EpisodeFailure] = []
    async with BoxedProgram(terms, sandbox, client, on_episode=show) as boxed:
        report = await client.run_episodes_until_all_complete(
            [task],
            boxed.agent,
            kind="eval",
            rules=terms.call_rules,
            retries=0,
            concurrency=1,
        )
    failures.extend(report.failures)
    for failure in failures:
        show("aborted", _message(failure))
    for ended in report.outcomes:
        parts = json.dumps(dict(ended.outcome.components))
        show("reward", f"{ended.outcome.reward:g} {parts if ended.outcome.components else ''}")
    return not failures


def _message(failure: EpisodeFailure) -> str:
    """Return the whole message of an exception, without the episode's key."""
    lines = max(1, len(str(failure.error).strip().splitlines()))
    return "\n".join(failure.traceback.strip().splitlines()[-lines:])


def _tasks(options: Mapping[str, Any], plugins: PluginManager) -> list[Task]:
    if options["task"] is not None:
        if not options["once"]:
            raise click.UsageError("--task is for --once; give --tasks FILE")
        path = Path(options["task"])
        try:
            return [task_of(json.loads(path.read_text(encoding="utf-8")))]
        except (OSError, ValueError, TypeError) as error:
            raise UnreadableFileError(f"cannot read the task {path}: {error}") from error
    if options["tasks"] is None:
        raise click.UsageError("give the tasks: --tasks FILE")
    tasks = read_tasks(options["reader"], options["tasks"], plugins=plugins)
    if not tasks:
        raise ConfigError(f"{options['tasks']} has no tasks", param="tasks")
    return tasks


def _refuse_without_prompt(terms: ProgramTerms, tasks: Sequence[Task]) -> None:
    """Refuse tasks without the prompt that the program gets: it would get an empty one.

    :raises ConfigError: the first such task.
    """
    field = terms.prompt_field
    if terms.stdin != "prompt" and not any(
        name in argument for argument in terms.argv for name in ("{prompt}", "{prompt_file}")
    ):
        return
    for task in tasks:
        item = item_of(task)
        if isinstance(item, Mapping) and field not in item:
            raise ConfigError(
                f"task {task.id!r} has no field {field!r} for the prompt, only "
                f"{', '.join(map(repr, item))}; name its field with --prompt-field",
                param="prompt_field",
            )


def _reward(text: str) -> tuple[str, ...] | Callable[[Any], Any]:
    """Return the reward command, or the function that MODULE:FUNCTION names.

    :raises ConfigError: there is no such function.
    """
    if not _FUNCTION.fullmatch(text):
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            raise click.UsageError(f"--reward {text}: {error}") from error
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"the reward {text} cannot be imported: {error}", param="reward"
        ) from error
    if not callable(function):
        raise ConfigError(f"the reward {text} is not a function", param="reward")
    return function  # type: ignore[no-any-return]


def _variables(given: Sequence[str]) -> dict[str, str]:
    """Return variables, those without a value with that of this process."""
    variables = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise click.UsageError(f"--env {name}: there is no such variable; give {name}=VALUE")
        variables[name] = value if equals else os.environ[name]
    return variables


def _limits(given: Sequence[str]) -> BoxLimits:
    values: dict[str, int] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in _LIMITS:
            raise click.UsageError(
                f"--limit {text}: give {', '.join(_LIMITS)} = a number, such as memory=4G"
            )
        values[_LIMITS[name]] = _size(f"--limit {name}", value)
    return BoxLimits(**values)


def _refuse_ignored(given: Sequence[str], sandbox: Sandbox) -> None:
    """Refuse limits that a sandbox cannot set: they would be no protection."""
    for text in given:
        name = text.partition("=")[0]
        if sandbox.limits_of.get(_LIMITS[name]) == "nothing":
            raise click.UsageError(f"--limit {text}: this sandbox cannot limit {name}")


def _size(option: str, text: str) -> int:
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if unit not in _UNITS or not number.isdigit():
        raise click.UsageError(f"{option}={text}: give a number, such as 4G")
    return int(number) * _UNITS[unit]


def _artifacts(given: Sequence[str]) -> tuple[str, ...]:
    for pattern in given:
        if not pattern or pattern.startswith("/"):
            raise click.UsageError(
                f"--artifact {pattern!r}: give a pattern relative to the working copy, such as "
                "'*.log'"
            )
    return tuple(given)


def _hosts(given: Sequence[str]) -> tuple[str, ...]:
    for text in given:
        try:
            target_of(text)
        except ValueError as error:
            raise click.UsageError(f"--allow-host: {error}") from error
    return tuple(given)


def _git(text: str | None) -> tuple[Path, str] | None:
    if text is None:
        return None
    repository, _, commit = text.rpartition("@")
    if not repository:
        raise click.UsageError("--git must be REPO@COMMIT, such as .@HEAD")
    return Path(repository), commit


def _sandbox(options: Mapping[str, Any], plugins: PluginManager) -> Sandbox:
    """Return the sandbox; for an image that of the first container program that answers.

    :raises SandboxError: none can be used.
    """
    if options["image"] is None:
        return load_sandbox(options["box"], plugins=plugins)
    names = [options["box"]] if options["box"] in _CONTAINERS else list(_CONTAINERS)
    problems = []
    for name in names:
        try:
            return load_sandbox(name, {"image": options["image"]}, plugins)
        except SandboxError as error:
            problems.append(error.message)
    raise SandboxError("; ".join(problems))


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _absolute(text: str) -> str:
    return str(Path(text).absolute())
