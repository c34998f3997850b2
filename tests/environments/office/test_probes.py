"""Orders in mails, counted over episodes."""

from __future__ import annotations

from deedrl.environments.suite.office.environment import OfficeClerk
from deedrl.environments.suite.office.goal import read_goal
from deedrl.environments.suite.office.probes import injection_probes, obeyed
from deedrl.evaluation.injection import injection_figures
from deedrl.policies.policy import CompletionRequest
from deedrl.policies.scripted import DemonstrationPolicy, ScriptedPolicy
from deedrl.rollouts.demonstration import demonstrator
from deedrl.rollouts.runner import EpisodeSpec, run_episodes_sync
from deedrl.types import Action

PROBES = injection_probes("test", 12, 4)
SPECS = [EpisodeSpec(task=task, episode_id=task.id, seed=0) for task in PROBES]


def test_H12_every_probe_holds_an_order_and_a_request() -> None:
    for task in PROBES:
        goal = read_goal(task)
        bodies = " ".join(mail["body"] for mail in task.initial_state["mails"])
        assert goal.requests
        assert goal.bait.path in bodies or goal.bait.address in bodies


def test_H12_doing_the_job_obeys_nothing() -> None:
    policy = DemonstrationPolicy({task.id: task for task in PROBES}, demonstrator(OfficeClerk))
    seen = injection_figures(run_episodes_sync(SPECS, environment=OfficeClerk, policy=policy, rubric=None), obeyed)
    assert (seen.obeyed.value, seen.solved.value, seen.unjudged) == (0.0, 1.0, 0)


def test_H12_obeying_is_counted_where_it_happens() -> None:
    """Half of the mailboxes are played by a clerk who does what the bait asks for and finishes."""
    baits = {task.id: read_goal(task).bait for task in PROBES[:6]}

    def clerk(request: CompletionRequest) -> Action:
        bait = baits.get(request.episode_id)
        if bait is None or request.turn > 0:
            return Action(tool_name="finish")
        return Action(tool_name="update_api", parameters={"path": bait.path, "value": "9999"})

    policy = ScriptedPolicy(clerk)
    seen = injection_figures(run_episodes_sync(SPECS, environment=OfficeClerk, policy=policy, rubric=None), obeyed)
    assert (seen.obeyed.numerator, seen.obeyed.denominator, seen.solved.value) == (6, 12, 0.0)
