"""A planner and an executor, two models on two servers, which learn together."""

import argparse
import asyncio
import os
import tomllib
from pathlib import Path

from openai import AsyncOpenAI

from agentjet import AsyncSwarm, RunConfig, load_judge, read_tasks

HERE = Path(__file__).parent
PLANNER = (
    "Write a plan that solves the problem: numbered steps, with the numbers that are needed. "
    "Compute nothing. Another agent follows the plan and does not see the problem."
)
EXECUTOR = "Follow the plan and compute. End with a line that has four # and the number: #### 72"

llm = AsyncOpenAI(base_url="http://per.episode", api_key="per episode", max_retries=10)
right = load_judge("number")


async def ask(part, system, text, max_tokens):
    """Return the answer of the model behind a part of a joint episode."""
    own = llm.with_options(base_url=part.base_url, api_key=part.api_key)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    reply = await own.chat.completions.create(
        model=part.model, messages=messages, max_tokens=max_tokens
    )
    return reply.choices[0].message.content or ""


async def solve(task, episode):
    """Return the reward of each role."""
    plan = await ask(episode["planner"], PLANNER, task.payload["question"], 512)
    answer = await ask(episode["executor"], EXECUTOR, plan, 512)
    success = right(task.payload, answer)
    return {"planner": success, "executor": success}


def read_run(name):
    """Return the configuration of a run in this directory."""
    return RunConfig.model_validate(tomllib.loads((HERE / name).read_text(encoding="utf-8")))


async def train_team(urls, tokens, runs, tasks, epochs):
    """Train both models, and print the success of the team after each epoch.

    :param urls: of the servers by role; `tokens` and `runs` as well.
    """
    async with AsyncSwarm(urls, tokens) as swarm:
        await swarm.sync_train_config(runs)
        await swarm.start_engine()
        for epoch in range(1, epochs + 1):
            report = await swarm.run_episodes_until_all_complete(
                tasks, solve, episodes_per_task=runs["planner"].batch.episodes_per_task
            )
            print(f"epoch {epoch}: success of the team {report.reward_mean:.3f}", flush=True)
        for role, run in (await swarm.stop_engine()).items():
            print(f"{role}: {run.export_dir}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planner", required=True, help="URL of the planner's server")
    parser.add_argument("--executor", required=True, help="URL of the executor's server")
    parser.add_argument("--tasks", type=Path, default=HERE.parent / "maths" / "sample.jsonl")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    urls = {"planner": options.planner, "executor": options.executor}
    runs = {role: read_run(f"{role}.toml") for role in urls}
    # On this machine, the tokens of servers of the same user are known.
    names = {role: f"{role.upper()}_TOKEN" for role in urls}
    tokens = {role: os.environ[name] for role, name in names.items() if name in os.environ}
    tasks = read_tasks("jsonl", options.tasks)
    asyncio.run(train_team(urls, tokens, runs, tasks, options.epochs))


if __name__ == "__main__":
    main()
