# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 5. Why did it not learn?
#
# Five runs that learn nothing or little, and one that learns. The server judges each batch and each
# step, and reports *findings*. Read each broken run first and guess. Then compare with the finding
# below it.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The task, and a tiny model
#
# Eight animals, and a model whose answers are mostly random.

# %%
SOUNDS = {
    "bee": "buzz",
    "cat": "meow",
    "cow": "moo",
    "dog": "woof",
    "duck": "quack",
    "frog": "croak",
    "lion": "roar",
    "owl": "hoot",
}
tasks = list(SOUNDS)
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def question(animal):
    return [{"role": "user", "content": f"What does the {animal} say?"}]


random.seed(0)
examples = []
for _ in range(400):
    animal = random.choice(tasks)
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    answer = {"role": "assistant", "content": f"I am quite sure that it says {sound}."}
    examples.append(ChatExample([*question(animal), answer]))

directory = Path(tempfile.mkdtemp(prefix="why-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## A function that trains and reports
#
# `pause_on` is empty, so that the broken runs continue. By default the gravest findings pause a
# run, before its weights are ruined.


# %%
def ask(animal, **options):
    options = {"max_tokens": 24, **options}
    reply = llm.chat.completions.create(model="tiny", messages=question(animal), **options)
    return reply.choices[0].message.content


def is_right(animal, answer):
    return 1.0 if answer == f"I am quite sure that it says {SOUNDS[animal]}." else 0.0


def run(name, agent, reward, steps, **algorithm):
    server = LocalServer(directory / name, models=directory).start()
    config = RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "batch": {"tasks": 8, "episodes_per_task": 8},
            "algorithm": TINY_GRPO.model_copy(update=algorithm),
            "failures": {"pause_on": [], "zero_signal_steps": 3},
        }
    )
    solve = trainable(agent, reward=reward)
    rewards = []
    for _ in range(steps):
        rewards.append(train(solve, tasks, client=server.client, config=config).reward_mean)
    status = server.client.wait_for_step(steps)
    print("rewards:", *(f"{reward:.2f}" for reward in rewards))
    for finding in status.findings:
        print(f"  {finding.code}: {finding.message}")
    server.close()
    return rewards


# %% [markdown]
# ## Run A
#
# The reward stays at zero. Are the tasks too hard?

# %%
broken = {}
broken["A"] = run("A", ask, lambda animal, answer: float(answer == SOUNDS[animal]), steps=4)

# %% [markdown]
# No: the model answers *I am quite sure that it says meow.*, and the reward function waits for
# *meow*. If all rewards are equal, no answer is better than another one, and there is nothing to
# learn.
#
# ## Run B
#
# The reward is right. But look at the call of the model.

# %%
broken["B"] = run("B", lambda animal: ask(animal, temperature=0), is_right, steps=4)

# %% [markdown]
# The temperature is 0, so all answers to a question are the same. A model that never tries anything
# else cannot find out what would be better. Many frameworks request such a temperature:
# `trainable(..., sampling={"temperature": 1.0})` overrides it.
#
# ## Run C
#
# The temperature is the usual one again.

# %%
broken["C"] = run("C", lambda animal: ask(animal, max_tokens=1), is_right, steps=4)

# %% [markdown]
# With `max_tokens=1` no answer is finished, so none can be right.
#
# ## Run D
#
# The agent and the reward are as they should be.

# %%
broken["D"] = run("D", ask, is_right, steps=6, learning_rate=0.05, warmup_steps=0)

# %% [markdown]
# The learning rate is 50 times too high. The server shortens updates that would move the model too
# far, and reports that it had to shorten most of them.
#
# ## Run E
#
# The learning rate is the usual one. Some rewards are above zero.


# %%
def knows_cats_only(animal, answer):
    return is_right(animal, answer) if animal == "cat" else 0.0


broken["E"] = run("E", ask, knows_cats_only, steps=4)

# %% [markdown]
# The solutions of seven of the eight tasks are missing, so their rewards are all zero. One eighth
# of the work trains the model, and the rest is for nothing.
#
# ## The run that learns

# %%
curve = run("F", ask, is_right, steps=14)

# %%
for name, rewards in broken.items():
    plt.plot(range(1, len(rewards) + 1), rewards, marker="x", label=f"run {name}")
plt.plot(range(1, len(curve) + 1), curve, marker="o", label="the run that learns")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Remove `pause_on`, print `directory`, and run A again. The server pauses the run before it
#   trains on nothing. What does `train` print meanwhile, and what does `ajet status DIRECTORY/A`
#   say in another terminal?
# - Break it in a way of your own. Is there a finding? If there is none, look at `metrics` of
#   `status().last_step`, which [metrics](../../../docs/metrics.md) explains.
# - [Health](../../../docs/health.md) lists all findings with their causes and ways out.
# - Before a long run, `ajet preflight` checks a batch without changing the model
#   ([preflight](../../../docs/preflight.md)).
