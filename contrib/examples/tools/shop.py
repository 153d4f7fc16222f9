"""The database of a shop, and the tools that an agent has."""

import json
import sqlite3
from contextlib import closing

RULES = """\
You work in the support of a shop. Do what the customer asks for, with the tools, and then answer \
in one sentence.
- Find the customer by the e-mail address first.
- Only orders with the status open can be cancelled or changed.
- If an order has the status sent and the customer wants it cancelled, open a ticket with the \
reason already_sent and change nothing.
- Do nothing that was not asked for."""

_TABLES = """
CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT, email TEXT, address TEXT);
CREATE TABLE products (id TEXT PRIMARY KEY, name TEXT, stock INTEGER);
CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, product TEXT, quantity INTEGER,
                     status TEXT);
CREATE TABLE tickets (order_id TEXT, reason TEXT);
"""
_NAMES = ("customers", "products", "orders", "tickets")


def _tool(name, description, **parameters):
    properties = {
        key: {"type": "integer"} if kind is int else {"type": "string"}
        for key, kind in parameters.items()
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters),
            },
        },
    }


TOOLS = [
    _tool("find_customer", "Find a customer by e-mail address.", email=str),
    _tool("list_orders", "List the orders of a customer.", customer_id=str),
    _tool("cancel_order", "Cancel an open order.", order_id=str),
    _tool("change_quantity", "Change the quantity of an open order.", order_id=str, quantity=int),
    _tool("change_address", "Change the address of a customer.", customer_id=str, address=str),
    _tool("open_ticket", "Open a ticket about an order.", order_id=str, reason=str),
]


class Shop:
    """A shop in memory.

    :param tables: rows by the name of the table, as `make_tasks.py` writes them.
    """

    def __init__(self, tables):
        # Agents may run in other threads, one after another.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(_TABLES)
        for name in _NAMES:
            for row in tables.get(name, ()):
                places = ", ".join("?" * len(row))
                self._database.execute(f"INSERT INTO {name} VALUES ({places})", row)

    def close(self):
        """Give the memory back."""
        self._database.close()

    def call(self, name, arguments):
        """Call a tool with the JSON text of its arguments; return a text for the model."""
        tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
        if name not in tools:
            return f"error: there is no tool {name!r}"
        try:
            values = json.loads(arguments)
        except ValueError:
            return "error: the arguments are not JSON"
        needed = tools[name]["properties"]
        if not isinstance(values, dict) or set(values) != set(needed):
            return f"error: {name} takes {', '.join(needed)}"
        for key, kind in needed.items():
            expected = int if kind["type"] == "integer" else str
            if type(values[key]) is not expected:
                return f"error: {key} has to be of the type {kind['type']}"
        return getattr(self, name)(**values)

    def find_customer(self, email):
        """Return a customer as JSON, or an error."""
        row = self._one("SELECT * FROM customers WHERE email = ?", email)
        return f"error: no customer has the address {email}" if row is None else json.dumps(row)

    def list_orders(self, customer_id):
        """Return orders with the names of their products as JSON."""
        rows = self._database.execute(
            "SELECT orders.id, products.name AS product, quantity, status FROM orders "
            "JOIN products ON products.id = orders.product WHERE customer = ? ORDER BY orders.id",
            (customer_id,),
        )
        return json.dumps([dict(row) for row in rows])

    def cancel_order(self, order_id):
        """Cancel an open order, and put its goods back into the stock."""
        order = self._order(order_id)
        if isinstance(order, str):
            return order
        self._stock(order["product"], order["quantity"])
        self._database.execute("UPDATE orders SET status = 'cancelled' WHERE id = ?", (order_id,))
        return "cancelled"

    def change_quantity(self, order_id, quantity):
        """Change an open order, if there is enough in stock."""
        order = self._order(order_id)
        if isinstance(order, str):
            return order
        product = self._one("SELECT * FROM products WHERE id = ?", order["product"])
        more = quantity - order["quantity"]
        if quantity < 1 or more > product["stock"]:
            return f"error: the quantity has to be from 1 to {order['quantity'] + product['stock']}"
        self._stock(order["product"], -more)
        self._database.execute("UPDATE orders SET quantity = ? WHERE id = ?", (quantity, order_id))
        return "changed"

    def change_address(self, customer_id, address):
        """Change where a customer lives."""
        done = self._database.execute(
            "UPDATE customers SET address = ? WHERE id = ?", (address, customer_id)
        )
        return "changed" if done.rowcount else f"error: there is no customer {customer_id}"

    def open_ticket(self, order_id, reason):
        """Write a ticket about any order."""
        if self._one("SELECT * FROM orders WHERE id = ?", order_id) is None:
            return f"error: there is no order {order_id}"
        self._database.execute("INSERT INTO tickets VALUES (?, ?)", (order_id, reason))
        return "opened"

    def state(self):
        """Return all rows as text; two shops with the same rows have the same text."""
        with closing(self._database.cursor()) as cursor:
            tables = {
                name: sorted(list(row) for row in cursor.execute(f"SELECT * FROM {name}"))
                for name in _NAMES
            }
        return json.dumps(tables, sort_keys=True)

    def _one(self, query, value):
        row = self._database.execute(query, (value,)).fetchone()
        return None if row is None else dict(row)

    def _order(self, order_id):
        order = self._one("SELECT * FROM orders WHERE id = ?", order_id)
        if order is None:
            return f"error: there is no order {order_id}"
        return order if order["status"] == "open" else f"error: the order is {order['status']}"

    def _stock(self, product, more):
        self._database.execute(
            "UPDATE products SET stock = stock + ? WHERE id = ?", (more, product)
        )
