"""``ajet research propose`` and ``ajet research interpret``."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_research.researchers import Researcher
    from ajet_research.spending import ResearcherLimits
    from ajet_research.study import ResearcherPrice

_FAILED = 1
_TOKENS = 200_000
_FILE = click.Path(path_type=Path, dir_okay=False)
_PLACE = click.Path(path_type=Path, exists=True)
_OPTIONS = (
    click.option(
        "--researcher",
        "kind",
        type=click.Choice(["llm", "assistant", "script"]),
        required=True,
        help="A model at an endpoint, a coding assistant or a program in a sandbox.",
    ),
    click.option(
        "--base-url", metavar="URL", help="llm, assistant: URL of the endpoint, with /v1."
    ),
    click.option("--model", metavar="NAME", help="llm, assistant: the model."),
    click.option(
        "--api-key-env",
        metavar="VARIABLE",
        default="OPENAI_API_KEY",
        show_default=True,
        help="llm, assistant: the environment variable with the key; '' for none.",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(64),
        default=4096,
        show_default=True,
        help="llm, assistant: most tokens of one answer.",
    ),
    click.option(
        "--price",
        type=(click.FloatRange(0), click.FloatRange(0)),
        metavar="INPUT OUTPUT",
        help="llm, assistant: price of a million tokens, unless the budget has prices.",
    ),
    click.option(
        "--money", type=click.FloatRange(0), help="llm, assistant: most that all requests may cost."
    ),
    click.option(
        "--tokens",
        type=click.IntRange(0),
        default=_TOKENS,
        show_default=True,
        help="llm, assistant: most tokens of all requests.",
    ),
    click.option(
        "--wait",
        type=click.FloatRange(0),
        default=300.0,
        show_default=True,
        help="llm, assistant: seconds to wait for an endpoint that does not answer.",
    ),
    click.option(
        "--profile",
        metavar="NAME",
        help="assistant: 'anthropic', 'codex', 'opencode' or another one of `ajet exec`.",
    ),
    click.option(
        "--command",
        metavar="COMMAND",
        help="script: 'python3 researcher.py'. assistant: by default the profile's.",
    ),
    click.option("--files", type=_PLACE, help="script: its working directory, which is copied."),
    click.option(
        "--read-only",
        type=_PLACE,
        multiple=True,
        help="script, assistant: a further path that it may read.",
    ),
    click.option(
        "--box", default="bubblewrap", show_default=True, help="script, assistant: the sandbox."
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0.1),
        help="Seconds for one answer.  [default: llm 300, script 120, assistant 900]",
    ),
    click.option(
        "--tries",
        type=click.IntRange(1, 50),
        default=5,
        show_default=True,
        help="Answers that may be refused.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def _researcher_options(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda inner, option: option(inner), reversed(_OPTIONS), command)


@click.command()
@click.argument("topic", type=_FILE)
@click.option(
    "--output",
    type=_FILE,
    default=Path("study.toml"),
    show_default=True,
    help="File to write the study to.",
)
@_researcher_options
def propose(topic: Path, output: Path, tries: int, as_json: bool, **options: Any) -> None:
    """Let a researcher write a study for the question in the Markdown file TOPIC.

    Registration checks each answer, and the researcher gets its refusals back. The file is written
    only if registration accepts it; read it before you run it. Ends with 1 if none was accepted.
    """
    from ajet_research.researchers import ResearcherFailedError, propose_study
    from ajet_research.researchers.proposing import read_topic

    question = read_topic(topic)
    hidden = [topic.resolve().parent, output.resolve().parent]
    researcher = _researcher(options, question.researchers.get("researcher_prices", {}), hidden)
    try:
        done = propose_study(
            topic,
            output,
            researcher,
            tries=tries,
            limits=_limits(options),
            wait_seconds=options["wait"],
            on_problem=_noted(as_json),
        )
    except ResearcherFailedError as error:
        _fail(error.message, as_json)
    if as_json:
        spent = {"requests": done.requests, "tokens": done.tokens, "money": done.money}
        click.echo(json.dumps({"study": str(done.path), "problem": "", **spent}))
    else:
        click.echo(f"{done.path}: registration accepts it, after {done.requests} requests.")
        click.echo(f"Read it, then: ajet research run {done.path}")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@_researcher_options
def interpret(directory: Path, tries: int, as_json: bool, **options: Any) -> None:
    """Let a researcher write about the report of the study in DIRECTORY.

    Numbers and claims in its text must be references to the report. Accepted text appears in the
    report under its name. Ends with 1 if none was accepted; the report is complete without it.
    """
    from ajet_research.ledger import LEDGER, read_ledger
    from ajet_research.researchers import interpret_study
    from ajet_research.state import fold

    path = directory / LEDGER
    if not path.exists():
        raise ConfigError(f"There is no study in {directory}.")
    prices = fold(read_ledger(path)).registered.budget.researcher_prices
    researcher = _researcher(options, prices, [directory.resolve().parent])
    done = interpret_study(
        directory,
        researcher,
        tries=tries,
        limits=_limits(options),
        wait_seconds=options["wait"],
        on_problem=_noted(as_json),
    )
    if as_json:
        click.echo(json.dumps({**asdict(done), "researcher": researcher.name}))
    elif done.prose:
        click.echo(f"The report has the words of {researcher.name}: {directory / 'report'}")
    if done.problem:
        if not as_json:
            click.echo(f"{done.problem}\nThe report is complete without an interpretation.")
        sys.exit(_FAILED)


def study_of_topic(topic: Path, directory: Path, *, quiet: bool) -> Path:
    """Return the study that the researcher of a topic writes beside it, written before or now.

    :param directory: of the state of the study.
    :raises ConfigError: the head of the topic has no table ``researcher``, or an invalid one.
    """
    from ajet_research.researchers import propose_study
    from ajet_research.researchers.proposing import read_topic

    path = topic.with_suffix(".toml")
    if path.exists():
        return path
    question = read_topic(topic)
    options = _options_in(topic)
    hidden = [topic.resolve().parent, directory.resolve().parent]
    propose_study(
        topic,
        path,
        _researcher(options, question.researchers.get("researcher_prices", {}), hidden),
        tries=options["tries"],
        limits=_limits(options),
        wait_seconds=options["wait"],
        on_problem=_noted(quiet),
    )
    if not quiet:
        click.echo(f"{path}: registration accepts it.")
    return path


def words_of_topic(topic: Path, directory: Path, *, quiet: bool) -> None:
    """Let the researcher of a topic write about the report, unless it was asked before.

    The report is complete without.
    """
    from ajet_research.ledger import LEDGER, read_ledger
    from ajet_research.researchers import interpret_study
    from ajet_research.state import fold

    state = fold(read_ledger(directory / LEDGER))
    if state.reported is None or state.interpretations:
        return
    options = _options_in(topic)
    researcher = _researcher(
        options, state.registered.budget.researcher_prices, [directory.resolve().parent]
    )
    done = interpret_study(
        directory,
        researcher,
        tries=options["tries"],
        limits=_limits(options),
        wait_seconds=options["wait"],
        on_problem=_noted(quiet),
    )
    if done.problem and not quiet:
        click.echo(f"{done.problem}\nThe report is complete without an interpretation.")


def _options_in(topic: Path) -> dict[str, Any]:
    """Return the options that the head of a topic sets in its table ``researcher``.

    :raises ConfigError: there is no such table, or one of its options is invalid.
    """
    from ajet_research.researchers.proposing import read_topic

    table = read_topic(topic).researcher
    if not table:
        raise ConfigError(
            f"{topic} has no study in its head, and no table 'researcher' that says who writes "
            "one. Add either, or let 'ajet research propose' write a study."
        )
    arguments = []
    for name, value in table.items():
        option = "--researcher" if name == "kind" else f"--{name.replace('_', '-')}"
        values = value if isinstance(value, list) else [value]
        if name in ("files", "read_only"):
            values = [topic.resolve().parent / str(one) for one in values]
        if name == "read_only":
            arguments += [text for one in values for text in (option, str(one))]
        else:
            arguments += [option, *map(str, values)]
    command = click.Command("researcher")
    for one in _OPTIONS:
        one(command)
    try:
        return command.make_context("researcher", arguments).params
    except click.ClickException as error:
        raise ConfigError(f"{topic}, table 'researcher': {error.format_message()}") from error


def _researcher(options: dict[str, Any], prices: Any, hidden: list[Path]) -> Researcher:
    from ajet_research.researchers import (
        AssistantResearcher,
        AssistantRules,
        ModelResearcher,
        ModelTerms,
        ProgramResearcher,
        ProgramRules,
    )

    if options["kind"] == "script":
        if not options["command"]:
            raise click.UsageError("--researcher script needs --command")
        return ProgramResearcher(
            ProgramRules(
                command=options["command"],
                files=options["files"],
                read_only=options["read_only"],
                hidden=hidden,
                sandbox=options["box"],
                timeout_seconds=options["timeout"] or 120.0,
            )
        )
    assistant = options["kind"] == "assistant"
    if not options["base_url"] or not options["model"] or (assistant and not options["profile"]):
        needed = "--profile, --base-url and --model" if assistant else "--base-url and --model"
        raise click.UsageError(f"--researcher {options['kind']} needs {needed}")
    terms = ModelTerms(
        base_url=options["base_url"],
        model=options["model"],
        api_key_env=options["api_key_env"],
        max_tokens=options["max_tokens"],
        timeout_seconds=300.0 if assistant else options["timeout"] or 300.0,
        price=_price(options, prices),
    )
    if not assistant:
        return ModelResearcher(terms)
    return AssistantResearcher(
        AssistantRules(
            profile=options["profile"],
            command=options["command"] or "",
            read_only=options["read_only"],
            hidden=hidden,
            sandbox=options["box"],
            timeout_seconds=options["timeout"] or 900.0,
        ),
        terms,
    )


def _price(options: dict[str, Any], prices: Any) -> ResearcherPrice | None:
    """Return the price of the model.

    :raises ConfigError: money is limited, and there is none.
    """
    from ajet_research.study import ResearcherPrice

    model = options["model"]
    if model in prices:
        return ResearcherPrice.model_validate(prices[model])
    if prices:
        raise ConfigError(
            f"The budget has no price of the model {model!r}; it has those of: {', '.join(prices)}."
        )
    if options["price"] is not None:
        return ResearcherPrice(input=options["price"][0], output=options["price"][1])
    if options["money"] is not None:
        raise ConfigError(f"--money needs the --price of the model {model!r}.")
    return None


def _limits(options: dict[str, Any]) -> ResearcherLimits:
    from ajet_research.spending import ResearcherLimits

    return ResearcherLimits(options["tokens"], options["money"])


def _noted(quiet: bool) -> Callable[[str], object] | None:
    return None if quiet else lambda problem: click.echo(problem, err=True)


def _fail(message: str, as_json: bool) -> None:
    click.echo(json.dumps({"study": None, "problem": message}) if as_json else message)
    sys.exit(_FAILED)
