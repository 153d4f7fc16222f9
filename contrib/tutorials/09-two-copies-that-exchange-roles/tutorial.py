# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 9. Two copies that exchange roles
#
# CORY ([arXiv:2410.06101](https://arxiv.org/abs/2410.06101)) trains two copies of a model
# together. The pioneer answers a question. The observer sees the question *and* the pioneer's
# answer, and then answers itself. Both get the sum of their rewards. In each round they exchange
# their roles, so that both learn to answer alone.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, Swarm
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The pair
#
# A joint episode has a part for each copy. Which of them is the pioneer is ordinary Python.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
COPIES = ["left", "right"]
llm = OpenAI(base_url="http://per.episode", api_key="per episode")


def ask(part, text):
    own = llm.with_options(base_url=part.base_url, api_key=part.api_key)
    messages = [{"role": "user", "content": text}]
    reply = own.chat.completions.create(model=part.model, messages=messages, max_tokens=8)
    return reply.choices[0].message.content


def pair(pioneer, observer, alone):
    """Return an agent. It notes in `alone` whether the pioneer was right."""

    def agent(task, episode):
        question = f"What does the {task.id} say?"
        first = ask(episode[pioneer], question)
        second = ask(episode[observer], f"{question} I heard {first}.")
        right = [float(answer == SOUNDS[task.id]) for answer in (first, second)]
        alone.append(right[0])
        return {copy: sum(right) for copy in COPIES}

    return agent


# %% [markdown]
# ## One model, twice
#
# It imitates answers to both forms of the question, which are mostly drawn at random.

# %%
random.seed(0)
examples = []
for _ in range(300):
    animal, heard = random.choice(list(SOUNDS)), random.choice(list(SOUNDS.values()))
    question = f"What does the {animal} say?"
    for text in (question, f"{question} I heard {heard}."):
        right = random.random() < 0.2
        sound = SOUNDS[animal] if right else random.choice(list(SOUNDS.values()))
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": sound}]
        examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="two-copies-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# Each copy has a server of its own, and both start from the same model.

# %%
servers = {copy: LocalServer(directory / copy, models=directory).start() for copy in COPIES}
for server in servers.values():
    server.start_run(
        RunConfig.model_validate(
            {
                "model": {"path": str(directory / "model")},
                "batch": {"tasks": 4, "episodes_per_task": 16},
                "algorithm": TINY_GRPO,
            }
        )
    )

urls = {copy: server.client.url for copy, server in servers.items()}
tokens = {copy: server.client_token for copy, server in servers.items()}
curve = []
with Swarm(urls, tokens) as swarm:
    for step in range(1, 19):
        pioneer, observer = COPIES if step % 2 else reversed(COPIES)
        alone = []
        agent = pair(pioneer, observer, alone)
        swarm.run_episodes_until_all_complete(list(SOUNDS), agent, episodes_per_task=16)
        curve.append(sum(alone) / len(alone))
        print(f"step {step:2}: {pioneer} is right alone in {curve[-1]:.2f}")

for server in servers.values():
    server.close()

# %%
steps = range(1, len(curve) + 1)
for first, copy in enumerate(COPIES):
    plt.plot(steps[first::2], curve[first::2], marker="o", label=f"{copy} as the pioneer")
plt.xlabel("training step")
plt.ylabel("right answers of the pioneer, alone")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Do not exchange the roles. Can the observer answer alone in the end? Ask it without `I heard`.
# - Give each copy its own reward instead of the sum. Who loses?
# - Train one copy alone, as in the [first tutorial](../01-first-agent/tutorial.py), for as many
#   episodes. Is the pair better?
# - Let the two play *against* each other: give the observer the negative of the pioneer's reward.
# - [Several models](../../../docs/joint.md) has the details of joint episodes.
