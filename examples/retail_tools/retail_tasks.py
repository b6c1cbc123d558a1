"""Tasks: a small shop of its own for each, a customer's request in full, and the calls that serve it under the rules.

Every request names products and options in words; ids are found with the tools. So the ids of the expected calls are
private: a correction may hold them only where a tool has answered with them.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from retail_shop import RETURN_DAYS

from midcourse.environments.base import Evidence, Task

KINDS = ("address", "return", "exchange", "exchange_and_address", "late_return_and_address")
PRODUCTS = {
    "desk lamp": ("black", "white", "brass"),
    "backpack": ("grey", "green", "blue"),
    "water bottle": ("500 ml", "750 ml", "1 l"),
    "keyboard": ("quiet keys", "clicking keys", "flat keys"),
    "notebook": ("lined", "dotted", "blank"),
    "umbrella": ("folding", "long", "children's"),
}
FIRST_NAMES = ("Ana", "Ben", "Chiara", "Daniel", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas")
LAST_NAMES = ("Ortiz", "Okoye", "Rossi", "Weber", "Laurent", "Haddad", "Kim", "Novak", "Silva", "Berg")
STREETS = ("Mill Lane", "Station Road", "Garden Street", "Harbour Way", "Church Hill")


def draw_task(rng: random.Random, *, split: str, index: int) -> Task:
    """Return one task, with its shop in `evidence.facts`; kinds take turns."""
    kind = KINDS[index % len(KINDS)]
    database = _draw_database(rng)
    user_id, user = next(iter(database["users"].items()))
    pending, recent, late = _by_age(database, user_id)
    wishes: list[str] = []
    actions = [_action("find_user", email=user["email"])]
    if "return" in kind:
        order_id, order = late if "late" in kind else recent
        item = rng.choice(order["items"])
        wishes.append(f"I want to send the {item['name']} ({item['option']}) back")
        actions.append(_action("get_order", order_id=order_id))
        if "late" not in kind:
            actions.append(_action("return_items", order_id=order_id, item_ids=[item["item_id"]]))
    if "exchange" in kind:
        order_id, order = recent
        item = rng.choice(order["items"])
        variants = database["products"][item["product_id"]]["variants"]
        new_id = rng.choice([key for key in variants if variants[key]["available"] and key != item["item_id"]])
        wishes.append(f"please exchange the {item['name']} ({item['option']}) for {variants[new_id]['option']}")
        actions += [
            _action("get_order", order_id=order_id),
            _action("get_product", product_id=item["product_id"]),
            _action("exchange_items", order_id=order_id, item_ids=[item["item_id"]], new_item_ids=[new_id]),
        ]
    if "address" in kind:
        order_id, _ = pending
        address = _draw_address(rng)
        wishes.append(f"the order that has not been sent yet should go to {address}")
        actions += [
            _action("get_order", order_id=order_id),
            _action("change_address", order_id=order_id, address=address),
        ]
    return Task(
        task_id=f"retail/{split}/{index}",
        split=split,
        query=f"Hello, this is {user['name']} ({user['email']}). My request: {'; and '.join(wishes)}.",
        tags=(kind, "hard" if "_and_" in kind else "easy"),
        evidence=_evidence({"database": database, "user_id": user_id, "actions": actions}),
    )


def with_another_item(task: Task) -> Task | None:
    """Return the task with evidence in which another variant's id is the wished one's; None without an exchange.

    The query fits both, since it names no ids: which of them is right, tool answers alone can say.
    """
    facts = task.evidence.facts
    actions = [dict(action) for action in facts["actions"]]
    exchange = next((action for action in actions if action["name"] == "exchange_items"), None)
    if exchange is None:
        return None
    (item_id,), (new_id,) = exchange["arguments"]["item_ids"], exchange["arguments"]["new_item_ids"]
    products = facts["database"]["products"].values()
    variants = next(product["variants"] for product in products if new_id in product["variants"])
    other_id = next(key for key in variants if key not in (item_id, new_id))
    exchange["arguments"] = {**exchange["arguments"], "new_item_ids": [other_id]}
    return replace(task, evidence=_evidence({**facts, "actions": actions}))


def _evidence(facts: Mapping[str, Any]) -> Evidence:
    calls = [f"{action['name']} {json.dumps(action['arguments'])}" for action in facts["actions"]]
    private = {
        value
        for action in facts["actions"]
        for name, given in action["arguments"].items()
        if name.endswith(("_id", "_ids"))
        for value in ([given] if isinstance(given, str) else given)
    }
    text = "The calls that serve the request, and no other writes:\n" + "\n".join(calls)
    return Evidence(text=text, private_values=tuple(sorted(private)), facts=facts)


def _action(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _draw_database(rng: random.Random) -> dict[str, Any]:
    products, users, orders = _draw_products(rng), {}, {}
    for name in map(" ".join, zip(rng.sample(FIRST_NAMES, 3), rng.sample(LAST_NAMES, 3), strict=True)):
        user_id = f"{name.lower().replace(' ', '_')}_{rng.randint(1000, 9999)}"
        own = _draw_orders(rng, user_id, products)
        email = f"{name.lower().replace(' ', '.')}@mail.example"
        users[user_id] = {"name": name, "email": email, "orders": rng.sample(sorted(own), len(own))}
        orders.update(own)
    return {"products": products, "users": users, "orders": orders}


def _by_age(database: Mapping[str, Any], user_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a customer's orders with their ids: pending, delivered lately, delivered long ago."""
    own = [(order_id, order) for order_id, order in database["orders"].items() if order["user_id"] == user_id]
    return sorted(own, key=lambda pair: pair[1]["delivered_days_ago"] or 0)


def _draw_products(rng: random.Random) -> dict[str, Any]:
    numbers = iter(rng.sample(range(100_000, 1_000_000), sum(map(len, PRODUCTS.values())) + len(PRODUCTS)))
    return {
        f"P{next(numbers)}": {
            "name": name,
            "variants": {
                # At most one is sold out, so that there is always another one to exchange an item for.
                f"I{next(numbers)}": {"option": option, "available": position != sold_out}
                for position, option in enumerate(options)
            },
        }
        for name, options in PRODUCTS.items()
        for sold_out in (rng.choice((None, *range(len(options)))),)
    }


def _draw_orders(rng: random.Random, user_id: str, products: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pending order, a recent one and one that is too old to return, with two items each, no product twice."""
    ages: Sequence[int | None] = (None, rng.randint(1, RETURN_DAYS), rng.randint(RETURN_DAYS + 1, 90))
    chosen = rng.sample(sorted(products), 2 * len(ages))
    orders = {}
    for age, pair in zip(ages, (chosen[:2], chosen[2:4], chosen[4:]), strict=True):
        items = []
        for product_id in pair:
            item_id, variant = rng.choice(sorted(products[product_id]["variants"].items()))
            name = products[product_id]["name"]
            items.append({"item_id": item_id, "product_id": product_id, "name": name, "option": variant["option"]})
        orders[f"W{rng.randint(1_000_000, 9_999_999)}"] = {
            "user_id": user_id,
            "status": "pending" if age is None else "delivered",
            "delivered_days_ago": age,
            "address": _draw_address(rng),
            "items": items,
        }
    return orders


def _draw_address(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)}, {rng.randint(10_000, 99_999)}"
