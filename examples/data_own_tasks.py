"""The data desk on a question of your own: write the task, play a list of actions, read the verdict."""

from deedrl import Task
from deedrl.environments.suite.data.environment import DataDesk
from deedrl.types import Action

TASK = Task.create(
    prompt="What did the tickets for 'Faust' bring in euros? Mind the note.",
    initial_state={
        "tables": {
            "tickets": {
                "columns": ["id", "play", "price", "state"],
                "rows": [[1, "Faust", 24.5, "sold"], [2, "Faust", 24.5, "void"], [3, "Medea", 31.0, "sold"]],
            }
        },
        "logs": {"desk.jsonl": ['{"ticket": 2, "event": "cancelled"}']},
        "note": "Void tickets were paid back.",
    },
    goal_state={
        "answer": {"kind": "number", "value": "24.50", "units": {"EUR": 1, "€": 1, "cents": 0.01}},
        "evidence": ["note", "tickets.play", "tickets.price"],
    },
)

ACTIONS = [
    Action(tool_name="note", parameters={}),
    Action(tool_name="describe", parameters={"table": "tickets"}),
    Action(
        tool_name="query",
        parameters={"sql": "SELECT sum(price) FROM tickets WHERE play = 'Faust' AND state <> 'void'"},
    ),
    Action(tool_name="answer", parameters={"value": "€24.50"}),
]


def main() -> None:
    desk = DataDesk()
    print(desk.reset(options={"task": TASK})[0])
    for action in ACTIONS:
        observation, *_ = desk.step(action)
        print(f"{action.tool_name}{action.parameters} -> {observation}")
    print(desk.current_verdict())
    desk.close()


if __name__ == "__main__":
    main()
