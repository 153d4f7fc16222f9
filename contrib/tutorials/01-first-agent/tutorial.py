# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 1. Your first agent
#
# An agent is a function that calls a model. Training it needs two more things: tasks, and a reward
# that says how good its answer to a task was. This tutorial trains the smallest possible agent: it
# answers a question, and learns from rewards alone which answer is right.

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
# ## The tasks
#
# Each task is a question about an animal, with the right answer next to it.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
tasks = [{"id": animal, "sound": sound} for animal, sound in SOUNDS.items()]


def question(animal):
    return [{"role": "user", "content": f"What does the {animal} say?"}]


# %% [markdown]
# ## The agent
#
# It is written as for any model behind an API that speaks OpenAI's language. `@trainable` is the
# only trace of agentjet: while the agent is trained, it routes the call to the model in training.
# The reward function gets the task and what the agent returned.

# %%
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def score(task, answer):
    return 1.0 if answer == task["sound"] else 0.0


@trainable(reward=score)
def solve(task):
    reply = llm.chat.completions.create(model="tiny", messages=question(task["id"]), max_tokens=8)
    return reply.choices[0].message.content


# %% [markdown]
# ## The model
#
# A real run starts from a model that was trained on much text. For two CPU cores we make a tiny
# one (0.1 million parameters) and let it imitate 200 examples. Most of their answers are drawn at
# random. So the model learns that the answer is a sound, but hardly which one.

# %%
directory = Path(tempfile.mkdtemp(prefix="first-agent-"))
random.seed(0)
examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    answer = {"role": "assistant", "content": sound}
    examples.append(ChatExample([*question(animal), answer]))

create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# A swarm server serves the model and trains it. A batch has 4 tasks with 16 episodes each: the
# agent answers each question 16 times. Answers that were better than the average of these 16 become
# more probable, the others less so. This is GRPO: `TINY_GRPO` has its settings for a model of this
# size, and `group_mean` compares rewards with their average alone. Each call of `train` below is
# one batch, and so one training step.

# %%
server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO.model_copy(update={"advantage": "group_mean"}),
    }
)

curve = []
for step in range(1, 21):
    report = train(solve, tasks, client=server.client, config=config)
    curve.append(report.reward_mean)
    print(f"step {step:2}: mean reward {curve[-1]:.2f}")

server.close()

# %% [markdown]
# ## The curve
#
# At first about two answers in five are right, and in the end nearly all. The model was never
# shown the right answers: it found them by trying, because they were rewarded.

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("mean reward")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Teach it one more animal: add it to `SOUNDS`, and set `tasks` of the batch to 5.
# - Remove `if random.random() < 0.2`, so that all examples are random. How many more steps does the
#   model need, when it is right by chance alone?
# - Set `episodes_per_task` to 2. Why is it harder to learn from fewer answers to the same question?
# - See [every token](../02-see-every-token/tutorial.py) that the model was trained on.
