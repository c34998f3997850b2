"""The local policy in the real episode loop, with a small environment."""

from __future__ import annotations

import pytest
import torch

from deedrl.environments.environment import Environment
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.policy import LocalPolicy
from deedrl.rewards.rubric import default_rubric
from deedrl.rollouts.runner import EpisodeSpec, FailurePolicy, Limits, run_episodes_sync
from deedrl.tools.tool import tool
from deedrl.training.samples import samples_from
from deedrl.types import SamplingParams, Task, TerminationReason, Verdict


class Counter(Environment):
    """Set the counter to 3, then finish."""

    instructions = "You keep a counter."
    max_steps = 3
    blocking = False

    def setup(self, task: Task) -> None:
        self.value = 0

    def verify(self, task: Task) -> Verdict:
        return Verdict(solved=self.value == 3, progress=float(self.value == 3))

    @tool
    def set_value(self, value: int) -> str:
        """Sets the counter."""
        self.value = value
        return f"value set to {value}"

    @tool(ends_episode=True)
    def finish(self) -> str:
        """Ends the job."""
        return "finished"


class SlowCounter(Counter):
    blocking = True


def play(loaded, count, *, guided=False, max_tokens=150, max_rows=64, policy=None, environment=Counter, **options):
    policy = policy or LocalPolicy(loaded.model, loaded.renderer, guided=guided, max_rows=max_rows)
    task = Task.create("Set the counter to 3.")
    sampling = SamplingParams(max_tokens=max_tokens)
    specs = [EpisodeSpec(task=task, episode_id=f"e{i}", seed=i, sampling=sampling) for i in range(count)]
    return run_episodes_sync(specs, environment=environment, policy=policy, rubric=default_rubric(), **options)


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


@pytest.fixture(scope="module")
def guided(loaded):
    return play(loaded, 10, guided=True)


def test_random_model_under_the_guide_plays_whole_episodes(guided):
    """Only a turn that hits its token limit may fail to be an action."""
    steps = [step for trajectory in guided for step in trajectory.steps]
    assert all(step.action.valid and step.action.tier == "strict" for step in steps if _stopped(step))
    assert sum(map(_stopped, steps)) > 0.7 * len(steps)
    assert not any(trajectory.errored for trajectory in guided)
    assert any(len(trajectory.steps) > 1 for trajectory in guided)


def _stopped(step):
    return step.completion.finish_reason == "stop"


def test_guided_episodes_are_marked(guided):
    assert {trajectory.provenance.source for trajectory in guided} == {"guided"}
    assert all(step.completion.guided for trajectory in guided for step in trajectory.steps)


def test_B01_free_episodes_record_what_a_plain_pass_over_all_turns_confirms(kit, loaded):
    plain = kit.plain()
    trajectories = play(loaded, 4, max_tokens=20)
    assert {trajectory.termination for trajectory in trajectories} == {TerminationReason.PARSE_FAILURES}
    for trajectory in trajectories:
        [sample] = samples_from(trajectory)
        with torch.no_grad():
            logprobs = plain(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
        at = [i for i, action in enumerate(sample.action_mask) if action]
        expected = [float(logprobs[i - 1, sample.ids[i]]) for i in at]
        assert [sample.logprobs[i] for i in at] == pytest.approx(expected, abs=1e-5)


def test_episodes_are_the_same_with_fewer_rows_than_episodes(loaded):
    def tokens(trajectories):
        return [[step.completion.token_ids for step in trajectory.steps] for trajectory in trajectories]

    wide, narrow = play(loaded, 6, max_tokens=12), play(loaded, 6, max_tokens=12, max_rows=2)
    assert tokens(wide) == tokens(narrow)


def test_environments_on_threads_play_the_same_episodes(loaded):
    in_loop, threads = (play(loaded, 3, max_tokens=12, environment=e) for e in (Counter, SlowCounter))
    assert [t.steps[0].completion.token_ids for t in in_loop] == [t.steps[0].completion.token_ids for t in threads]


def test_episode_out_of_time_in_the_middle_of_a_turn_leaves_the_policy_usable(loaded):
    policy = LocalPolicy(loaded.model, loaded.renderer)
    late = play(loaded, 2, policy=policy, max_tokens=1500, limits=Limits(episode_timeout_s=0.02))
    assert {trajectory.termination for trajectory in late} == {TerminationReason.TIMEOUT}
    policy.weights_changed("1")  # refuses if a turn were still in the engine
    again = play(loaded, 2, policy=policy, max_tokens=12)
    fresh = play(loaded, 2, max_tokens=12)
    assert [t.steps[0].completion.token_ids for t in again] == [t.steps[0].completion.token_ids for t in fresh]


def test_conversation_that_outgrows_the_model_ends_with_the_token_limit(kit):
    small = kit.load(positions=256)
    [trajectory] = play(small, 1, max_tokens=60)
    assert trajectory.termination is TerminationReason.TOKEN_LIMIT
    assert not trajectory.errored


def test_error_in_the_model_is_infrastructure_trouble_and_is_retried(kit, monkeypatch):
    loaded = kit.load()
    calls = []

    hidden = SamplingModel.hidden

    def fail_once(*inputs):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return hidden(*inputs)

    monkeypatch.setattr(SamplingModel, "hidden", fail_once)
    trajectories = play(loaded, 3, max_tokens=12, failures=FailurePolicy(retries=1))
    assert not any(trajectory.errored for trajectory in trajectories)
    assert {trajectory.provenance.attempt for trajectory in trajectories} == {2}
