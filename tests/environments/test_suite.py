from __future__ import annotations

import subprocess
import sys

import pytest

NOTHING_HEAVY = (
    "assert not [name for name in sys.modules if name.startswith('deedrl.environments.suite.')];"
    "assert not {'deedrl.environments.environment', 'torch', 'transformers'} & set(sys.modules);"
)


@pytest.mark.parametrize(
    "imports",
    ["import gymnasium; register_when_imported()", "register_when_imported(); import gymnasium"],
    ids=["gymnasium first", "gymnasium later"],
)
def test_ids_exist_in_either_order_of_import_and_no_environment_is_imported(imports: str) -> None:
    code = (
        "import sys; from deedrl.environments.suite import register_when_imported;"
        f"{imports}; assert 'deedrl/SupportDesk-v0' in gymnasium.registry;"
        f"{NOTHING_HEAVY}"
        "import inspect, warnings; warnings.simplefilter('error'); register_when_imported();"
        "assert 'def make' in inspect.getsource(gymnasium.make)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_waiting_for_gymnasium_does_not_import_it() -> None:
    code = (
        "import sys; from deedrl.environments.suite import register_when_imported; register_when_imported();"
        "import json.tool; assert 'gymnasium' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
