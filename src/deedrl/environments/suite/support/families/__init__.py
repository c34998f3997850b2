"""The families of tickets, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from deedrl.environments.suite.support.families.contradiction import CONTRADICTION
from deedrl.environments.suite.support.families.escalation import ESCALATION
from deedrl.environments.suite.support.families.family import Family
from deedrl.environments.suite.support.families.inform import INFORM
from deedrl.environments.suite.support.families.partial import PARTIAL
from deedrl.environments.suite.support.families.several_orders import SEVERAL_ORDERS
from deedrl.environments.suite.support.families.status import STATUS
from deedrl.environments.suite.support.families.window import WINDOW

__all__ = ["FAMILIES", "Family"]

FAMILIES: Mapping[str, Family] = {
    family.name: family for family in (STATUS, WINDOW, SEVERAL_ORDERS, CONTRADICTION, PARTIAL, ESCALATION, INFORM)
}
