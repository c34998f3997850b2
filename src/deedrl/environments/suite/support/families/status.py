"""The state of the parcel alone decides: lost or damaged is refunded, delivered or on its way is not."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import DENIED_KINDS, Family, always
from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story
from deedrl.environments.suite.support.worlds import KINDS, Kind

PHRASES: Phrases = {
    "known": (
        "Something went wrong with the delivery of order {id}, the {item}. I want my money back.",
        "Order {id}, {item}: there was trouble with the delivery. Please refund me.",
        "The parcel with my {item}, order {id}, is a problem. Can I get a refund?",
        "Please check the delivery of order {id}. I would like a refund for the {item}.",
        "I am unhappy with the shipment of order {id}. Refund the {item}, please.",
        "My {item} had a delivery problem, order {id}. Money back?",
        "Delivery trouble with order {id}! I want a refund for the {item}.",
        "What happened to my parcel {id}? Please refund the {item}.",
    ),
    "unseen": (
        "The courier made a mess of {id}. I expect to be repaid for the {item}.",
        "Kindly return my payment for {id}, the {item}; shipping did not go as it should.",
        "Shipping of my {item} went badly, number {id}. Reimburse me.",
        "See what the courier did with {id}? Pay me back for the {item}.",
        "{id} was handled poorly on its way. Compensate me for the {item}.",
    ),
}


def decide_by_parcel(kind: Kind, order_id: str, cents: int) -> Goal:
    """The goal for an order whose parcel's state decides."""
    if kind in DENIED_KINDS:
        return Goal(decision="deny", order_id=order_id, reason=DENIED_KINDS[kind])
    return Goal(decision="refund", order_id=order_id, amount_cents=cents, cause=kind)


def _tell(story: Story, kind: Kind) -> Draft:
    customer, item, cents = story.customer(), story.item(), story.price()
    order_id = story.simple_order(customer, kind, item, cents)
    message = story.say(PHRASES, id=order_id, item=item) + story.aside(customer)
    return Draft(story.sign(message), decide_by_parcel(kind, order_id, cents))


STATUS = Family("status", always(*KINDS), _tell)
