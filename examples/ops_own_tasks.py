"""An incident of your own in the ops room: a service graph with a fault, an alert, and what is right in the end."""

from deedrl import Action, Task
from deedrl.environments.suite.ops.environment import OpsRoom


def service(**fields: object) -> dict[str, object]:
    """A sound service; `fields` say what is different."""
    return {
        "depends": [],
        "version": "7.2",
        "previous": "7.1",
        "deployed": "yesterday",
        "replicas": 2,
        "load": 180,
        "capacity": 100,
        "config": {"timeout": 200},
        "bounds": {"timeout": [100, 400]},
        **fields,
    }


TASK = Task.create(
    "The shop front is slow.",
    initial_state={
        "services": {
            "front": service(depends=["payment"]),
            "payment": service(bad_versions=["7.2"], complaints={"bad_deploy": "slow since version 7.2"}),
        },
        "detail": "plain",
    },
    goal_state={"alert": "front", "roots": ["payment"], "causes": ["bad_deploy"]},
    family="dependency",
)
ACTIONS = [
    Action(tool_name="inspect", parameters={"service": "front"}),
    Action(tool_name="inspect", parameters={"service": "payment"}),
    Action(tool_name="remedy", parameters={"service": "payment", "action": "roll_back"}),
    Action(tool_name="close_incident", parameters={"cause": "bad_deploy"}),
]


def main() -> None:
    room = OpsRoom()
    print(room.reset(options={"task": TASK})[0])
    for action in ACTIONS:
        print(f"{action.tool_name}({action.parameters}) -> {room.step(action)[0]}")
    print(room.current_verdict())
    room.close()


if __name__ == "__main__":
    main()
