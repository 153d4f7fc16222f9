# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 10. Asynchronous rollouts
#
# Tools are slow, and some calls of a tool are much slower than the others. A synchronous run waits
# for the slowest episode of each batch, and then for the training step. An asynchronous run keeps
# rolling out while it trains. The price is that some tokens were sampled by weights that are a step
# or two old. `max_staleness` limits it.

# %%
import json
import random
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## An agent with a slow tool
#
# The agent of the [first tutorial](../01-first-agent/tutorial.py) looks something up before it
# answers. Most of the time this takes a moment, and once in 16 times two seconds.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def look_up():
    time.sleep(2.0 if random.random() < 1 / 16 else 0.02)


@trainable(reward=lambda animal, answer: float(answer == SOUNDS[animal]))
def solve(animal):
    look_up()
    question = [{"role": "user", "content": f"What does the {animal} say?"}]
    reply = llm.chat.completions.create(model="tiny", messages=question, max_tokens=8)
    return reply.choices[0].message.content


random.seed(0)
examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    messages = [
        {"role": "user", "content": f"What does the {animal} say?"},
        {"role": "assistant", "content": sound},
    ]
    examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="asynchronous-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The same run in two modes
#
# Only `rollout` differs. The program also lets more episodes run at once in the asynchronous run,
# because several batches are under way.

# %%
STEPS = 14


def run(rollout, concurrency):
    server = LocalServer(directory / rollout["mode"], models=directory).start()
    server.start_run(
        RunConfig.model_validate(
            {
                "model": {"path": str(directory / "model")},
                "batch": {"tasks": 4, "episodes_per_task": 16},
                "algorithm": TINY_GRPO,
                "rollout": rollout,
            }
        )
    )
    began = time.monotonic()
    train(solve, list(SOUNDS), client=server.client, epochs=STEPS, concurrency=concurrency)
    server.client.stop_engine()
    seconds = time.monotonic() - began
    server.close()
    lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line) for line in lines]
    print(f"{rollout['mode']}: {len(metrics)} steps in {seconds:.0f} seconds")
    for one in metrics:
        reward, staleness = one["reward_mean"], one["staleness_mean"]
        print(f"  step {one['step']:2}: mean reward {reward:.2f}, tokens {staleness:.2f} steps old")
    return seconds, [one["reward_mean"] for one in metrics]


# %%
seconds, rewards = run({"mode": "sync"}, concurrency=64)

# %%
async_seconds, curve = run({"mode": "async", "max_staleness": 2}, concurrency=192)
print(f"The asynchronous run took {async_seconds / seconds:.0%} of the time.")

# %% [markdown]
# ## The curves, over time
#
# Per step, the asynchronous run learns about as much: its tokens are up to two steps old, and the
# trainer accounts for that. What it saves is the time in which the synchronous run waits for tools
# while nothing is computed. That is much where tools are slow, and little where computing is slow,
# as on the busy machine on which the curve beside this file was drawn.

# %%
for total, values, mode in ((seconds, rewards, "sync"), (async_seconds, curve, "async")):
    times = [total * (i + 1) / len(values) for i in range(len(values))]
    plt.plot(times, values, marker="o", label=mode)
plt.xlabel("seconds of training (steps evenly spread)")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Make the tool fast. What is left of the difference, and where does it come from?
# - Set `max_staleness` to 1 and to 4. What changes in the seconds, and in the rewards?
# - Stay synchronous, and roll out one task more than a batch needs: `{"spare_tasks": 1}`. The batch
#   does not wait for the slowest task then.
# - [Rolling out](../../../docs/rollouts.md) describes all ways between the two.
