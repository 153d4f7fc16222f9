"""Check SDKs and frameworks: drive them through what agents do, with a server and planned failures.

Each SDK or framework runs in an interpreter that has it: the development environment, or the one of
``tox -e agents_NAME`` (or ``recipe_metagpt``). The programs use an endpoint where no server listens
(`compat_cases`). Afterwards the records are checked: each call of an episode must contain the name
of the episode's task and of no other (otherwise it is misattributed), and each answered call must
be recorded (otherwise it is unrecorded).

The JSON line comes last; `--output` also writes it to a file, with date and hardware. The exit
status is 1 if a case failed or a call was misattributed or unrecorded. Otherwise it is 2 if an
environment is missing, whose frameworks are listed as `left_out`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat_cases.contract import CASES, DONE, FAILING, server_of
from compat_cases.run import Arguments
from options import at_least
from reporting import report

from ajet_demo.tiny_model import copy_tiny_model
from ajet_testing.scripted_engine import ScriptedReply
from ajet_testing.scripted_swarm import ScriptedSwarm
from ajet_testing.suites.agent_suite import LAST_IS_TOOL, tool_call

ROOT = Path(__file__).resolve().parents[1]
LONGEST_PROMPT = 8192
FRAMEWORKS: dict[str, tuple[str, str | None]] = {
    "openai 3 chat": ("openai_chat", None),
    "openai 3 responses": ("openai_responses", None),
    "openai 2 chat": ("openai_chat", "agents_llamaindex"),
    "openai 2 responses": ("openai_responses", "agents_llamaindex"),
    "anthropic": ("anthropic_messages", None),
    "google-genai": ("google_content", None),
    "langchain": ("langchain", "agents_langchain"),
    "autogen": ("autogen", "agents_autogen"),
    "crewai": ("crewai", "agents_crewai"),
    "openai-agents": ("openai_agents", "agents_openai"),
    "agentscope": ("agentscope", "agents_agentscope"),
    "pydantic-ai": ("pydantic_ai", "agents_pydantic_ai"),
    "smolagents": ("smolagents", "agents_smolagents"),
    "llamaindex": ("llamaindex", "agents_llamaindex"),
    "metagpt": ("metagpt", "recipe_metagpt"),
}
"""By name: the module of its programs, and its environment; None is the current one."""
COUNTED = ("cases", "passed", "misattributed", "unrecorded")


LEFT = tool_call("open_door", '{"door": "left"}')


def script() -> list[ScriptedReply]:
    """Return the model's replies; the first one that matches a prompt is used."""
    done = f"{DONE}<|im_end|>"
    right = tool_call("open_door", '{"door": "right"}')
    both = LEFT.removesuffix("<|im_end|>") + "\n" + right
    return [
        # smolagents ends with a tool call, and reports results in user messages.
        ScriptedReply(
            prompt=r'"name": "final_answer".*(Observation|Error):((?!<\|im_start\|>).)*'
            r"<\|im_end\|>\s*<\|im_start\|>assistant\s*(<think>\s*</think>\s*)?$",
            says=(tool_call("final_answer", json.dumps({"answer": DONE})),),
        ),
        ScriptedReply(prompt=LAST_IS_TOOL, says=(done,)),
        # In MetaGPT, actions call the tools with the model's answer.
        ScriptedReply(prompt="Say what you found", says=(done,)),
        ScriptedReply(prompt=r"\[parallel_calls t", says=(both,)),
        ScriptedReply(prompt=r"\[bad_arguments t", says=(tool_call("open_door", '{"dor": 5}'),)),
        ScriptedReply(prompt=r"\[rate_limited t", says=(LEFT,), error="busy"),
        ScriptedReply(prompt=r"\[server_error t", says=(LEFT,), error="bug"),
        ScriptedReply(prompt='"name": "open_door"|Name the door to open', says=(LEFT,)),
        ScriptedReply(prompt="", says=(done,)),
    ]


def structured_script() -> list[ScriptedReply]:
    """Return replies that end with JSON, or with the tool call that some frameworks use for it."""
    answer = '{"door": "left"}'
    by_tool = "GenerateStructuredOutput"
    return [
        ScriptedReply(prompt='"name": "Choice"', says=(tool_call("Choice", answer),)),
        ScriptedReply(
            prompt=f'"name": "{by_tool}".*<tool_response>', says=(tool_call(by_tool, answer),)
        ),
        ScriptedReply(prompt="<tool_response>", says=(f"{answer}<|im_end|>",)),
        ScriptedReply(prompt="", says=(LEFT,)),
    ]


def real_model(directory: Path) -> Path:
    """Make a tiny model with a longer context than the demo's."""
    model = directory / "models" / "tiny"
    copy_tiny_model(model)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        config = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**config, key: LONGEST_PROMPT}))
    return model


def interpreter(environment: str | None, given: dict[str, str]) -> str | None:
    """Return the interpreter of an environment, or None if there is none."""
    if environment is None:
        return sys.executable
    found = given.get(environment) or str(ROOT / ".tox" / environment / "bin" / "python")
    return found if Path(found).exists() else None


def look_at(swarm: ScriptedSwarm, said: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of misattributed and unrecorded calls of an episode.

    An episode fails if its planned failure did not happen.
    """
    if "episode_id" not in said:
        return 0, 0
    calls = swarm.calls(said["episode_id"])
    texts = [swarm.text(call) for call in calls]
    misattributed = sum(
        set(re.findall(r"t\d{4}x", text)) != {said["name"]} or call.agent != said["agent"]
        for call, text in zip(calls, texts, strict=True)
    )
    wrong = ""
    if said["case"] in FAILING and said["sent"] != said["answered"] + 1:
        wrong = f"{said['sent'] - said['answered']} calls failed, not 1"
    if said["case"] == "bad_arguments" and not any('"dor"' in text for text in texts):
        wrong = "the tool was not called with bad arguments"
    if said["case"] == "structured_with_tools" and not any(LEFT in text for text in texts):
        wrong = "the tool was not called"
    if said["passed"] and wrong:
        said |= {"passed": False, "error": wrong}
    return misattributed, abs(said["answered"] - len(calls))


def drive(
    name: str, python: str, swarms: dict[str, ScriptedSwarm], options: Options, output: Path
) -> list[dict[str, Any]]:
    """Run the cases of one SDK or framework."""
    module = FRAMEWORKS[name][0]
    arguments: Arguments = {
        "servers": {server: (swarm.url, swarm.token) for server, swarm in swarms.items()},
        "cases": options.cases,
        "episodes": options.episodes,
        "first": list(FRAMEWORKS).index(name) * len(CASES) * options.episodes,
        "output": str(output),
    }
    done = subprocess.run(
        [python, "-m", "compat_cases.run", module, json.dumps(arguments)],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *options.paths])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        why = f"its program ended with {done.returncode}"
        failed = [{"case": case, "passed": False, "error": why} for case in options.cases]
        return failed * options.episodes
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def count(
    name: str, found: list[dict[str, Any]], swarms: dict[str, ScriptedSwarm], cases: list[str]
) -> dict[str, Any]:
    """Count the results of one SDK or framework."""
    counts: dict[str, Any] = dict.fromkeys(COUNTED, 0)
    failed: dict[str, str] = {}
    for said in found:
        misattributed, unrecorded = look_at(swarms[server_of(said["case"])], said)
        counts["cases"] += 1
        counts["passed"] += said["passed"]
        counts["misattributed"] += misattributed
        counts["unrecorded"] += unrecorded
        if not said["passed"]:
            failed[said["case"]] = said["error"]
    for case, why in failed.items():
        print(f"{name}: {case}: {why}")
    if missing := sorted(set(cases) - {said["case"] for said in found}):
        counts["without"] = missing
    print(f"{name}: {counts}")
    return counts


@contextmanager
def servers(directory: Path) -> Iterator[dict[str, ScriptedSwarm]]:
    """Start three servers: scripted, with a real model, and with a script that grammars check."""
    batch = {"tasks": 2000, "episodes_per_task": 2}
    model = real_model(directory / "real")
    with (
        ScriptedSwarm(directory / "scripted", script(), batch=batch) as scripted,
        ScriptedSwarm(
            directory / "checking", structured_script(), checks_grammar=True, batch=batch
        ) as checking,
        ScriptedSwarm(
            directory / "real",
            (),
            batch=batch,
            engine={"name": "torch"},
            trainer={"name": "torch"},
            model={"path": str(model), "renderer": "qwen3"},
        ) as real,
    ):
        yield {"scripted": scripted, "checking": checking, "real": real}


class Options(argparse.Namespace):
    """Options of the command line."""

    only: list[str]
    cases: list[str]
    episodes: int
    python: list[str]
    paths: list[str]
    output: Path | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=list(FRAMEWORKS), choices=list(FRAMEWORKS))
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--episodes", type=at_least(1), default=4, help="of each case")
    parser.add_argument(
        "--python", nargs="*", default=[], metavar="ENVIRONMENT=PATH", help="other interpreters"
    )
    parser.add_argument(
        "--paths", nargs="*", default=[], help="where plugins are, if not in their environments"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(namespace=Options())
    given = dict(pair.split("=", 1) for pair in options.python)
    pythons = {name: interpreter(FRAMEWORKS[name][1], given) for name in options.only}
    by_framework: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, servers(Path(name)) as swarms:
        for framework, python in pythons.items():
            if python is None:
                print(f"{framework}: there is no environment {FRAMEWORKS[framework][1]}")
                continue
            found = drive(framework, python, swarms, options, Path(name) / "results")
            by_framework[framework] = count(framework, found, swarms, options.cases)
    totals = {key: sum(counts[key] for counts in by_framework.values()) for key in COUNTED}
    left_out = [framework for framework, python in pythons.items() if python is None]
    result = {"benchmark": "compat", **totals, "left_out": left_out, "by_framework": by_framework}
    report(result, options.output)
    if totals["passed"] < totals["cases"] or totals["misattributed"] or totals["unrecorded"]:
        sys.exit(1)
    if left_out:
        sys.exit(2)


if __name__ == "__main__":
    main()
