# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 21. A game between teams of different strength
#
# Two teams, two models, and both learn while they play against each other. What one of them wins,
# the other one loses. So the mean reward says who is ahead, and nothing about how well they play:
# it can fall while a team gets better. This tutorial measures both.

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
# ## The game
#
# A match has three rounds. In each round both teams are asked for the sound of the same animal. A
# team has two players: the second one hears what the first one said, and answers for the team. A
# team that is right wins the round if the other one is wrong. The reward of a match is the share of
# rounds won, less the share of rounds lost.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
TEAMS = ["blue", "red"]
MATCHES = {
    "match 1": ["cat", "cow", "dog"],
    "match 2": ["cow", "dog", "duck"],
    "match 3": ["dog", "duck", "cat"],
    "match 4": ["duck", "cat", "cow"],
}
llm = OpenAI(base_url="http://per.episode", api_key="per episode")


def ask(part, text):
    own = llm.with_options(base_url=part.base_url, api_key=part.api_key)
    messages = [{"role": "user", "content": text}]
    reply = own.chat.completions.create(model=part.model, messages=messages, max_tokens=8)
    return reply.choices[0].message.content


def answer_of(part, animal):
    question = f"What does the {animal} say?"
    first = ask(part, question)
    return ask(part, f"{question} I think {first}.")


def referee(notes):
    """Return an agent. It adds to `notes` how many answers of each team were right."""

    def play(task, episode):
        won = 0
        for animal in MATCHES[task.id]:
            right = {team: answer_of(episode[team], animal) == SOUNDS[animal] for team in TEAMS}
            won += right["blue"] - right["red"]
            for team in TEAMS:
                notes[team].append(right[team])
        lead = won / len(MATCHES[task.id])
        return {"blue": lead, "red": -lead}

    return play


# %% [markdown]
# ## Two teams
#
# Red is stronger: its model is wider, and it has seen more right answers. Blue mostly guesses.

# %%
STRENGTH = {"blue": (32, 0.1), "red": (64, 0.4)}
directory = Path(tempfile.mkdtemp(prefix="teams-"))
for team, (width, knows) in STRENGTH.items():
    random.seed(0)
    examples = []
    for _ in range(300):
        animal, heard = random.choice(list(SOUNDS)), random.choice(list(SOUNDS.values()))
        question = f"What does the {animal} say?"
        for text in (question, f"{question} I think {heard}."):
            right = random.random() < knows
            sound = SOUNDS[animal] if right else random.choice(list(SOUNDS.values()))
            messages = [{"role": "user", "content": text}, {"role": "assistant", "content": sound}]
            examples.append(ChatExample(messages))
    create_tiny_model(directory / team / "model", examples=examples, hidden=width)

# %% [markdown]
# ## The season
#
# Each model has a server of its own. A match is a joint episode: both teams are trained on it, or
# none. Each step, every match is played 12 times, and each team learns which of its games were
# better than the others of the same match.

# %%
servers = {team: LocalServer(directory / team).start() for team in TEAMS}
for team, server in servers.items():
    server.start_run(
        RunConfig.model_validate(
            {
                "model": {"path": str(directory / team / "model")},
                "batch": {"tasks": 4, "episodes_per_task": 12},
                "algorithm": TINY_GRPO,
            }
        )
    )

urls = {team: server.client.url for team, server in servers.items()}
tokens = {team: server.client_token for team, server in servers.items()}
skill = {team: [] for team in TEAMS}
leads = []
with Swarm(urls, tokens) as swarm:
    for step in range(1, 17):
        notes = {team: [] for team in TEAMS}
        report = swarm.run_episodes_until_all_complete(
            list(MATCHES), referee(notes), episodes_per_task=12
        )
        for team in TEAMS:
            skill[team].append(sum(notes[team]) / len(notes[team]))
        leads.append(skill["red"][-1] - skill["blue"][-1])
        said = ", ".join(f"{team} is right in {skill[team][-1]:.2f}" for team in TEAMS)
        print(f"step {step:2}: {said}; red leads by {leads[-1]:+.2f}")

for server in servers.values():
    server.close()
curve = skill["blue"]

# %% [markdown]
# ## The curves
#
# Both teams get better, the weaker one as well, although it loses most matches at first: its own
# better games are compared with its own worse ones, and not with those of the other team.

# %%
steps = range(1, len(curve) + 1)
for team in TEAMS:
    plt.plot(steps, skill[team], marker="o", color=team, label=f"{team}: share of right answers")
plt.plot(steps, leads, linestyle=":", color="grey", label="reward of red")
plt.axhline(0, color="grey", linewidth=0.5)
plt.xlabel("training step")
plt.ylim(-0.2, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Make red perfect (`0.95`). Blue then hardly ever wins a round. What does it still learn from,
#   and when would it need a weaker opponent?
# - Give blue a start of one round. Does it learn faster? Does red?
# - Reward the matches with 1 for a victory and -1 for a defeat. Which team suffers more from the
#   coarser reward?
# - Freeze red: start it once with `ajet serve`, and ask it as an ordinary endpoint. Is learning
#   against a fixed opponent easier?
# - [Two copies that exchange roles](../09-two-copies-that-exchange-roles/tutorial.py) cooperate
#   instead. [Several models](../../../docs/joint.md) has the details of joint episodes.
