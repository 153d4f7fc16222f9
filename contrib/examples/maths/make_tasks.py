"""Write word problems in the form of GSM8K: question, and a solution that ends in ``#### 72``."""

import argparse
import json
import random
from pathlib import Path

NAMES = ["Ada", "Ben", "Chidi", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jonas"]
THINGS = ["apples", "books", "cards", "marbles", "pencils", "shells", "stamps", "tickets"]


def shopping(rng):
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    count, price, paid = rng.randint(3, 12), rng.randint(2, 9), rng.randint(0, 5)
    cost = count * price
    note = cost + 5 * (paid + 1)
    question = (
        f"{name} buys {count} {thing} for {price} dollars each and pays with {note} dollars. "
        "How many dollars of change are there?"
    )
    steps = [
        f"{count} {thing} cost {count} * {price} = {cost} dollars.",
        f"The change is {note} - {cost} = {note - cost} dollars.",
    ]
    return question, steps, note - cost


def sharing(rng):
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    friends, each, kept = rng.randint(2, 8), rng.randint(3, 15), rng.randint(1, 9)
    total = friends * each + kept
    question = (
        f"{name} has {total} {thing}, keeps {kept} of them and shares the others equally among "
        f"{friends} friends. How many {thing} does each friend get?"
    )
    steps = [
        f"{name} shares {total} - {kept} = {total - kept} {thing}.",
        f"Each friend gets {total - kept} / {friends} = {each} {thing}.",
    ]
    return question, steps, each


def reading(rng):
    name = rng.choice(NAMES)
    pages, days, more = rng.randint(8, 30), rng.randint(2, 6), rng.randint(2, 12)
    first = pages * days
    second = (pages + more) * days
    left = rng.randint(5, 60)
    question = (
        f"{name} reads {pages} pages a day for {days} days, and then {more} pages a day more than "
        f"that for another {days} days. The book has {first + second + left} pages. How many pages "
        "are left?"
    )
    steps = [
        f"In the first days, {name} reads {pages} * {days} = {first} pages.",
        f"Then it is {pages} + {more} = {pages + more} pages a day.",
        f"In these days it is {pages + more} * {days} = {second} pages.",
        f"{first + second + left} - {first} - {second} = {left} pages are left.",
    ]
    return question, steps, left


def travelling(rng):
    name = rng.choice(NAMES)
    speed, hours, pause = rng.choice([40, 50, 60, 80, 90]), rng.randint(2, 5), rng.randint(1, 3)
    slower = speed - 10 * rng.randint(1, 3)
    total = speed * hours + slower * pause
    question = (
        f"{name} drives {hours} hours at {speed} km per hour, and then {pause} hours at {slower} "
        "km per hour. How many km is that in all?"
    )
    steps = [
        f"The first part is {hours} * {speed} = {hours * speed} km.",
        f"The second part is {pause} * {slower} = {pause * slower} km.",
        f"In all it is {hours * speed} + {pause * slower} = {total} km.",
    ]
    return question, steps, total


def saving(rng):
    name, other = rng.sample(NAMES, 2)
    weeks, mine, gift = rng.randint(3, 10), rng.randint(4, 15), rng.randint(5, 30)
    factor = rng.randint(2, 4)
    own = weeks * mine + gift
    question = (
        f"{name} saves {mine} dollars a week for {weeks} weeks and gets a gift of {gift} dollars. "
        f"{other} has {factor} times as much as {name} has then. How many dollars do the two have "
        "together?"
    )
    steps = [
        f"{name} saves {mine} * {weeks} = {mine * weeks} dollars.",
        f"With the gift it is {mine * weeks} + {gift} = {own} dollars.",
        f"{other} has {factor} * {own} = {factor * own} dollars.",
        f"Together it is {own} + {factor * own} = {own + factor * own} dollars.",
    ]
    return question, steps, own + factor * own


KINDS = [shopping, sharing, reading, travelling, saving]


def make_tasks(count, seed):
    """Return so many different problems."""
    rng = random.Random(seed)
    rows, seen = [], set()
    while len(rows) < count:
        question, steps, number = KINDS[len(rows) % len(KINDS)](rng)
        if question not in seen:
            seen.add(question)
            rows.append({"question": question, "answer": "\n".join([*steps, f"#### {number}"])})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sample.jsonl"))
    options = parser.parse_args()
    rows = make_tasks(options.count, options.seed)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {len(rows)} problems to {options.out}")


if __name__ == "__main__":
    main()
