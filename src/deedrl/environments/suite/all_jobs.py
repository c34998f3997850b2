"""All scenario suites as one environment, for a recipe that trains on all of their jobs at once."""

from __future__ import annotations

from types import MappingProxyType

from deedrl.environments.combined import Combined
from deedrl.environments.suite.code.environment import CodeRepair
from deedrl.environments.suite.data.environment import DataDesk
from deedrl.environments.suite.office.environment import OfficeClerk
from deedrl.environments.suite.ops.environment import OpsRoom
from deedrl.environments.suite.support.environment import SupportDesk


class AllJobs(Combined):
    """Support tickets, alerts, programs, questions about data and mailboxes, in turn."""

    parts = MappingProxyType(
        {"support": SupportDesk, "ops": OpsRoom, "code": CodeRepair, "data": DataDesk, "office": OfficeClerk}
    )
