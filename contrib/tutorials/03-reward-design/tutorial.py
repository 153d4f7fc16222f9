# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 3. Reward design, and a reward that is hacked
#
# A model learns what is rewarded, and not what you mean. This tutorial trains the same model twice:
# with a reward that looks right and has a hole, which the model finds, and with one that has none.

# %%
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import EpisodeOutcome, LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The task
#
# Again the sounds of animals. But this model is talkative: it answers with one to four sounds.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
tasks = [{"id": animal, "sound": sound} for animal, sound in SOUNDS.items()]
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def question(animal):
    return [{"role": "user", "content": f"What does the {animal} say?"}]


random.seed(0)
examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sounds = random.choices(list(SOUNDS.values()), k=random.randint(1, 4))
    if random.random() < 0.1:
        sounds = [SOUNDS[animal]]
    answer = {"role": "assistant", "content": " ".join(sounds)}
    examples.append(ChatExample([*question(animal), answer]))

directory = Path(tempfile.mkdtemp(prefix="reward-design-"))
create_tiny_model(directory / "model", examples=examples)


def ask(task):
    reply = llm.chat.completions.create(model="tiny", messages=question(task["id"]), max_tokens=16)
    return reply.choices[0].message.content


# %% [markdown]
# ## Two rewards
#
# The first one asks whether the right sound *is in* the answer. Many programs that score answers do
# this, because answers come with words around them.
#
# The second one asks whether the answer *is* the right sound.
#
# Both also report what we care about as components of the outcome. Components are not trained: they
# are there to be looked at.


# %%
def is_in(task, answer):
    return float(task["sound"] in answer)


def is_exactly(task, answer):
    return float(answer == task["sound"])


def outcome(reward, task, answer):
    wanted = {"right": is_exactly(task, answer), "sounds": float(len(answer.split()))}
    return EpisodeOutcome(reward=reward(task, answer), components=wanted)


# %% [markdown]
# ## The training
#
# A function that trains the same model with a given reward, on a server of its own, and returns the
# curves.

# %%
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 16},
        "algorithm": TINY_GRPO,
    }
)


def mean(values):
    return sum(values) / len(values)


def run(folder, reward):
    server = LocalServer(directory / folder, models=directory).start()
    last = {}

    @trainable(reward=lambda task, answer: outcome(reward, task, answer))
    def solve(task):
        last[task["id"]] = ask(task)
        return last[task["id"]]

    curves = {"reward": [], "right": [], "sounds": []}
    for step in range(1, 25):
        report = train(solve, tasks, client=server.client, config=config)
        outcomes = [result.outcome for result in report.outcomes]
        curves["reward"].append(mean([one.reward for one in outcomes]))
        for name in ("right", "sounds"):
            curves[name].append(mean([one.components[name] for one in outcomes]))
        if step % 4 == 0 or step == 1:
            print(f"step {step:2}:", *(f"{name} {curve[-1]:.2f}" for name, curve in curves.items()))
    for animal, answer in last.items():
        print(f"  the {animal} says: {' '.join(answer.split()[:8])}")
    server.close()
    return curves


# %% [markdown]
# ## A hacked reward, seen
#
# The reward rises to 1, and a dashboard would look fine. But the model learns to say many sounds,
# because one of them will be the right one. The share of answers that *are* right falls.
#
# This is the way to see it: report what you want as a component beside the reward, and read some
# answers in each run.

# %%
hacked = run("hacked", is_in)

# %% [markdown]
# ## Mended
#
# The hole is that more sounds cost nothing. The second reward closes it.

# %%
mended = run("mended", is_exactly)

# %%
curve = mended["right"]
steps = range(1, len(curve) + 1)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
for axes, curves, title in ((left, hacked, "is in"), (right, mended, "is exactly")):
    axes.plot(steps, curves["reward"], marker="o", label="reward")
    axes.plot(steps, curves["right"], marker="x", label="answers that are right")
    axes.plot(steps, [n / 10 for n in curves["sounds"]], ":", label="sounds in an answer / 10")
    axes.set(title=f"reward: the right sound {title} the answer", xlabel="training step")
right.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Mend it in another way: give 1 divided by the number of sounds, if the right one is among them.
#   Why may this be easier to learn from than all or nothing?
# - Reward the length of answers alone. How many steps does it take until all answers have four
#   sounds? A model learns the easiest thing first.
# - Where do you have such a hole? Ask what the cheapest answer would be that gets your reward.
# - [Judges](../../../docs/agents.md#datasets-and-judges-by-name) are rewards by name, such as
#   `exact`, `regex` and `unit_tests`.
# - Reward single steps: [step rewards](../04-step-rewards/tutorial.py).
