"""Faults that show in the figures of a run are said out loud."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from deedrl.evaluation.metrics import compute_metrics
from deedrl.pipeline.alarms import (
    EXACT_LOGPROB_GAP,
    LOGPROB_GAP,
    guessing_alarm,
    held_out_alarm,
    logprob_gap_alarm,
    mute_alarm,
    signal_alarm,
    timeout_alarm,
)
from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.tracking.jsonl import JsonlSink
from deedrl.tracking.tracker import Tracker
from deedrl.training.selection import SelectionCounts
from deedrl.types import Action, Completion, Step, TerminationReason, ToolOutput, Trajectory, Verdict


def figures(cut_share: float = 0.0, completion: float = 0.0) -> dict[str, float]:
    return {"cut_share": cut_share, "completion": completion}


# ------------------------------------------------------------ C24


def test_C24_a_limit_that_cuts_every_completion_is_named() -> None:
    """Limit 16 tokens, answer needs 40: every completion is cut and every reward is 0."""
    counts = SelectionCounts(groups=4, zero_variance=4)
    assert signal_alarm(figures(cut_share=1.0), counts, 16) == (
        "no group of this step has a signal: 100% of completions hit sampling.max_tokens (16); raise it"
    )


def test_C24_a_limit_that_cuts_every_completion_is_named_even_if_rewards_differ() -> None:
    found = signal_alarm(figures(cut_share=1.0, completion=0.5), SelectionCounts(groups=4, zero_variance=1), 16)
    assert found == "100% of completions hit sampling.max_tokens (16); raise it"


@pytest.mark.parametrize(
    ("cut_share", "completion", "reason"),
    [(0.95, 0.0, "sampling.max_tokens (72)"), (0.5, 0.0, "no episode succeeds"), (0.0, 1.0, "siblings earn the same")],
)
def test_C24_a_step_without_signal_names_the_likely_reason(cut_share: float, completion: float, reason: str) -> None:
    found = signal_alarm(figures(cut_share, completion), SelectionCounts(groups=2, zero_variance=2), 72)
    assert found is not None
    assert reason in found


def test_C24_groups_too_small_to_compare_carry_no_signal_either() -> None:
    assert signal_alarm(figures(), SelectionCounts(groups=3, zero_variance=1, too_small=2), 72) is not None


@pytest.mark.parametrize("counts", [SelectionCounts(groups=4, zero_variance=3), SelectionCounts()])
def test_C24_nothing_is_said_while_a_group_has_a_signal_or_none_was_played(counts: SelectionCounts) -> None:
    assert signal_alarm(figures(cut_share=0.5), counts, 72) is None


# ------------------------------------------------------------ B17


def test_B17_a_gap_beyond_rounding_raises_an_alarm() -> None:
    found = logprob_gap_alarm({"logprob_gap": 0.34}, torch.bfloat16)
    assert found is not None
    assert "differ by 0.34 nats a token" in found


@pytest.mark.parametrize("updated", [{"logprob_gap": LOGPROB_GAP}, {"logprob_gap": 1e-6}, {"empty_batch": 1.0}])
def test_B17_rounding_and_empty_batches_raise_none(updated: dict[str, float]) -> None:
    assert logprob_gap_alarm(updated, torch.bfloat16) is None


def test_B17_in_float32_rounding_explains_far_less() -> None:
    """A sampler one small update behind: what bf16 would hide."""
    found = logprob_gap_alarm({"logprob_gap": 0.002}, torch.float32)
    assert found is not None
    assert "expected at most 0.001" in found
    assert logprob_gap_alarm({"logprob_gap": EXACT_LOGPROB_GAP}, torch.float32) is None
    assert logprob_gap_alarm({"logprob_gap": 0.002}, torch.bfloat16) is None


# ------------------------------------------------------------ F20


def log(folder: Path, held_out: list[float], reward: list[float]) -> None:
    tracker = Tracker([JsonlSink(folder)])
    for step, value in enumerate(reward, start=1):
        tracker.log({"reward": value}, step=step, stage="grpo")
    for index, value in enumerate(held_out):
        tracker.log({"validation_completion": value}, step=10 * index, stage="grpo")


RISING = [0.2 + 0.006 * step for step in range(90)]
FALLING = [0.4, 0.5, 0.6, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.3]


def test_F20_a_gap_between_reward_and_validations_raises_an_alarm(tmp_path: Path) -> None:
    log(tmp_path, FALLING, RISING)
    found = held_out_alarm(StageFigures.logged(tmp_path, "grpo", 90))
    assert found is not None
    assert "held-out score fell from 0.700 to 0.400" in found


def test_F20_figures_of_other_stages_and_of_later_steps_do_not_count(tmp_path: Path) -> None:
    """An interrupted attempt may have logged further than the checkpoint that was resumed."""
    log(tmp_path, FALLING, RISING)
    assert held_out_alarm(StageFigures.logged(tmp_path, "mine", 90)) is None
    assert held_out_alarm(StageFigures.logged(tmp_path, "grpo", 50)) is None


def test_F20_no_alarm_while_both_rise_or_nothing_is_logged(tmp_path: Path) -> None:
    assert held_out_alarm(StageFigures.logged(tmp_path, "grpo", 90)) is None
    log(tmp_path, sorted(FALLING), RISING)
    assert held_out_alarm(StageFigures.logged(tmp_path, "grpo", 90)) is None


# ------------------------------------------------------------ F10


def episode(family: str, *tools: str) -> Trajectory:
    steps = tuple(
        Step(
            index=index,
            observation="",
            completion=Completion(text=""),
            action=Action(tool_name=name),
            tool_output=ToolOutput(text=""),
        )
        for index, name in enumerate(tools)
    )
    return Trajectory(
        episode_id="e", task_id="t", family=family, steps=steps, verdict=Verdict(solved=True, progress=1.0)
    )


def test_F10_families_that_stopped_looking_are_named() -> None:
    episodes = [episode("status", "look", "act"), *[episode("status", "act")] * 3, episode("window", "look", "act")]
    found = guessing_alarm(compute_metrics(episodes, evidence_tools={"look"}).by_family)
    assert found == "the policy may be guessing: family 'status': 1 of 4 episodes looked before acting"
    assert guessing_alarm(compute_metrics(episodes[:1], evidence_tools={"look"}).by_family) is None


# ------------------------------------------------------------ episodes the policy did not end


def ended(reason: TerminationReason, duration_s: float = 1.0) -> Trajectory:
    return Trajectory(episode_id="e", task_id="t", termination=reason, duration_s=duration_s)


def test_D06_many_episodes_out_of_time_are_named_with_the_limit_that_stopped_them() -> None:
    recipe = msgspec.convert({"name": "desk", "limits": {"episode_timeout_s": 60.0}, "concurrency": 24}, Recipe)
    late = [ended(TerminationReason.TIMEOUT, 60.2)] * 5 + [ended(TerminationReason.TIMEOUT, 9.0)]
    assert timeout_alarm([*late, *[ended(TerminationReason.GOAL)] * 6], recipe) == (
        "6 of 12 episodes ran out of time and count by the state they left: 5 at limits.episode_timeout_s (60 s), "
        "which a slow or busy machine needs higher, or concurrency (24) lower; 1 at the limit of one tool call"
    )


def test_D06_a_lone_episode_out_of_time_among_many_raises_no_alarm() -> None:
    recipe = msgspec.convert({"name": "desk"}, Recipe)
    one = [ended(TerminationReason.TIMEOUT, 400.0)]
    assert timeout_alarm(one + [ended(TerminationReason.GOAL)] * 99, recipe) is None
    assert timeout_alarm([], recipe) is None


def test_episodes_without_room_for_a_first_turn_raise_an_alarm() -> None:
    recipe = msgspec.convert({"name": "desk", "sampling": {"max_tokens": 72}}, Recipe)
    found = mute_alarm([ended(TerminationReason.TOKEN_LIMIT), ended(TerminationReason.GOAL)], recipe)
    assert found is not None
    assert found.startswith("1 of 2 episodes ended before their first turn")
    assert "(72)" in found
    assert mute_alarm([ended(TerminationReason.GOAL)], recipe) is None
