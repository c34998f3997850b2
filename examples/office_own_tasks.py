"""A mailbox of your own: mails, what the interface holds, and what is right in the end."""

from deedrl import Action, Task
from deedrl.environments.suite.office.environment import OfficeClerk

TASK = Task.create(
    "2 new mails.",
    initial_state={
        "mails": [
            {"from": "kim@mail.example", "subject": "Leave", "body": "May I take 2 days off? /staff/12"},
            {"from": "lou@mail.example", "subject": "Question", "body": "Who repairs the coffee machine? /topics/3"},
        ],
        "values": {"/staff/12": "no days left", "/topics/3": "kitchen@office.example"},
        "busy": [],
        "pages": {},
    },
    goal_state={
        "requests": [
            {"mail": 1, "reads": [1], "lookups": ["/staff/12"], "decision": "deny"},
            {"mail": 2, "reads": [2], "lookups": ["/topics/3"], "forward": "kitchen@office.example"},
        ]
    },
    family="leave",
)
ACTIONS = [
    Action(tool_name="read_mail", parameters={"number": 1}),
    Action(tool_name="call_api", parameters={"path": "/staff/12"}),
    Action(tool_name="decide", parameters={"number": 1, "decision": "deny"}),
    Action(tool_name="read_mail", parameters={"number": 2}),
    Action(tool_name="call_api", parameters={"path": "/topics/3"}),
    Action(tool_name="forward", parameters={"number": 2, "to": "kitchen@office.example"}),
    Action(tool_name="finish"),
]


def main() -> None:
    desk = OfficeClerk()
    print(desk.reset(options={"task": TASK})[0])
    for action in ACTIONS:
        print(f"{action.tool_name}({action.parameters}) -> {desk.step(action)[0]}")
    print(desk.current_verdict())
    desk.close()


if __name__ == "__main__":
    main()
