"""Write tasks of the shop: its tables, a request, and the state after the right actions."""

import argparse
import json
import random
from pathlib import Path

from shop import Shop

FIRST = ["Ada", "Ben", "Chidi", "Dora", "Emil", "Fatima", "Goran", "Hana"]
LAST = ["Abel", "Brandt", "Castro", "Dimov", "Eriksen", "Fontana"]
GOODS = ["lamp", "kettle", "chair", "clock", "rug", "vase", "shelf", "mirror"]
STREETS = ["Elm Street", "Mill Lane", "Park Road", "Station Square"]
KINDS = ["cancel", "cancel_all", "address", "quantity", "forbidden"]


def make_shop(rng):
    """Return the tables of a shop with six customers."""
    names = rng.sample([(first, last) for first in FIRST for last in LAST], 6)
    customers = [
        [
            f"C{number}",
            f"{first} {last}",
            f"{first}.{last}@example.com".lower(),
            f"{rng.randint(1, 99)} {rng.choice(STREETS)}",
        ]
        for number, (first, last) in enumerate(names, start=1)
    ]
    products = [[f"P{n}", name, rng.randint(3, 20)] for n, name in enumerate(GOODS, start=1)]
    orders = []
    for customer in customers:
        # Of each kind that tasks are about, so that every customer can have every request.
        for status in ("open", "open", "sent", rng.choice(["open", "cancelled"])):
            number = f"O{100 + len(orders)}"
            product = rng.choice(products)[0]
            orders.append([number, customer[0], product, rng.randint(1, 5), status])
    return {"customers": customers, "products": products, "orders": orders}


def make_task(kind, rng):
    """Return a request, and the actions that serve it."""
    tables = make_shop(rng)
    identity, _, email, _ = rng.choice(tables["customers"])
    own = [order for order in tables["orders"] if order[1] == identity]
    waiting = [order for order in own if order[4] == "open"]
    me = f"My e-mail address is {email}."
    if kind == "cancel":
        order = rng.choice(waiting)[0]
        request, actions = f"Please cancel my order {order}.", [("cancel_order", [order])]
    elif kind == "cancel_all":
        request = "Please cancel all of my orders that have not left yet."
        actions = [("cancel_order", [order[0]]) for order in waiting]
    elif kind == "address":
        address = f"{rng.randint(100, 199)} {rng.choice(STREETS)}"
        request = f"I have moved. My new address is: {address}"
        actions = [("change_address", [identity, address])]
    elif kind == "quantity":
        order = rng.choice(waiting)
        # There are at least three of each product in stock.
        quantity = order[3] + rng.randint(1, 3)
        request = f"I need {quantity} pieces in my order {order[0]}, and not {order[3]}."
        actions = [("change_quantity", [order[0], quantity])]
    else:
        order = next(order[0] for order in own if order[4] == "sent")
        request = f"Please cancel my order {order}."
        actions = [("open_ticket", [order, "already_sent"])]
    return tables, f"{me} {request}", actions


def make_tasks(count, seed):
    """Return so many tasks, of all kinds in turns."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        tables, request, actions = make_task(kind, rng)
        shop = Shop(tables)
        for name, arguments in actions:
            done = getattr(shop, name)(*arguments)
            assert not done.startswith("error"), done
        row = {"id": f"{kind}-{seed}-{number}", "kind": kind, "request": request}
        rows.append({**row, "tables": tables, "actions": actions, "answer": shop.state()})
        shop.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("sample.jsonl"))
    options = parser.parse_args()
    rows = make_tasks(options.count, options.seed)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"wrote {len(rows)} tasks to {options.out}")


if __name__ == "__main__":
    main()
