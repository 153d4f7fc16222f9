"""Write the repository of a task into the working directory, and start a program in it.

python3 start.py TASK_FILE PROGRAM [ARGUMENT]...
"""

import json
import os
import sys
from pathlib import Path


def main():
    task_file, *program = sys.argv[1:]
    task = json.loads(Path(task_file).read_text(encoding="utf-8"))
    for name, text in task["repository"].items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
