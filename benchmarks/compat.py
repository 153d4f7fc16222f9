"""Drives SDKs and frameworks through what agents do, against a server with an engine that fails where it is told to.

Each SDK or framework is run by an interpreter that has it: the development environment, or the one that
``tox -e agents_NAME`` has made; one that is missing is left out, and said. Their programs are made for an endpoint where
nobody listens (`compat_cases`). Afterwards the records are looked at: each call of an episode has to hold the name of
the episode's task and of no other (else it is misattributed), and each answered call has to be there (else it is unrecorded).

The JSON line comes last; `--output` keeps it, with date and hardware.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from compat_cases.contract import CASES, DONE, FAILING, STRUCTURED
from compat_cases.run import Arguments
from reporting import report

from ajet_core.demo.tiny_model import create_tiny_model
from ajet_core.testing.agent_suite import LAST_IS_TOOL, tool_call
from ajet_core.testing.scripted_engine import ScriptedReply
from ajet_core.testing.scripted_swarm import ScriptedSwarm

ROOT = Path(__file__).resolve().parents[1]
LONGEST_PROMPT = 8192
SDKS = {"openai_chat", "openai_responses", "anthropic_messages"}
AGENT = "worker"
"""The name of the agent in all programs."""
FRAMEWORKS: dict[str, tuple[str, str | None]] = {
    "openai 3 chat": ("openai_chat", None),
    "openai 3 responses": ("openai_responses", None),
    "openai 2 chat": ("openai_chat", "agents_llamaindex"),
    "openai 2 responses": ("openai_responses", "agents_llamaindex"),
    "anthropic": ("anthropic_messages", None),
    "langchain": ("langchain", "agents_langchain"),
    "autogen": ("autogen", "agents_autogen"),
    "crewai": ("crewai", "agents_crewai"),
    "openai-agents": ("openai_agents", "agents_openai"),
    "agentscope": ("agentscope", "agents_agentscope"),
    "pydantic-ai": ("pydantic_ai", "agents_pydantic_ai"),
    "smolagents": ("smolagents", "agents_smolagents"),
    "llamaindex": ("llamaindex", "agents_llamaindex"),
}
"""By name: the module of its programs, and the environment that has it; None is this one."""


def script() -> list[ScriptedReply]:
    """What the model says to whom; the first that fits."""
    done = f"{DONE}<|im_end|>"
    left = tool_call("open_door", '{"door": "left"}')
    right = tool_call("open_door", '{"door": "right"}')
    both = left.removesuffix("<|im_end|>") + "\n" + right
    return [
        # smolagents ends by a tool, and tells results in the user's words.
        ScriptedReply(
            prompt=r'"name": "final_answer".*(Observation|Error):((?!<\|im_start\|>).)*<\|im_end\|>\s*'
            r"<\|im_start\|>assistant\s*(<think>\s*</think>\s*)?$",
            says=(tool_call("final_answer", json.dumps({"answer": DONE})),),
        ),
        ScriptedReply(prompt=LAST_IS_TOOL, says=(done,)),
        ScriptedReply(prompt=r"\[parallel_calls t", says=(both,)),
        ScriptedReply(prompt=r"\[bad_arguments t", says=(tool_call("open_door", '{"dor": 5}'),)),
        ScriptedReply(prompt=r"\[rate_limited t", says=(left,), error="busy"),
        ScriptedReply(prompt=r"\[server_error t", says=(left,), error="bug"),
        ScriptedReply(prompt='"name": "open_door"', says=(left,)),
        ScriptedReply(prompt="", says=(done,)),
    ]


def real_model(directory: Path) -> Path:
    """A tiny model that is given longer prompts than the demo's."""
    model = directory / "models" / "tiny"
    create_tiny_model(model, seed=0, warmup_steps=1)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        config = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**config, key: LONGEST_PROMPT}))
    return model


def interpreter(environment: str | None, given: dict[str, str]) -> str | None:
    """The interpreter of an environment; None if there is none."""
    if environment is None:
        return sys.executable
    found = given.get(environment) or str(ROOT / ".tox" / environment / "bin" / "python")
    return found if Path(found).exists() else None


def look_at(swarm: ScriptedSwarm, said: dict[str, Any], agents: set[str]) -> tuple[int, int]:
    """How many calls of an episode are misattributed, and how many are not recorded.

    An episode does not pass if what was to go wrong did not.
    """
    if "episode_id" not in said:
        return 0, 0
    calls = swarm.calls(said["episode_id"])
    texts = [swarm.text(call) for call in calls]
    misattributed = sum(
        set(re.findall(r"t\d{4}x", text)) != {said["name"]} or call.agent not in agents
        for call, text in zip(calls, texts, strict=True)
    )
    if said["case"] in FAILING and said["sent"] != said["answered"] + 1:
        said |= {"passed": False, "error": f"{said['sent'] - said['answered']} calls failed, not 1"}
    if said["case"] == "bad_arguments" and not any('"dor"' in text for text in texts):
        said |= {"passed": False, "error": "the tool was not called with bad arguments"}
    return misattributed, abs(said["answered"] - len(calls))


def drive(
    name: str,
    python: str,
    scripted: ScriptedSwarm,
    structured: ScriptedSwarm,
    episodes: int,
    first: int,
    output: Path,
) -> list[dict[str, Any]]:
    """All cases of one SDK or framework."""
    arguments: Arguments = {
        "url": scripted.url,
        "token": scripted.token,
        "structured_url": structured.url,
        "structured_token": structured.token,
        "episodes": episodes,
        "first": first,
        "output": str(output),
    }
    done = subprocess.run(
        [python, "-m", "compat_cases.run", FRAMEWORKS[name][0], json.dumps(arguments)],
        cwd=ROOT / "benchmarks",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        why = f"its program ended with {done.returncode}"
        return [{"case": case, "passed": False, "error": why} for case in CASES] * episodes
    found: list[dict[str, Any]] = json.loads(output.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=list(FRAMEWORKS), choices=list(FRAMEWORKS))
    parser.add_argument("--episodes", type=int, default=4, help="of each case")
    parser.add_argument(
        "--python", nargs="*", default=[], metavar="ENVIRONMENT=PATH", help="other interpreters"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in options.python)
    by_framework: dict[str, Any] = {}
    totals = {"cases": 0, "passed": 0, "misattributed": 0, "unrecorded": 0}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = real_model(directory / "structured")
        batch = {"tasks": 2000, "episodes_per_task": 2}
        with (
            ScriptedSwarm(directory / "scripted", script(), batch=batch) as scripted,
            ScriptedSwarm(
                directory / "structured",
                (),
                batch=batch,
                engine={"name": "torch"},
                trainer={"name": "torch"},
                model={"path": str(model), "renderer": "qwen3"},
            ) as structured,
        ):
            for number, framework in enumerate(options.only):
                python = interpreter(FRAMEWORKS[framework][1], given)
                if python is None:
                    print(
                        f"{framework}: left out, there is no environment {FRAMEWORKS[framework][1]}"
                    )
                    by_framework[framework] = None
                    continue
                first = number * len(CASES) * options.episodes
                found = drive(
                    framework,
                    python,
                    scripted,
                    structured,
                    options.episodes,
                    first,
                    directory / "results",
                )
                counts = dict.fromkeys(totals, 0)
                failed: dict[str, str] = {}
                for said in found:
                    swarm = structured if said["case"] in STRUCTURED else scripted
                    # SDKs have no agents, and some frameworks ask for structured output without one.
                    agents = {""} if FRAMEWORKS[framework][0] in SDKS else {AGENT}
                    if said["case"] in STRUCTURED:
                        agents.add("")
                    misattributed, unrecorded = look_at(swarm, said, agents)
                    counts["cases"] += 1
                    counts["passed"] += said["passed"]
                    counts["misattributed"] += misattributed
                    counts["unrecorded"] += unrecorded
                    if not said["passed"]:
                        failed[said["case"]] = said["error"]
                for case, why in failed.items():
                    print(f"{framework}: {case}: {why}")
                print(f"{framework}: {counts}")
                by_framework[framework] = counts
                for key, count in counts.items():
                    totals[key] += count
    report({"benchmark": "compat", **totals, "by_framework": by_framework}, options.output)
    if totals["passed"] < totals["cases"] or totals["misattributed"] or totals["unrecorded"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
