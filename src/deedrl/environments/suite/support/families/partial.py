"""Part of an order is damaged, says the photo report: that item's price is refunded, or a share of it."""

from __future__ import annotations

from deedrl.environments.suite.support.families.family import Family
from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.story import Draft, Phrases, Story

NAMED: Phrases = {
    "known": (
        "The {item} in order {id} came damaged. I want money for it.",
        "Order {id}: only the {item} is damaged. Please refund that part.",
        "I got order {id}, but the {item} is not okay. Refund it, please.",
        "Please refund the {item} of order {id}, it has damage. Photo sent.",
        "One thing in order {id} is damaged, the {item}. Refund?",
        "My photo shows the {item}, order {id}. It is damaged, money back.",
    ),
    "unseen": (
        "In {id} the {item} was spoilt. Repay that piece, picture sent.",
        "{id} came, yet the {item} is defective. Reimburse the piece.",
        "Look at my picture of the {item} in {id} and compensate me for it.",
        "The {item}, a piece of {id}, suffered on its way. Pay for that.",
    ),
}
UNNAMED: Phrases = {
    "known": (
        "One of the things in order {id} came damaged. Refund it, please.",
        "Part of order {id} is damaged, see my photo. I want money for it.",
        "Not all of order {id} is okay. Look at the photo and refund the damage.",
        "Something in order {id} is damaged. Please refund that part.",
        "I sent a photo of order {id}. Refund what is damaged.",
        "Order {id} came with damage. Can I get a refund for it?",
    ),
    "unseen": (
        "A piece of {id} was spoilt. Repay it, picture sent.",
        "{id} is defective in places, see my picture. Reimburse me.",
        "My picture of {id} tells all. Compensate what suffered.",
        "Some of {id} is not as it should be. Pay for that piece.",
    ),
}

PERCENTAGES = (20, 25, 40, 50)


def _tell(story: Story, outcome: str) -> Draft:
    """Two items when easy, three otherwise; the message names the item only when easy."""
    customer = story.customer()
    first = story.item()
    category = story.category_of(first)
    names = [first, *(story.item(category) for _ in range(1 if story.difficulty == "easy" else 2))]
    items = {name: story.price(high=130) for name in story.rng.sample(names, len(names))}
    percent = story.rng.choice(PERCENTAGES)
    if story.difficulty == "hard":
        items[first] = _divisible_price(story, percent)
    words = {"broken": story.world.broken, "minor": story.world.minor, "none": story.world.unbroken}[outcome]
    report = story.rng.choice(words)
    if outcome != "none":
        report = f"{first} {report}" + (" (see policy)" if outcome == "minor" else "")
    order_id = story.order(customer, items, photo=report)
    story.ship(order_id, "delivered", days_ago=story.days_since("delivered"))
    if story.difficulty == "hard":
        story.minor_damage_percent(order_id, percent)
    phrases = NAMED if story.difficulty == "easy" else UNNAMED
    goal = _goal(order_id, outcome, items[first], percent)
    return Draft(story.sign(story.say(phrases, id=order_id, item=first)), goal)


def _goal(order_id: str, outcome: str, cents: int, percent: int) -> Goal:
    if outcome == "none":
        return Goal(decision="deny", order_id=order_id, reason="not_damaged")
    if outcome == "broken":
        return Goal(decision="refund", order_id=order_id, amount_cents=cents, cause="item")
    share = cents * percent // 100
    return Goal(decision="refund", order_id=order_id, amount_cents=share, cause="share", needs_policy=True)


def _divisible_price(story: Story, percent: int) -> int:
    """A price whose share is whole cents that do not end in 0."""
    while True:
        cents = story.price(high=130) if percent in (20, 40) else story.rng.randrange(10_00, 130_00)
        if cents % 10 and cents * percent % 100 == 0 and (cents * percent // 100) % 10:
            return cents


PARTIAL = Family(
    "partial",
    {"easy": ("broken", "none"), "medium": ("broken", "none"), "hard": ("minor", "none")},
    _tell,
)
