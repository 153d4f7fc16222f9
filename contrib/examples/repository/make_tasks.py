"""Break a repository whose tests pass, once for each task.

A bug is one small change of one line, as people make it: another comparison, a limit that is off by
one, a wrong operator. Bugs that no test of the repository notices, or that hidden tests do not
notice, are left out, and so are endless loops.
"""

import argparse
import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 20
PROMPT = (
    "The repository in the working directory has a bug, and some of its tests fail. Run them with "
    "`python3 -m unittest`. Repair the code in {module}; do not change the tests. Other tests, "
    "which you do not see, decide whether the repair is right."
)
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
}
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*"}
FUNCTIONS = {"min": "max", "max": "min"}


def changes(source):
    """Return the changed sources, each with one bug."""
    changed = []
    for node in ast.walk(ast.parse(source)):
        replaced = _replaced(node)
        if replaced is None or node.lineno != node.end_lineno:
            continue
        lines = source.splitlines(keepends=True)
        line = lines[node.lineno - 1].encode()
        new = line[: node.col_offset] + replaced.encode() + line[node.end_col_offset :]
        lines[node.lineno - 1] = new.decode()
        changed.append("".join(lines))
    return [text for text in changed if text != source and _parses(text)]


def _replaced(node):
    """Return another text for an expression, or None."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        return f"{left} {COMPARISONS[type(node.ops[0])]} {right}"
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return f"({ast.unparse(node.left)} {OPERATORS[type(node.op)]} {ast.unparse(node.right)})"
    if isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        return word.join(ast.unparse(value) for value in node.values)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return str(node.value + 1)
    if isinstance(node, ast.Name) and node.id in FUNCTIONS:
        return FUNCTIONS[node.id]
    return None


def _parses(text):
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def files_of(folder):
    """Return the texts of a repository by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def write(files, folder):
    """Write a repository."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def passes(command, folder):
    """Return whether a command ends with 0; None if it does not end in time."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def own_tests_pass(files):
    """Return whether the tests of a repository pass; None if they do not end in time."""
    with tempfile.TemporaryDirectory() as folder:
        write(files, Path(folder))
        return passes([sys.executable, "-B", "-m", "unittest"], folder)


def reward_of(files, hidden):
    """Return the reward that the hidden tests give a repository."""
    with tempfile.TemporaryDirectory() as folder:
        write(files, Path(folder))
        done = subprocess.run(
            [sys.executable, str(hidden / "grade.py")],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])["reward"]


def make_tasks(library, hidden, count, seed):
    """Return at most so many tasks, and the number of bugs that were left out."""
    right = files_of(library)
    if not own_tests_pass(right) or reward_of(right, hidden) != 1:
        raise SystemExit(f"the tests of {library} do not pass")
    modules = [name for name in right if not name.startswith("tests/")]
    bugs = [(name, text) for name in modules for text in changes(right[name])]
    random.Random(seed).shuffle(bugs)
    rows, left_out = [], 0
    for number, (name, text) in enumerate(bugs):
        if len(rows) == count:
            break
        broken = {**right, name: text}
        if own_tests_pass(broken) is not False or reward_of(broken, hidden) != 0:
            left_out += 1
            continue
        rows.append(
            {
                "id": f"{Path(name).stem}-{seed}-{number}",
                "prompt": PROMPT.format(module=name),
                "repository": broken,
                "solution": {name: right[name]},
            }
        )
    return rows, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).parent
    parser.add_argument("--library", type=Path, default=here / "library", help="the repository")
    parser.add_argument("--hidden", type=Path, default=here / "hidden", help="tests and grade.py")
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build"), help="directory to write")
    options = parser.parse_args()
    rows, left_out = make_tasks(options.library, options.hidden, options.count, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = options.out / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shutil.copytree(options.hidden, options.out / "tests", dirs_exist_ok=True)
    print(f"wrote {len(rows)} tasks to {tasks}; left out {left_out} bugs that tests do not notice")


if __name__ == "__main__":
    main()
