# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 16. Your own plugin
#
# Engines, trainers, judges, stores: nearly everything in agentjet is a plugin, and yours have the
# same rights. This tutorial adds an advantage estimator: the part that says how much better an
# episode was than expected. [Its code](plugin/ajet_winners.py) is one class and one function, and
# [its pyproject.toml](plugin/pyproject.toml) has the lines by which agentjet finds it.
#
# The estimator learns from winners alone. An episode that is better than the mean of its group is
# imitated, and all others are ignored. The usual estimators also learn from the losers.
#
# It needs `pip install hatchling`, which builds the plugin.

# %%
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

directory = Path(tempfile.mkdtemp(prefix="your-own-plugin-"))

# %% [markdown]
# ## Install it
#
# Usually `pip install ./plugin` is all. Here it is installed into a directory that is removed with
# the rest, so that your environment stays as it is.

# %%
command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
subprocess.run([*command, "--target", directory / "site", "./plugin"], check=True)
os.environ["PYTHONPATH"] = str(directory / "site")

# %% [markdown]
# `ajet plugins` lists what is installed. There it is, beside those that come with agentjet.

# %%
listed = subprocess.run(["ajet", "plugins"], check=True, stdout=subprocess.PIPE, text=True).stdout
for line in listed.splitlines():
    if "winners" in line:
        print("found by agentjet:", " ".join(line.split())[:60])

# %% [markdown]
# ## Use it
#
# The agent of the [first tutorial](../01-first-agent/tutorial.py). The configuration names the
# estimator and sets it up. The server checks both before the run starts.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


@trainable(reward=lambda animal, answer: float(answer == SOUNDS[animal]))
def solve(animal):
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
create_tiny_model(directory / "model", examples=examples)

mine = {"advantage": "winners", "advantage_settings": {"scale": 1.0}}
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO.model_copy(update=mine),
    }
)
curve = []
for step in range(1, 19):
    curve.append(train(solve, list(SOUNDS), client=server.client, config=config).reward_mean)
    print(f"step {step:2}: mean reward {curve[-1]:.2f}")
server.close()

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Give losers an advantage of `-self.settings.scale`. Does the model learn faster? Is it steadier?
# - Write `"scale": "much"` into the configuration. When is the mistake reported, and by whom?
# - Let `estimate` raise an exception. What becomes of the run, and whom does `ajet status` name?
# - `ajet plugin new advantage winners` creates such a project with tests, among them the suite that
#   every estimator has to pass. [Plugins](../../../docs/plugins.md) has a page for each kind.
