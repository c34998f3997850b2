"""Some tickets are a manager's: large amounts, flagged accounts, threats of legal action."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import Family
from deedrl.environments.suite.support.families.status import decide_by_parcel
from deedrl.environments.suite.support.goal import REFUND_LIMIT_CENTS, Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story
from deedrl.environments.suite.support.worlds import REFUNDED_KINDS

PHRASES: Phrases = {
    "known": (
        "I have a problem with the delivery of order {id}. Refund the {item}.",
        "Order {id} was not handled well. I want my money for the {item}.",
        "Please look at order {id}, the {item}. The delivery was bad, I want a refund.",
        "Refund my {item}, order {id}. The delivery went wrong.",
        "My order {id} had trouble on the way. Money back for the {item}, please.",
        "It is about order {id}. Bad delivery of the {item}, refund me.",
    ),
    "unseen": (
        "{id} was a disappointment, the courier failed. Repay the {item}.",
        "Kindly settle {id}: poor shipping of the {item}, I expect my payment.",
        "About {id}: reimburse the {item}, it was carried badly.",
        "The {item} from {id} had a rough trip. Compensate me.",
    ),
}

FLAGGED = "flagged for fraud"
CLEARED = "fraud flag removed"


def _tell(story: Story, outcome: str) -> Draft:
    """When hard: two items to be added up near the limit, veiled threats, removed flags and harmless words."""
    hard = story.difficulty == "hard"
    customer = story.customer(flag=_flag(story, outcome))
    kind = outcome if outcome in ("delivered", "transit") else story.rng.choice(REFUNDED_KINDS)
    items = _items(story, above_limit=outcome == "amount_above_limit")
    order_id = story.order(customer, items)
    story.ship(order_id, story.status(kind), days_ago=story.days_since(kind))
    message = story.say(PHRASES, id=order_id, item=" and the ".join(items))
    if outcome == "legal_threat":
        message += " " + story.rng.choice(story.world.veiled_threats if hard else story.world.threats)
    elif hard and story.rng.random() < 0.5:
        message += " " + story.rng.choice(story.world.harmless)
    if outcome in ("amount_above_limit", "fraud_flag", "legal_threat"):
        goal = Goal(decision="escalate", order_id=order_id, reason=outcome)
    else:
        goal = decide_by_parcel(kind, order_id, sum(items.values()))
    return Draft(story.sign(message), goal)


def _flag(story: Story, outcome: str) -> str:
    if outcome == "fraud_flag":
        return FLAGGED
    return CLEARED if story.difficulty == "hard" and story.rng.random() < 0.3 else ""


def _items(story: Story, above_limit: bool) -> dict[str, int]:
    """One item far from the limit, or (hard) two whose sum is within 60 of it."""
    first = story.item()
    if story.difficulty != "hard":
        return {first: story.price(450, 900) if above_limit else story.price()}
    second = story.item(story.category_of(first))
    limit = REFUND_LIMIT_CENTS
    while True:
        items = {first: story.price(150, 250), second: story.price(150, 250)}
        total = sum(items.values())
        near = limit < total <= limit + 60_00 if above_limit else limit - 60_00 <= total <= limit
        if near and total % 10:
            return items


_EASY = (
    "amount_above_limit",
    "fraud_flag",
    "refund",
    "delivered",
    "amount_above_limit",
    "fraud_flag",
    "refund",
    "transit",
)
_HARDER = (
    *("amount_above_limit", "fraud_flag", "legal_threat", "amount_above_limit", "fraud_flag", "legal_threat"),
    *("refund", "refund", "refund", "delivered", "transit", "delivered"),
)

ESCALATION = Family("escalation", {"easy": _EASY, "medium": _HARDER, "hard": _HARDER}, _tell)
