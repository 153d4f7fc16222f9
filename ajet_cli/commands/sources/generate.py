"""``ajet generate``."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agentjet.judges.endpoint import ChatEndpoint, EndpointLimits
from ajet_cli.state import CliState, config_option, pass_state
from ajet_core.errors import ConfigError
from ajet_core.interfaces import ModelEndpoint
from ajet_core.plugin import PluginManager
from ajet_sources import SourceName, load_source, parse_source
from ajet_sources.generation import (
    GenerationLimits,
    GenerationPlan,
    GenerationReport,
    SolveRate,
    WrittenTask,
    generate_tasks,
    read_documents,
    read_prompt,
)

_FAILED = 1
_FILE = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("out")
@click.option("--documents", multiple=True, type=_FILE, help="Text, Markdown, or a directory.")
@click.option("--examples", metavar="SOURCE", help="Tasks to write others like.")
@click.option("--model", required=True, help="Writes the tasks.")
@click.option("--base-url", metavar="URL", help="Of the endpoint.  [default: OPENAI_BASE_URL]")
@click.option("--api-key", metavar="KEY", help="Its key.  [default: OPENAI_API_KEY]")
@click.option("--prompt", type=_FILE, help="Instructions, instead of those for these tasks.")
@click.option("--tasks", type=click.IntRange(1), default=4, show_default=True, help="A request.")
@click.option("--requests", type=click.IntRange(1), help="In all.  [default: one for each part]")
@click.option("--count", type=click.IntRange(1), help="Stop after so many rows.")
@click.option(
    "--chunk",
    type=click.IntRange(200),
    default=6000,
    show_default=True,
    help="Characters of a part of a document.",
)
@click.option("--shots", type=click.IntRange(1), default=4, show_default=True, help="Examples.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--temperature", type=float, help="Of the model that writes.")
@click.option("--max-tokens", type=click.IntRange(16), default=4096, show_default=True)
@click.option(
    "--near",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="Similarity of near duplicates.",
)
@click.option("--against", multiple=True, metavar="SOURCE", help="Tasks not to repeat.")
@click.option("--check/--no-check", default=True, show_default=True, help="As ajet check does.")
@click.option("--solver", metavar="MODEL", help="Attempts each task, to measure its difficulty.")
@click.option("--solver-base-url", metavar="URL", help="Of its endpoint.  [default: the same]")
@click.option("--solver-api-key", metavar="KEY", help="Its key.  [default: the same]")
@click.option("--solver-temperature", type=float, help="Sampling temperature of attempts.")
@click.option("--solver-max-tokens", type=click.IntRange(1), help="Tokens of an attempt.")
@click.option("--attempts", type=click.IntRange(1), default=8, show_default=True, help="Per task.")
@click.option(
    "--solve-rate",
    type=(click.FloatRange(0, 1), click.FloatRange(0, 1)),
    default=(0.0, 1.0),
    show_default=True,
    metavar="LOW HIGH",
    help="Keep tasks that this share of attempts solves.",
)
@click.option("--pass-reward", type=float, help="Solved from here on.  [default: the greatest]")
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds of an answer, and of an attempt.",
)
@click.option(
    "--retries", type=click.IntRange(0), default=3, show_default=True, help="Per failure."
)
@click.option("--budget-calls", type=click.IntRange(1), help="Stop after so many answers.")
@click.option("--budget-tokens", type=click.IntRange(1), help="Stop after so many of their tokens.")
@click.option("--recording", type=click.Path(path_type=Path), help="Keep the answers in this file.")
@click.option("--offline", is_flag=True, help="Take all answers from the recording.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@config_option
@pass_state
def generate(
    state: CliState,
    /,
    out: str,
    *,
    documents: tuple[Path, ...],
    examples: str | None,
    prompt: Path | None,
    requests: int | None,
    base_url: str | None,
    api_key: str | None,
    timeout: float,
    retries: int,
    concurrency: int,
    recording: Path | None,
    offline: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Let a model write tasks into the file OUT, or continue it.

    OUT is what `ajet train` will get, such as 'rows.jsonl?judge=number'. Duplicates, tasks that
    `ajet check` finds wrong, and those that the solver finds too easy or too hard are left out.
    docs/generate.md explains it. Ends with 1 if an endpoint failed.
    """
    if bool(documents) == (examples is not None):
        raise click.UsageError("give either --documents or --examples")
    if examples is not None and requests is None:
        raise click.UsageError("--examples needs the number of --requests")
    low, high = options["solve_rate"]
    if low > high:
        raise click.UsageError(f"--solve-rate {low:g} {high:g}: LOW is above HIGH")
    url = base_url or os.environ.get("OPENAI_BASE_URL", "")
    if not url and not offline:
        raise click.UsageError(
            "pass the endpoint with --base-url URL, such as http://127.0.0.1:8000/v1"
        )
    if url and not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--base-url {url}: it does not begin with http:// or https://")
    key = api_key or os.environ.get("OPENAI_API_KEY", "none")
    name = _rows(parse_source(out, state.plugins.names("source")))
    fields = load_source(name, plugins=state.plugins).settings
    parts = read_documents(documents, options["chunk"]) if documents else []
    known = [
        known_question
        for text in options["against"]
        for known_question in _questions(text, fields, state.plugins)
    ]
    plan = GenerationPlan(
        model=options["model"],
        prompt=read_prompt(prompt or ("documents" if parts else "examples")),
        parts=parts,
        examples=[] if examples is None else _examples(examples, fields, state.plugins),
        shots=options["shots"],
        tasks=options["tasks"],
        seed=options["seed"],
        temperature=options["temperature"],
        max_tokens=options["max_tokens"],
        near=options["near"],
        known=[question for question, _ in known],
        source=name.settings,
        check=options["check"],
        solve_rate=_solve_rate(options, url, key),
    )
    limits = GenerationLimits(
        requests=requests or len(parts),
        count=options["count"],
        budget_calls=options["budget_calls"],
        budget_tokens=options["budget_tokens"],
        concurrency=concurrency,
        attempt_timeout=timeout,
        attempt_retries=retries,
    )
    endpoint = None
    if not offline:
        endpoint = ChatEndpoint(
            url,
            lambda: key,
            name="endpoint",
            limits=EndpointLimits(timeout_seconds=timeout, retries=retries, at_once=concurrency),
        )
    path = Path(name.argument)
    report = asyncio.run(
        generate_tasks(
            plan,
            path,
            endpoint,
            limits,
            recording=recording,
            plugins=state.plugins,
            on_round=lambda so_far: click.echo(
                f"{so_far.asked} of {limits.requests} requests, {so_far.rows} rows", err=True
            ),
        )
    )
    click.echo(json.dumps(asdict(report), indent=1) if as_json else _text(report, path))
    if report.stopped == "failed" or report.unmeasured:
        what = "it ended" if report.stopped == "failed" else f"{report.unmeasured} were not solved"
        click.echo(
            f"{what} because of a failure: {report.error}; what was generated is kept, and "
            "the same command continues",
            err=True,
        )
        raise SystemExit(_FAILED)


def _rows(name: SourceName) -> SourceName:
    """:raises ConfigError: it is not a file of JSON lines."""
    if name.name != "rows" or not name.argument.endswith(".jsonl") or "reader" in name.settings:
        raise ConfigError(
            "OUT must be a file of JSON lines for the source rows, such as rows.jsonl?judge=number",
            param="out",
        )
    return name


def _solve_rate(options: Mapping[str, Any], url: str, key: str) -> SolveRate | None:
    if options["solver"] is None:
        return None
    sampling = {
        "temperature": options["solver_temperature"],
        "max_tokens": options["solver_max_tokens"],
    }
    low, high = options["solve_rate"]
    return SolveRate(
        endpoint=ModelEndpoint(
            base_url=(options["solver_base_url"] or url).rstrip("/"),
            api_key=options["solver_api_key"] or key,
            model=options["solver"],
            sampling={name: value for name, value in sampling.items() if value is not None},
        ),
        attempts=options["attempts"],
        low=low,
        high=high,
        pass_reward=options["pass_reward"],
    )


def _examples(text: str, fields: Any, plugins: PluginManager) -> list[WrittenTask]:
    """:raises ConfigError: an example has no answer."""
    examples = []
    for question, answer in _questions(text, fields, plugins):
        if answer is None:
            raise ConfigError(f"{text}: the example {question[:60]!r} has no answer")
        examples.append(WrittenTask(question=question, answer=answer))
    return examples


def _questions(text: str, fields: Any, plugins: PluginManager) -> Sequence[tuple[str, str | None]]:
    """Return the questions of a source with their answers; files have the fields of the rows."""
    name = parse_source(text, plugins.names("source"))
    if name.name == "rows":
        settings = {"prompt": fields.prompt, "answer": fields.answer, **name.settings}
        name = SourceName(name.name, name.argument, settings)

    async def read() -> list[tuple[str, str | None]]:
        async with load_source(name, plugins=plugins) as source:
            tasks = [task for split in source.splits() for task in source.tasks(split)]
            return [(source.question(task) or "", source.reference(task)) for task in tasks]

    return asyncio.run(read())


def _text(report: GenerationReport, out: Path) -> str:
    left_out = {
        "malformed": report.malformed,
        "duplicate": report.duplicate,
        "near duplicate": report.near_duplicate,
        "failed check": report.failed_check,
        "too hard": report.too_hard,
        "too easy": report.too_easy,
        "not measured": report.unmeasured,
    }
    parts = ", ".join(f"{count} {name}" for name, count in left_out.items() if count)
    because = {
        "requests": "all requests were made",
        "count": "there are enough rows",
        "budget_calls": "--budget-calls is spent",
        "budget_tokens": "--budget-tokens is spent",
        "failed": "an endpoint failed",
    }[report.stopped]
    paid = report.asked - report.recorded
    answers = f"{report.asked} answers ({paid} new, {report.tokens} tokens in all)"
    lines = [
        *(f"finding: {finding}" for finding in report.findings),
        f"{answers}, {report.parsed} tasks; left out: {parts or 'none'}",
        f"{out} has {report.rows} rows; ended because {because}",
    ]
    return "\n".join(lines)
