"""A program of your own to be repaired: its files, the tests that are shown, and the tests that decide."""

from deedrl import Action, Task
from deedrl.environments.suite.code.environment import CodeRepair

PROGRAM = '''from math import ceil


def boxes(bottles, per_box):
    """How many boxes so many bottles need."""
    return bottles // per_box
'''
TASK = Task.create(
    "boxes.py packs too few boxes. Repair it.",
    initial_state={
        "files": {"boxes.py": PROGRAM},
        "tests": {"test_boxes.py": "from boxes import boxes\n\n\ndef test_boxes():\n    assert boxes(7, 6) == 2\n"},
    },
    goal_state={"hidden": "from boxes import boxes\n\n\ndef test_hidden():\n    assert boxes(12, 6) == 2\n"},
)
ACTIONS = [
    Action(tool_name="read_file", parameters={"path": "boxes.py"}),
    Action(
        tool_name="replace_line", parameters={"path": "boxes.py", "line": 6, "text": "return ceil(bottles / per_box)"}
    ),
    Action(tool_name="run_tests"),
    Action(tool_name="submit"),
]


def main() -> None:
    desk = CodeRepair()
    print(desk.reset(options={"task": TASK})[0])
    for action in ACTIONS:
        print(f"{action.tool_name}({action.parameters}) -> {desk.step(action)[0]}")
    print(desk.current_verdict())
    desk.close()


if __name__ == "__main__":
    main()
