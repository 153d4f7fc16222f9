# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 4. Step rewards
#
# An agent makes many calls, and one reward at the end has to do for all of them. If three of four
# calls were good, the good ones and the bad one are rewarded alike. If you know which call was
# good, say so: with rewards of single calls the same model learns in fewer steps.

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
# ## An agent with four calls
#
# It asks for the sounds of four animals, in one conversation. It returns the id of each completion
# with its answer: by this id the server knows which call is meant.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def question(animal):
    return {"role": "user", "content": f"What does the {animal} say?"}


def solve(task):
    messages, answers = [], {}
    for animal in task["animals"]:
        messages.append(question(animal))
        reply = llm.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
        answers[reply.id] = reply.choices[0].message.content
        messages.append({"role": "assistant", "content": answers[reply.id]})
    return answers


random.seed(0)
orders = [random.sample(list(SOUNDS), 4) for _ in range(204)]
tasks = [{"id": " ".join(order), "animals": order} for order in orders[:4]]

# %% [markdown]
# ## The same score, given in two ways
#
# Each right answer is worth a quarter. The first reward gives the sum to the episode. The second
# gives each call its own quarter. The component `score` is the same for both, so that we can
# compare them.


# %%
def quarters(task, answers):
    pairs = zip(task["animals"], answers.items(), strict=True)
    return {call: 0.25 * (answer == SOUNDS[animal]) for animal, (call, answer) in pairs}


def at_the_end(task, answers):
    score = sum(quarters(task, answers).values())
    return EpisodeOutcome(reward=score, components={"score": score})


def at_each_step(task, answers):
    calls = quarters(task, answers)
    score = sum(calls.values())
    return EpisodeOutcome(reward=0.0, call_rewards=calls, components={"score": score})


# %% [markdown]
# ## The training
#
# The model is tiny, and imitates examples that are mostly random. With `discount` 0, a call is
# credited with its own reward alone. With 1, it would also be credited with those of later calls.
# That is right for agents whose early calls decide what is possible later, and it is noise here.

# %%
examples = []
for order in orders[4:]:
    messages = []
    for animal in order:
        sound = SOUNDS[animal] if random.random() < 0.1 else random.choice(list(SOUNDS.values()))
        messages += [question(animal), {"role": "assistant", "content": sound}]
    examples.append(ChatExample(messages))

directory = Path(tempfile.mkdtemp(prefix="step-rewards-"))
create_tiny_model(directory / "model", examples=examples)


def run(name, reward, discount):
    server = LocalServer(directory / name, models=directory).start()
    config = RunConfig.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "batch": {"tasks": 4, "episodes_per_task": 8},
            "algorithm": TINY_GRPO.model_copy(update={"discount": discount}),
        }
    )
    agent = trainable(solve, reward=reward)
    curve = []
    for step in range(1, 13):
        report = train(agent, tasks, client=server.client, config=config)
        scores = [result.outcome.components["score"] for result in report.outcomes]
        curve.append(sum(scores) / len(scores))
        print(f"step {step:2}: score {curve[-1]:.2f}")
    server.close()
    return curve


# %%
print("reward at the end of the episode")
end = run("end", at_the_end, discount=1.0)

# %%
print("reward at each step")
curve = run("step", at_each_step, discount=0.0)

# %% [markdown]
# ## The curves
#
# Both runs start from the same model and see as many episodes. With a reward for each call, the
# model learns what each of its answers was worth.

# %%
steps = range(1, len(curve) + 1)
plt.plot(steps, end, marker="o", label="reward at the end")
plt.plot(steps, curve, marker="o", label="reward at each step")
plt.xlabel("training step")
plt.ylabel("score: share of right answers")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Give the step rewards with `discount=1.0`. Then early calls are credited with the luck of later
#   ones. How much slower is it?
# - Ask eight questions instead of four. Which of the two rewards suffers more?
# - A wrong step reward is worse than none: reward each answer that is a sound with a quarter. What
#   does the model learn?
# - How rewards become advantages: [timelines](../../../docs/timelines.md).
# - What if nothing is learned at all?
#   [Why did it not learn?](../05-why-did-it-not-learn/tutorial.py)
