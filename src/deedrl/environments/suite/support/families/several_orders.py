"""The customer gives an e-mail address and a product; one of several orders is meant."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import Family, always
from deedrl.environments.suite.support.families.status import decide_by_parcel
from deedrl.environments.suite.support.story import Draft, Phrases, Story
from deedrl.environments.suite.support.worlds import KINDS, Kind

PHRASES: Phrases = {
    "known": (
        "The delivery of my {item} went wrong, I want a refund. My e-mail is {email}.",
        "Please refund my {item}, there was a delivery problem. I am {email}.",
        "I ordered with {email}. The parcel with the {item} is a problem. Refund?",
        "Delivery trouble with the {item}. I lost the order number, e-mail {email}.",
        "My account is {email}. I want my money back for the {item}, bad delivery.",
        "Can you check the delivery of my {item}? A refund please. {email}",
        "No order number, sorry. {email}, it is about delivery of the {item}. Refund me.",
    ),
    "unseen": (
        "You find me under {email}. Repay the {item}, shipping was a mess.",
        "{email} here. The courier failed with the {item}; reimburse me.",
        "Kindly look under {email}: the {item} had poor shipping and I expect compensation.",
        "The {item} was handled badly on its way. Pay me back, {email}.",
    ),
}

ORDERS = {"easy": 2, "medium": 3, "hard": 4}


def _tell(story: Story, kind: Kind) -> Draft:
    """When hard, two of the orders are the same product in different colours."""
    customer = story.customer()
    items = [story.item() for _ in range(ORDERS[story.difficulty])]
    if story.difficulty == "hard":
        first, second = story.rng.sample(story.world.colours, 2)
        items = [f"{first} {items[0]}", f"{second} {items[0]}", *items[2:]]
    wanted = items[0]
    goal = None
    for item in story.rng.sample(items, len(items)):
        cents = story.price()
        order_kind = kind if item == wanted else story.rng.choice(KINDS)
        order_id = story.simple_order(customer, order_kind, item, cents)
        if item == wanted:
            goal = decide_by_parcel(kind, order_id, cents)
    assert goal is not None
    return Draft(story.sign(story.say(PHRASES, item=wanted, email=story.email)), goal)


SEVERAL_ORDERS = Family("several_orders", always(*KINDS), _tell)
