"""Where is my parcel? The reply needs its tracking code, which only the database has; a lost one is refunded."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import Family, always
from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story

BY_ORDER: Phrases = {
    "known": (
        "Where is my parcel? Order {id}, the {item}.",
        "Where is order {id}? I am waiting for the {item}.",
        "When will the {item} of order {id} come? Where is it now?",
        "Please tell me where my parcel is. Order {id}, {item}.",
        "I would like to track the {item}, order {id}. Where is it?",
        "Any news of order {id}? Where is the parcel with the {item}?",
        "Can you find my parcel? It is the {item}, order {id}.",
    ),
    "unseen": (
        "How can I follow {id}, the {item}?",
        "Any idea on the whereabouts of {id}, my {item}?",
        "I keep looking out of the window for the {item}. Which way is {id}?",
        "Has {id} moved? I long for the {item}.",
    ),
}
BY_EMAIL: Phrases = {
    "known": (
        "Where is my parcel with the {item}? My e-mail is {email}.",
        "Where is the {item}? I ordered as {email}.",
        "I am {email}. Where is my {item} now?",
        "Please tell me where the parcel with the {item} is. {email}",
        "Any news of my {item}? Account {email}. Where is it?",
        "Can you find my parcel, the {item}? I am {email}.",
    ),
    "unseen": (
        "How can I follow the {item}? You find me under {email}.",
        "{email} here. Any idea on the whereabouts of my {item}?",
        "Has the {item} moved? Look under {email}.",
        "I long for the {item}. {email}, which way is it?",
    ),
}


def _tell(story: Story, outcome: str) -> Draft:
    """Easy: the order's id is given. Medium: an e-mail with two orders. Hard: one order in two parcels."""
    customer, item, cents = story.customer(), story.item(), story.price()
    code = story.tracking()
    tell = {"easy": _one_parcel, "medium": _two_orders, "hard": _two_parcels}[story.difficulty]
    order_id, message = tell(story, customer, {item: cents}, outcome, code)
    if outcome == "lost":
        goal = Goal(decision="refund", order_id=order_id, amount_cents=cents, cause="lost")
    else:
        goal = Goal(decision="reply", order_id=order_id, tracking=code)
    return Draft(story.sign(message), goal)


def _one_parcel(story: Story, customer: int, wanted: dict[str, int], outcome: str, code: str) -> tuple[str, str]:
    order_id = story.order(customer, wanted)
    story.ship(order_id, story.status(outcome), tracking=_code(outcome, code))
    return order_id, story.say(BY_ORDER, id=order_id, item=next(iter(wanted)))


def _two_orders(story: Story, customer: int, wanted: dict[str, int], outcome: str, code: str) -> tuple[str, str]:
    found = ""
    for items in story.rng.sample([wanted, {story.item(): story.price()}], 2):
        order_id = story.order(customer, items)
        if items is wanted:
            found = order_id
            story.ship(order_id, story.status(outcome), tracking=_code(outcome, code))
        else:
            story.ship(order_id, story.status("transit"), tracking=story.tracking())
    return found, story.say(BY_EMAIL, item=next(iter(wanted)), email=story.email)


def _two_parcels(story: Story, customer: int, wanted: dict[str, int], outcome: str, code: str) -> tuple[str, str]:
    item = next(iter(wanted))
    other = {story.item(story.category_of(item)): story.price()}
    order = story.rng.sample([wanted, other], 2)
    order_id = story.order(customer, {**order[0], **order[1]})
    for items in order:
        kind = outcome if items is wanted else "transit"
        status = story.rng.choice(story.world.status[kind])
        story.ship(
            order_id,
            status,
            item=next(iter(items)),
            tracking=_code(kind, code if items is wanted else story.tracking()),
        )
    return order_id, story.say(BY_ORDER, id=order_id, item=item)


def _code(kind: str, code: str) -> str:
    """A lost parcel's code leads nowhere, so it has none."""
    return code if kind == "transit" else ""


INFORM = Family("inform", always("transit", "lost"), _tell)
