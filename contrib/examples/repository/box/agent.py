"""A coding agent with one tool, a shell. It needs nothing but Python."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request

MOST_CALLS = 20
MAX_TOKENS = 1024
MOST_CHARACTERS = 4000
SECONDS = 60
SYSTEM = (
    "You repair the repository in the working directory with the tool run, which runs a shell "
    "command there. Look at the code, find the bug, change the code, and run the tests. When they "
    "pass, say what was wrong in one sentence."
)
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a shell command in the working directory.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def complete(messages):
    """Return the model's next message."""
    body = {
        "model": os.environ["AJET_MODEL"],
        "messages": messages,
        "tools": [TOOL],
        "max_tokens": MAX_TOKENS,
    }
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def run(arguments):
    """Run a command; return what it printed, the middle left out if it is long."""
    try:
        command = json.loads(arguments)["command"]
        done = subprocess.run(
            ["sh", "-c", str(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except (ValueError, KeyError, TypeError):
        return 'error: the arguments have to be like {"command": "ls"}'
    except subprocess.TimeoutExpired:
        return f"error: the command took longer than {SECONDS} s"
    text = done.stdout.decode(errors="replace")
    if len(text) > MOST_CHARACTERS:
        half = MOST_CHARACTERS // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return f"{text}\nexit status {done.returncode}"


def main():
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sys.argv[1]}]
    for _ in range(MOST_CALLS):
        try:
            message = complete(messages)
        except urllib.error.HTTPError as error:
            # The episode has used up its calls or tokens, or the context is full.
            print(f"the server refused the call: {error.read().decode(errors='replace')}")
            return
        messages.append(message)
        print(message.get("content") or "")
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            result = run(call["function"]["arguments"])
            print(f"$ {call['function']['arguments']}\n{result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    main()
