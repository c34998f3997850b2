"""The environments that come with DeedRL, one folder each, and their registration with Gymnasium.

Gymnasium has read no plugin entry points since its version 1.0, so that a package's ids exist once the package has
been imported. Importing Gymnasium takes most of the time `import deedrl` may take; hence `register_when_imported`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

ENTRY_POINTS = {
    "deedrl/SupportDesk-v0": "deedrl.environments.suite.support.environment:SupportDesk",
    "deedrl/OpsRoom-v0": "deedrl.environments.suite.ops.environment:OpsRoom",
    "deedrl/CodeRepair-v0": "deedrl.environments.suite.code.environment:CodeRepair",
    "deedrl/DataDesk-v0": "deedrl.environments.suite.data.environment:DataDesk",
    "deedrl/OfficeClerk-v0": "deedrl.environments.suite.office.environment:OfficeClerk",
    "deedrl/AllJobs-v0": "deedrl.environments.suite.all_jobs:AllJobs",
    "deedrl/CustomerAnswers-v0": "deedrl.environments.suite.answers.environment:CustomerAnswers",
    "deedrl/SupportProbes-v0": "deedrl.environments.suite.support.probes:SupportProbes",
}
"""Class behind each id; imported when the first copy is made."""


def register() -> None:
    """Registers the suite with Gymnasium, once; imports Gymnasium and no environment."""
    import gymnasium

    for name, entry_point in ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(id=name, entry_point=entry_point)


def register_when_imported() -> None:
    """Registers the suite now if Gymnasium is imported already, else as soon as it is."""
    if "gymnasium" in sys.modules:
        register()
    elif not any(isinstance(finder, _AfterGymnasium) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterGymnasium())


class _AfterGymnasium:
    """Sees Gymnasium being imported, steps aside for good and calls `register` once the import is done."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            register()

        loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec
