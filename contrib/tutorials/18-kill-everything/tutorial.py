# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 18. Kill everything
#
# Machines crash, and programs are killed for memory. This tutorial kills the program that rolls out
# the agent, and then everything: program, server, engine and trainer, without a warning. Started
# again with the same commands, the run continues, and no step is missing.

# %%
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import psutil

from agentjet import LocalServer, RunConfig
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

directory = Path(tempfile.mkdtemp(prefix="kill-everything-"))
STEPS = 16

# %% [markdown]
# ## The program
#
# It trains the agent of the [first tutorial](../01-first-agent/tutorial.py) for 16 epochs of one
# batch each. `resume=True` is all that it does for its own safety: it skips the episodes that have
# already ended, whoever rolled them out.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}

program = directory / "agent.py"
program.write_text(
    f"""\
from agentjet import train, trainable
from openai import OpenAI

SOUNDS = {SOUNDS}
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


@trainable(reward=lambda animal, answer: float(answer == SOUNDS[animal]))
def solve(animal):
    question = [{{"role": "user", "content": f"What does the {{animal}} say?"}}]
    reply = llm.chat.completions.create(model="tiny", messages=question, max_tokens=8)
    return reply.choices[0].message.content


train(solve, list(SOUNDS), epochs={STEPS}, resume=True)
"""
)


def start_program(server):
    environment = {**os.environ, **server.environment}
    return subprocess.Popen([sys.executable, str(program)], env=environment)


# %% [markdown]
# ## The server
#
# A checkpoint every 4 steps says how much has to be trained again after a crash. It never costs
# episodes: they are in the store as soon as the server has acknowledged them.

# %%
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
create_tiny_model(directory / "model", examples=examples)

config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
        "checkpoint_every": 4,
    }
)
server = LocalServer(directory).start()
server.start_run(config)

# %% [markdown]
# ## Kill the program
#
# In the middle of the run. The server notices that no program works on its open episodes, and
# gives their places to others. A new program rolls out what is missing.


# %%
def wait_for_step(server, step):
    for event in server.client.events(since=0):
        if event.type == "step" and event.data["step"] == step:
            return


running = start_program(server)
wait_for_step(server, 4)
running.kill()
running.wait()
print("killed the program after step 4")

running = start_program(server)
wait_for_step(server, 7)

# %% [markdown]
# ## Kill everything
#
# The program, the server, and the worker process with engine and trainer.

# %%
victims = [psutil.Process(server.child.pid), psutil.Process(running.pid)]
victims += victims[0].children(recursive=True)
for victim in victims:
    victim.kill()
psutil.wait_procs(victims)
running.wait()
server.close()
print(f"killed {len(victims)} processes after step 7")

# %% [markdown]
# ## Start again
#
# A server on the same directory continues its run from the last checkpoint, at step 4. It trains
# steps 5 to 7 again, from the episodes that it has, and then waits for new ones.

# %%
server = LocalServer(directory).start()
server.start_run(config)
running = start_program(server)
running.wait()
print(f"the program ended with status {running.returncode}")
server.client.stop_engine()
server.close()

# %% [markdown]
# ## The curve
#
# No step is missing, and the model learned as if nothing had happened.

# %%
lines = (server.run_dir / "metrics.jsonl").read_text().splitlines()
rewards = {}
for line in lines:
    metrics = json.loads(line)
    rewards[metrics["step"]] = metrics["reward_mean"]
assert list(rewards) == list(range(1, len(rewards) + 1))
curve = list(rewards.values())
for step, reward in rewards.items():
    print(f"step {step:2}: mean reward {reward:.2f}")

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.axvline(4.5, color="grey", linestyle=":", label="the program is killed")
plt.axvline(7.5, color="red", linestyle=":", label="everything is killed")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Kill the worker process alone, and leave the server running. What does `ajet status` show?
# - Let the agent raise an exception in a third of its calls. How many episodes fail, and who tries
#   them again?
# - Remove `resume=True`. How many episodes are rolled out twice?
# - [When something fails](../../../docs/faults.md) has the details, and
#   [exact runs](../../../docs/exact.md) give the same weights with a crash as without one.
