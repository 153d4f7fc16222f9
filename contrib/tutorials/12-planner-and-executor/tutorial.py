# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 12. A team of two models
#
# A planner sees the task and writes a plan. An executor sees only the plan and acts. They are two
# models, each with a server of its own, and they learn together from the success of the team.
#
# Here the plan is one letter. No rule says what a letter means: the two have to agree on it.

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
# ## The team
#
# `agent` gets an episode with a part for each role. Each part has its own endpoint and key. It
# returns a reward for each role: here they share success and failure.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
LETTERS = ["A", "B", "C", "D"]
llm = OpenAI(base_url="http://per.episode", api_key="per episode")


def ask(part, text):
    own = llm.with_options(base_url=part.base_url, api_key=part.api_key)
    messages = [{"role": "user", "content": text}]
    reply = own.chat.completions.create(model=part.model, messages=messages, max_tokens=8)
    return reply.choices[0].message.content


def agent(task, episode):
    letter = ask(episode["planner"], f"We meet a {task.id}.")
    sound = ask(episode["executor"], f"The plan is {letter}.")
    success = float(sound == SOUNDS[task.id])
    return {"planner": success, "executor": success}


# %% [markdown]
# ## Two models
#
# The planner imitates random letters, and the executor random sounds. Both have a slight habit, as
# people have who try to be understood: without any, the team would need many more steps to agree.

# %%
random.seed(0)
HABIT = 0.25
planner, executor = [], []
for _ in range(300):
    number = random.randrange(4)
    animal, letter, sound = list(SOUNDS)[number], LETTERS[number], list(SOUNDS.values())[number]
    said = letter if random.random() < HABIT else random.choice(LETTERS)
    made = sound if random.random() < HABIT else random.choice(list(SOUNDS.values()))
    for examples, text, answer in (
        (planner, f"We meet a {animal}.", said),
        (executor, f"The plan is {letter}.", made),
    ):
        messages = [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="team-"))
create_tiny_model(directory / "planner" / "model", examples=planner)
create_tiny_model(directory / "executor" / "model", examples=executor, hidden=32)

# %% [markdown]
# ## Two servers, one client
#
# A joint episode ends on all servers or on none, even if a program is killed in between. So both
# models always train on the same episodes.

# %%
roles = ["planner", "executor"]
servers = {role: LocalServer(directory / role).start() for role in roles}
for role, server in servers.items():
    server.start_run(
        RunConfig.model_validate(
            {
                "model": {"path": str(directory / role / "model")},
                "batch": {"tasks": 4, "episodes_per_task": 16},
                "algorithm": TINY_GRPO,
            }
        )
    )

urls = {role: server.client.url for role, server in servers.items()}
tokens = {role: server.client_token for role, server in servers.items()}
curve = []
with Swarm(urls, tokens) as swarm:
    for step in range(1, 21):
        report = swarm.run_episodes_until_all_complete(list(SOUNDS), agent, episodes_per_task=16)
        curve.append(report.reward_mean)
        print(f"step {step:2}: success of the team {curve[-1]:.2f}")

for server in servers.values():
    server.close()

# %%
plt.plot(range(1, len(curve) + 1), curve, marker="o")
plt.xlabel("training step")
plt.ylabel("success of the team")
plt.ylim(0, 1)
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Which letter means which animal? Ask the planner after the training, before the servers close.
# - Remove the habit of one of the two. Which one can learn the other's language?
# - Give each role a reward of its own: the planner for a letter that it used for no other animal,
#   say. When does this help, and when is it a hole?
# - [Several models](../../../docs/joint.md) has the details, and `ajet demo --two-models` a larger
#   example.
