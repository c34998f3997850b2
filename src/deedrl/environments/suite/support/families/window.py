"""A return: refunded inside the category's return window, which has to be read."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import Family, always
from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story

PHRASES: Phrases = {
    "known": (
        "I want to return the {item} from order {id}. Can I get a refund?",
        "Order {id}: I do not need the {item}, I am sending it back. Refund please.",
        "Can I still return order {id}, the {item}?",
        "I changed my mind about the {item}, order {id}. Please refund the return.",
        "The {item} from order {id} is not for me. I would like to return it.",
        "Please take back the {item}, order {id}, and refund me.",
        "Is a return possible for order {id}? It is the {item}.",
        "I would like to send order {id} back. The {item} is too small.",
    ),
    "unseen": (
        "I regret buying the {item}, number {id}. Will you take it back for my payment?",
        "{id}: the {item} was a poor choice. May it go back to you?",
        "My sister already owns a {item}. Can {id} be sent back for the money?",
        "Too late to give back {id}, the {item}?",
        "Unwanted gift: the {item}, number {id}. Can I bring it back?",
    ),
}

CLOSE_DAYS = 5
"""When hard, the delivery lies at most this many days on either side of the window's end."""


def _tell(story: Story, outcome: str) -> Draft:
    customer, item, cents = story.customer(), story.item(), story.price()
    order_id = story.order(customer, {item: cents})
    window = story.window_days(order_id)
    reach = CLOSE_DAYS if story.difficulty == "hard" else window - 2
    if outcome == "inside":
        days = story.rng.randint(window - reach, window)
        goal = Goal(decision="refund", order_id=order_id, amount_cents=cents, cause="return", needs_policy=True)
    else:
        days = story.rng.randint(window + 1, window + reach)
        goal = Goal(decision="deny", order_id=order_id, reason="outside_window", needs_policy=True)
    story.ship(order_id, "delivered", days_ago=days)
    return Draft(story.sign(story.say(PHRASES, id=order_id, item=item)), goal)


WINDOW = Family("window", always("inside", "outside"), _tell)
