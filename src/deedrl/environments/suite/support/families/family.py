"""What a family of tasks is: a name, the outcomes it deals out, and how it tells a story."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deedrl.environments.dealing import DIFFICULTIES
from deedrl.environments.suite.support.goal import DenyReason
from deedrl.environments.suite.support.story import Draft, Story
from deedrl.environments.suite.support.worlds import Kind

DENIED_KINDS: Mapping[Kind, DenyReason] = {"delivered": "delivered", "transit": "in_transit"}
"""State of a parcel that gives no refund → code of the denial."""


@dataclass(frozen=True)
class Family:
    """One kind of ticket."""

    name: str
    outcomes: Mapping[str, tuple[str, ...]]
    """Difficulty → what may come out; each is dealt equally often, so no fixed decision wins much above half."""
    tell: Callable[[Story, str], Draft]
    """Fills the story's rows for an outcome and returns the customer's message and the goal."""


def always(*outcomes: str) -> Mapping[str, tuple[str, ...]]:
    """The same outcomes at every difficulty."""
    return dict.fromkeys(DIFFICULTIES, outcomes)
