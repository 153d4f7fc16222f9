# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 20. A CrewAI crew
#
# A framework writes prompts that you have never seen: roles, goals and backstories become long
# texts. This tutorial first looks at them, and then trains the crew as it is.
#
# It needs `pip install "agentjet[crewai]>=0.1"`.

# %%
import os
import random
import tempfile
from pathlib import Path

os.environ["CREWAI_DISABLE_TELEMETRY"] = "true"

import matplotlib.pyplot as plt
from crewai import LLM, Agent, BaseLLM, Crew, Task

from agentjet import LocalServer, RunConfig, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

# %% [markdown]
# ## The crew
#
# One agent with one task. `{animal}` is an input of the crew. Without `max_retry_limit=0`, CrewAI
# would repeat a task whose call has failed.

# %%
SOUNDS = {"cat": "meow", "cow": "moo", "dog": "woof", "duck": "quack"}


def make_crew(llm):
    expert = Agent(
        role="zoologist",
        goal="Know all sounds.",
        backstory="You grew up on a farm.",
        llm=llm,
        max_retry_limit=0,
    )
    task = Task(
        description="What does the {animal} say?", expected_output="One word.", agent=expert
    )
    return Crew(agents=[expert], tasks=[task], verbose=False)


# %% [markdown]
# ## What the crew asks
#
# A model of CrewAI is any subclass of `BaseLLM`. This one writes down what it is asked and always
# answers the same.


# %%
class Notebook(BaseLLM):
    def call(self, messages, *_, **__):
        asked.append([dict(message) for message in messages])
        return "moo"


asked = []
make_crew(Notebook(model="notebook")).kickoff(inputs={"animal": "cow"})
print(f"{len(asked)} call")
for message in asked[0]:
    print(f"{message['role']}:")
    print("    " + message["content"].replace("\n", "\n    "))

# %% [markdown]
# ## The model
#
# The tiny model imitates answers to exactly these prompts, with sounds that are mostly drawn at
# random.

# %%
random.seed(0)


def prompt(animal):
    keys = ("role", "content")
    return [{key: m[key].replace("cow", animal) for key in keys} for m in asked[0]]


examples = []
for _ in range(200):
    animal = random.choice(list(SOUNDS))
    sound = SOUNDS[animal] if random.random() < 0.2 else random.choice(list(SOUNDS.values()))
    examples.append(ChatExample([*prompt(animal), {"role": "assistant", "content": sound}]))

directory = Path(tempfile.mkdtemp(prefix="crewai-"))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## The training
#
# A run writes into the crew. So each episode has a copy of it. CrewAI raises if an answer is empty:
# such an episode is aborted, and rolled out again.

# %%
crew = make_crew(
    LLM(
        model="any",
        provider="openai",
        base_url="http://127.0.0.1:9/v1",
        api_key="not used in training",
        max_tokens=16,
    )
)


@trainable(reward=lambda task, output: float(output.raw.strip() == SOUNDS[task["id"]]))
def answer(task):
    return crew.copy().kickoff(inputs={"animal": task["id"]})


server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 4, "episodes_per_task": 12},
        "algorithm": TINY_GRPO,
    }
)
tasks = [{"id": animal} for animal in SOUNDS]
curve = []
for step in range(1, 15):
    report = train(answer, tasks, client=server.client, config=config, progress=False)
    curve.append(report.reward_mean)
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
# - Call `answer.plain` with a task. It asks the endpoint that `LLM` names: outside of training,
#   nothing is changed.
# - Give the crew a second agent with a task whose `context` is the first one. Which of the two is
#   trained? Both, under the names of their roles.
# - Give the agent a tool, and read the new prompts with `Notebook`. How does the crew call it?
# - Change the backstory after the training. Is the model still right? A model that was trained on
#   one prompt may depend on it: vary it in training.
# - The adapter's [README](../../../plugins/agents_crewai/README.md) says what it does with retries,
#   memory and telemetry.
