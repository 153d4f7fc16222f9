# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # 22. Production traffic
#
# An assistant that people use is asked what no benchmark asks, and its users say which answers were
# good. This tutorial trains on that. A log of one week records each request, its answer and whether
# it was accepted. Accepted requests become tasks. The next week has other requests, so acceptance
# then is an honest measure.

# %%
import json
import random
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from openai import OpenAI

from agentjet import LocalServer, RunConfig, Task, train, trainable
from ajet_worlds.tiny_grpo import TINY_GRPO
from ajet_worlds.tiny_model import ChatExample, create_tiny_model

directory = Path(tempfile.mkdtemp(prefix="production-"))
log = directory / "traffic.jsonl"

# %% [markdown]
# ## The users
#
# In reality they are people, and the log is that of your application. Here they are simulated: each
# has a request for one of four departments, in words of their own, and accepts the right one. Eight
# requests come in the next week only.

# %%
DEPARTMENTS = {
    "billing": ["invoice", "refund"],
    "delivery": ["parcel", "courier"],
    "login": ["password", "account"],
    "repairs": ["screen", "battery"],
}
WORDINGS = [
    "My {} is wrong.",
    "I need help with my {}.",
    "Where is my {}?",
    "I cannot find my {}.",
    "There is a problem with the {}.",
    "Who can look at my {}?",
]
requests = [
    (wording.format(thing), department)
    for department, things in DEPARTMENTS.items()
    for thing in things
    for wording in WORDINGS
]
random.seed(0)
random.shuffle(requests)
this_week, next_week = requests[:40], requests[40:]

# %% [markdown]
# ## The assistant
#
# It answers with a department. The same function serves users and is trained. The model that was
# deployed is right in some cases more than chance.

# %%
llm = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="not used in training")


def answer(messages):
    reply = llm.chat.completions.create(model="tiny", messages=messages, max_tokens=8)
    return reply.choices[0].message.content


def user(text):
    return [{"role": "user", "content": text}]


examples = []
for _ in range(300):
    text, department = random.choice(requests)
    right = random.random() < 0.15
    said = department if right else random.choice(list(DEPARTMENTS))
    examples.append(ChatExample([*user(text), {"role": "assistant", "content": said}]))
create_tiny_model(directory / "model", examples=examples)

# %% [markdown]
# ## Serve, and record
#
# Requests of users are evaluation episodes, which are never trained on. The user's reaction is
# their reward, which is a statistic here. What is kept is a line of the log: the request, the
# answer, and whether it was accepted.


# %%
def serve(task):
    said = answer(task["messages"])
    accepted = said == task["wanted"]
    if task["recorded"]:
        row = {"messages": task["messages"], "answer": said, "accepted": accepted}
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return float(accepted)


def serve_users(name, visits, recorded):
    """Serve so many users; return the share of accepted answers."""
    tasks = [
        Task(
            f"{name}, user {n}",
            payload={"messages": user(text), "wanted": wanted, "recorded": recorded},
        )
        for n, (text, wanted) in enumerate(visits)
    ]
    report = server.client.run_episodes_until_all_complete(
        tasks, trainable(serve).agent, episodes_per_task=1, kind="eval"
    )
    return report.reward_mean


server = LocalServer(directory).start()
config = RunConfig.model_validate(
    {
        "model": {"path": str(directory / "model")},
        "batch": {"tasks": 8, "episodes_per_task": 12},
        "algorithm": TINY_GRPO,
    }
)
server.start_run(config)
before = serve_users("this week", random.choices(this_week, k=320), recorded=True)
print(f"this week: accepted {before:.2f} of 320 answers")

# %% [markdown]
# ## From a log to tasks
#
# Each accepted request is a task, once, however many users had it. The reward asks whether the
# model gives the answer that was accepted. A request whose answers were all refused is left out:
# its rows only say what was wrong.

# %%
rows = [json.loads(line) for line in log.read_text().splitlines()]
accepted = {row["messages"][0]["content"]: row for row in rows if row["accepted"]}
tasks = [{"id": text, **row} for text, row in accepted.items()]
print(f"log: {len(rows)} requests, {len(tasks)} different ones with an accepted answer")


@trainable(reward="exact")
def learn(task):
    return answer(task["messages"])


# %% [markdown]
# ## Train, and serve the next week
#
# Each epoch has eight tasks of the log, and is one step. After every second step, 64 users of the
# next week come with requests that are not in the log. They are not recorded, and nothing is
# trained on them.

# %%
curve, on_log = [], []
for step in range(1, 25):
    report = train(
        learn, random.sample(tasks, 8), client=server.client, config=config, progress=False
    )
    on_log.append(report.reward_mean)
    if step % 2 == 0:
        server.client.wait_for_step(step)
        curve.append(serve_users(f"step {step}", next_week * 8, recorded=False))
        print(f"step {step:2}: log {on_log[-1]:.2f}, next week: accepted {curve[-1]:.2f}")
server.client.stop_engine()
server.close()

# %%
steps = range(1, len(on_log) + 1)
plt.plot(steps, on_log, linestyle=":", label="requests of the log")
plt.plot(steps[1::2], curve, marker="o", label="requests of the next week")
plt.axhline(before, color="grey", linewidth=0.5, label="as deployed")
plt.xlabel("training step")
plt.ylabel("accepted answers")
plt.ylim(0, 1)
plt.legend()
plt.savefig("curve.png")

# %% [markdown]
# ## What to try next
#
# - Let a tenth of the users accept anything. How much of that does the model learn? Count how many
#   users have accepted the same answer before you believe it.
# - Let one user send the same request a hundred times with a wrong answer accepted. What keeps this
#   from becoming a hundred tasks, and what does it not keep?
# - Use refused answers too: give 0 for an answer that was refused, and a little for any other one.
# - Before new weights serve users, compare them with the old ones on yesterday's log
#   ([evaluation](../../../docs/evaluation.md)), and go back with `ajet resume --from-step`.
# - Logs have secrets and personal data. Remove both before they are training data, and keep what
#   users asked you to delete out of it.
# - A log in the form of OpenAI's messages is a source for
#   [`ajet train`](../../../docs/sources.md#shapes), and the best conversations are one for
#   [`ajet sft`](../../../docs/sft.md).
