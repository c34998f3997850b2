"""Episodes under noise: experts who repeat calls solve their jobs, and recordings are played again bit-equal."""

from __future__ import annotations

from types import MappingProxyType

import msgspec
import pytest

from deedrl.environments.combined import Combined
from deedrl.environments.isolation import ProcessEnvironment
from deedrl.environments.noise import Noise
from deedrl.environments.suite.answers.environment import CustomerAnswers
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.policies.scripted import AGAIN, ScriptedPolicy
from deedrl.rewards.rubric import default_rubric
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.replay import replay_actions
from deedrl.rollouts.reproduce import replay_completions, replay_frozen
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.types import TerminationReason

TASKS = {task.id: task for task in SupportDesk.generate_tasks("train", 24, 0)}
ALL = msgspec.structs.replace(Noise.at(1.0), delay_s=0.001)


def specs(noise):
    return [EpisodeSpec(task=task, episode_id=task.id, seed=n, noise=noise) for n, task in enumerate(TASKS.values())]


def play(noise, limits=None):
    given = specs(noise)
    policy = demonstration_policy(given, SupportDesk)
    return run_episodes_sync(
        given, environment=SupportDesk, policy=policy, rubric=default_rubric(), limits=limits, concurrency=4
    )


@pytest.fixture(scope="module")
def noisy():
    return play(ALL)


def test_demonstrations_under_full_noise_repeat_calls_and_solve_every_job(noisy):
    assert [t.solved for t in noisy] == [True] * len(TASKS)
    taken = [step for t in noisy for step in t.steps if step.tool_output.by_noise]
    repeated = [step for t in noisy for step in t.steps if AGAIN in step.completion.text]
    assert len(taken) > 10
    assert len(repeated) > 10


def test_a_recording_says_its_noise_and_is_played_again_bit_equal(noisy):
    for trajectory in noisy:
        assert trajectory.provenance.noise == ALL.levels()
        assert replay_actions(trajectory, TASKS[trajectory.task_id], SupportDesk).equal


def test_recorded_completions_and_recorded_outputs_are_played_again_bit_equal(noisy):
    limits, rubric = Limits(), default_rubric()
    again = replay_completions(noisy, TASKS, SupportDesk, limits=limits, rubric=rubric)
    frozen = replay_frozen(noisy, TASKS, SupportDesk, limits=limits, rubric=rubric)
    assert [report.equal for report in again] == [True] * len(TASKS)
    assert [report.equal for report in frozen] == [True] * len(TASKS)


def test_a_recording_played_again_without_its_noise_differs(noisy):
    bare = msgspec.structs.replace(noisy[0].provenance, noise={})
    replays = [
        replay_actions(msgspec.structs.replace(t, provenance=bare), TASKS[t.task_id], SupportDesk).equal for t in noisy
    ]
    assert not all(replays)


def test_steps_of_noise_cost_no_reward_and_no_step_of_the_limit(noisy):
    longest = max(task.shortest_steps for task in TASKS.values())
    quiet, tight = play(Noise()), play(ALL, Limits(max_steps=longest))
    assert [t.reward for t in noisy] == [t.reward for t in quiet]
    assert [t.solved for t in tight] == [True] * len(TASKS)
    assert max(len(t.steps) for t in tight) > longest


def test_level_zero_records_what_no_noise_records():
    def plain(trajectories):
        return [
            (t.termination, t.verdict, t.breakdown, [(s.observation, s.action, s.state_hash) for s in t.steps])
            for t in trajectories
        ]

    assert plain(play(Noise.at(0.0))) == plain(play(Noise()))
    assert all(t.provenance.noise == {} for t in play(Noise.at(0.0)))


def test_the_prompt_lists_the_distracting_tools_and_they_may_be_called():
    noise = Noise(distractors=1.0)
    task = next(iter(TASKS.values()))
    seen = []

    def script(request):
        seen.append(request)
        extra = next(schema for schema in request.tools if schema.name not in SupportDesk.tools)
        parameters = {name: 1 if name == "year" else "x" for name in extra.parameters["properties"]}
        return msgspec.json.encode({"reasoning": "", "tool_name": extra.name, "parameters": parameters}).decode()

    (played,) = run_episodes_sync(
        [EpisodeSpec(task=task, episode_id="e", noise=noise)],
        environment=SupportDesk,
        policy=ScriptedPolicy(script),
        rubric=None,
    )
    first = played.steps[0]
    assert f"- {first.action.tool_name}(" in seen[0].messages[0].content
    assert first.tool_output.ok
    assert played.termination is TerminationReason.LOOP
    assert first.action.tool_name in played.provenance.tool_versions


class Jobs(Combined):
    """Two jobs as one."""

    parts = MappingProxyType({"desk": SupportDesk, "answers": CustomerAnswers})


@pytest.mark.parametrize(
    ("cls", "make"),
    [
        (Jobs, Jobs),
        (SupportDesk, lambda: ProcessEnvironment("deedrl/SupportDesk-v0")),
    ],
)
def test_combined_environments_and_those_in_a_process_have_noise_too(cls, make):
    tasks = cls.generate_tasks("train", 8, 0)
    given = [EpisodeSpec(task=task, episode_id=task.id, seed=n, noise=ALL) for n, task in enumerate(tasks)]
    policy = demonstration_policy(given, cls)
    played = run_episodes_sync(given, environment=make, policy=policy, rubric=None, concurrency=1)
    assert [t.solved for t in played] == [True] * 8
    assert any(step.tool_output.by_noise for t in played for step in t.steps)
    assert all(replay_actions(t, task, cls).equal for t, task in zip(played, tasks, strict=True))
