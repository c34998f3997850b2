"""The customer states something that the database contradicts: the database is right."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import DENIED_KINDS, Family
from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story
from deedrl.environments.suite.support.views import money

NEVER_CAME: Phrases = {
    "known": (
        "Order {id} never arrived! I want my money for the {item}.",
        "My {item}, order {id}, did not come. Refund it.",
        "I never received the {item} from order {id}. Refund me now.",
        "Your carrier lost order {id}, the {item}. Money back!",
        "Order {id} is lost, no {item} came. Please refund.",
        "I waited in vain for the {item}. Order {id} must be lost, refund me.",
    ),
    "unseen": (
        "No trace of {id} at my place! Repay the {item}.",
        "I swear the {item} never reached me. {id}, reimburse it.",
        "{id} has not shown up and never will. Compensate me for the {item}.",
        "My door saw no {item}. Give back my payment for {id}.",
    ),
}
CAME_BROKEN: Phrases = {
    "known": (
        "The {item} of order {id} arrived broken. Refund me.",
        "Order {id}: my {item} is broken! I want my money.",
        "Broken {item} in order {id}, see my photo. Refund please.",
        "You sent a broken {item}, order {id}. Money back!",
        "I opened order {id} and the {item} is damaged. Refund it.",
        "The {item} came damaged. Order {id}, refund now.",
    ),
    "unseen": (
        "What a wreck: the {item} in {id}. Repay it, picture sent.",
        "The {item} reached me in pieces. Reimburse {id}.",
        "{id} is ruined, look at my picture of the {item}. Compensate me.",
        "Unusable {item}! I expect my payment for {id} back.",
    ),
}
NOT_PAID: Phrases = {
    "known": (
        "The {item} of order {id} was lost and I never got my money.",
        "Where is my refund for order {id}? The {item} was lost.",
        "Order {id}, the {item}: lost, and still no refund!",
        "You owe me money for the lost {item}, order {id}.",
        "I still wait for the refund of order {id}, the lost {item}.",
        "Lost {item}, order {id}, no money yet. Refund it.",
    ),
    "unseen": (
        "Nobody repaid me for {id}, the missing {item}.",
        "My payment for the vanished {item} ({id}) was never given back.",
        "{id}: {item} gone, compensation never seen.",
        "I have yet to be reimbursed for {id}, the {item}.",
    ),
}

_PHRASES = {"never_came": NEVER_CAME, "came_broken": CAME_BROKEN, "not_paid": NOT_PAID}


def _tell(story: Story, outcome: str) -> Draft:
    """`outcome` is a claim and what is true instead, e.g. ``never_came/delivered``."""
    claim, truth = outcome.split("/")
    customer, item, cents = story.customer(), story.item(), story.price()
    order_id, goal = _order(story, customer, item, cents, truth)
    message = story.say(_PHRASES[claim], id=order_id, item=item)
    denied_with_price = story.difficulty != "easy" and story.rng.random() < 0.5
    if goal.decision == "refund" or denied_with_price:
        message += story.rng.choice(story.world.price_claims).format(claim=money(story.price()))
    message += story.aside(customer)
    return Draft(story.sign(message), goal)


def _order(story: Story, customer: int, item: str, cents: int, truth: str) -> tuple[str, Goal]:
    if truth in DENIED_KINDS:
        order_id = story.simple_order(customer, truth, item, cents)
        return order_id, Goal(decision="deny", order_id=order_id, reason=DENIED_KINDS[truth])
    if truth in ("lost", "refunded"):
        order_id = story.simple_order(customer, "lost", item, cents)
        if truth == "refunded":
            story.refund(order_id, cents)
            return order_id, Goal(decision="deny", order_id=order_id, reason="already_refunded")
        return order_id, Goal(decision="refund", order_id=order_id, amount_cents=cents, cause="lost")
    words = story.world.broken if truth == "broken" else story.world.unbroken
    photo = story.rng.choice(words)
    order_id = story.order(customer, {item: cents}, photo=f"{item} {photo}" if truth == "broken" else photo)
    story.ship(order_id, story.status("delivered"), days_ago=story.days_since("delivered"))
    if truth == "broken":
        return order_id, Goal(decision="refund", order_id=order_id, amount_cents=cents, cause="item")
    return order_id, Goal(decision="deny", order_id=order_id, reason="not_damaged")


_EASY = ("never_came/lost", "came_broken/broken", "never_came/delivered", "came_broken/unbroken")
_HARDER = (
    *("never_came/lost", "came_broken/broken", "never_came/lost", "came_broken/broken"),
    *("never_came/delivered", "came_broken/unbroken", "never_came/transit", "not_paid/refunded"),
)

CONTRADICTION = Family("contradiction", {"easy": _EASY, "medium": _HARDER, "hard": _HARDER}, _tell)
