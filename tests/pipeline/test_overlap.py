"""Sampling a step while an update runs: the same result as one after the other, resumes included."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.config import dump_yaml
from deedrl.errors import ConfigError
from deedrl.pipeline import online
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.overlap import while_updating
from deedrl.pipeline.recipe import load_recipe, recipe_from
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

LIMIT_S = 20.0
STEPS, TASKS, SIBLINGS = 4, 2, 3


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


# ---------------------------------------------------------------- two at once


def test_both_run_at_the_same_time_and_the_update_on_a_thread_of_its_own() -> None:
    updating, sampling = threading.Event(), threading.Event()
    here = threading.get_ident()

    def update() -> tuple[bool, bool, int]:
        updating.set()
        return sampling.wait(LIMIT_S), threading.get_ident() != here, torch.get_num_threads()

    def sample() -> tuple[bool, bool]:
        sampling.set()
        return updating.wait(LIMIT_S), threading.get_ident() == here

    # The number of threads is that of this thread, not of a new one.
    assert while_updating(update, sample) == ((True, True, 1), (True, True))


@pytest.mark.parametrize("failing", ["update", "sample"])
def test_an_error_of_either_is_raised_when_both_have_ended(failing: str) -> None:
    ended: list[str] = []

    def part(name: str) -> Callable[[], None]:
        def work() -> None:
            ended.append(name)
            if name == failing:
                raise LookupError(name)

        return work

    with pytest.raises(LookupError, match=failing):
        while_updating(part("update"), part("sample"))
    assert sorted(ended) == ["sample", "update"]


# ---------------------------------------------------------------- in a recipe


def test_it_is_off_unless_asked_for() -> None:
    recipe = recipe_from({"name": "r", "stages": [{"stage": "grpo"}]})
    assert [stage.max_staleness for stage in recipe.stages if isinstance(stage, Grpo)] == [0]


@pytest.mark.parametrize(
    ("model", "value", "message"),
    [
        ({"adapter": None}, 1, "stages.grpo.max_staleness: expected 0 with model.adapter: null, got 1"),
        ({}, 2, "max_staleness"),
        ({}, -1, "max_staleness"),
    ],
)
def test_what_cannot_be_overlapped_is_refused(model: dict[str, Any], value: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from({"name": "r", "model": model, "stages": [{"stage": "grpo", "max_staleness": value}]})


# ---------------------------------------------------------------- a stage


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory, tiny_models: Callable[..., Any]) -> Path:
    texts = ["Call choose with the letter.", '{"tool_name":"choose","parameters":{"letter":"A"}}'] * 5
    data = {
        "name": "letters",
        "seed": 5,
        "model": {"path": str(tiny_models(texts).folder(initializer_range=0.3)), "dtype": "fp32"},
        "environment": f"{Path(__file__).with_name('letters.py')}:Letters",
        "tasks": {"train": 16, "validation": 2, "test": 1, "test_unseen": 0},
        "sampling": {"max_tokens": 32},
        "limits": {"max_steps": 2},
        "checkpoints": {"every_steps": 1, "keep_last": 9},
        "stages": [
            {
                "stage": "grpo",
                "steps": STEPS,
                "tasks_per_step": TASKS,
                "group_size": SIBLINGS,
                "refill_attempts": 0,
                "validate_every": 2,
                "validation_tasks": 2,
                "learning_rate": 1e-2,
                "max_staleness": 1,
            }
        ],
    }
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(dump_yaml(data))
    return path


def train(recipe_file: Path, folder: Path, progress: Any = None, overrides: tuple[str, ...] = ()) -> Path:
    return play(folder, load_recipe(recipe_file, list(overrides)), progress)


@pytest.fixture(scope="module")
def overlapped(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "overlapped")


def assert_same(one: Path, other: Path, tolerance: float = 0.0) -> None:
    """The same tokens, and log-probabilities, logged figures and adapter to within `tolerance`."""
    steps = [{t.episode_id: [s.completion for s in t.steps] for t in stored(folder)} for folder in (one, other)]
    tokens, logprobs = (
        [{key: [getattr(c, field) for c in found] for key, found in side.items()} for side in steps]
        for field in ("token_ids", "logprobs")
    )
    assert tokens[0] == tokens[1]
    for episode, turns in logprobs[0].items():
        assert [x for turn in turns for x in turn] == pytest.approx(
            [x for turn in logprobs[1][episode] for x in turn], rel=0, abs=tolerance
        )
    for name in ("reward", "loss", "staleness", "grad_norm"):
        expected = read_metrics(other)[f"grpo/{name}"]
        assert read_metrics(one)[f"grpo/{name}"] == pytest.approx(expected, rel=0, abs=tolerance)
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other)]
    for name, value in adapters[0].items():
        torch.testing.assert_close(adapters[1][name], value, rtol=0, atol=tolerance)


def stored(folder: Path) -> TrajectoryStore:
    return TrajectoryStore(folder / "trajectories" / "grpo.jsonl")


def test_I07_every_sampled_episode_is_trained_on_by_an_update_at_most_one_later(overlapped: Path) -> None:
    logged = read_metrics(overlapped)
    assert logged["grpo/staleness"] == {1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert logged["grpo/groups"] == dict.fromkeys(range(1, STEPS + 1), float(TASKS))
    versions: dict[str, set[str]] = {}
    for trajectory in stored(overlapped):
        step = trajectory.episode_id.split("-")[1]
        versions.setdefault(step, set()).update(s.completion.policy_version for s in trajectory.steps)
    assert len(list(stored(overlapped))) == STEPS * TASKS * SIBLINGS
    assert versions == {"0": {"base"}, "1": {"base"}, "2": {"grpo:1"}, "3": {"grpo:2"}}


def test_updates_move_the_policy_and_the_ratio_sees_it(overlapped: Path) -> None:
    gaps = read_metrics(overlapped)["grpo/logprob_gap"]
    assert gaps[1] is not None
    assert gaps[1] < 1e-4
    assert all(gap is not None and gap > 1e-3 for step, gap in gaps.items() if step > 1)


@pytest.mark.parametrize("first", ["update", "sample"])
def test_nothing_of_a_running_update_is_seen_by_sampling(
    recipe_file: Path, tmp_path: Path, overlapped: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The two one after the other, in either order, give what they give at the same time."""

    def in_turn(update: Callable[[], Any], sample: Callable[[], Any]) -> tuple[Any, Any]:
        if first == "update":
            return update(), sample()
        sampled = sample()
        return update(), sampled

    monkeypatch.setattr(online, "while_updating", in_turn)
    assert_same(overlapped, train(recipe_file, tmp_path / "in_turn"))


@pytest.mark.parametrize(
    ("title", "at", "tolerance"),
    [
        ("grpo", 2, 0.0),
        # The rest of a batch is sampled in other company than the whole of it, and so rounded otherwise.
        ("grpo: episodes of step 3", 2, 1e-3),
        ("grpo: episodes of step 3", TASKS * SIBLINGS, 0.0),
    ],
    ids=["after_a_step", "amid_the_next_batch", "after_the_next_batch"],
)
def test_a_resumed_stage_ends_as_if_nothing_had_happened(
    recipe_file: Path, tmp_path: Path, overlapped: Path, title: str, at: int, tolerance: float
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Interruption):
        train(recipe_file, folder, Watching(title, at))
    assert 0 < len(list(stored(folder))) < STEPS * TASKS * SIBLINGS
    assert_same(overlapped, train(recipe_file, folder), tolerance)


def test_without_staleness_nothing_is_sampled_ahead(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "while_updating", lambda *_: pytest.fail("sampled ahead"))
    folder = train(recipe_file, tmp_path / "run", overrides=("stages.grpo.max_staleness=0",))
    logged = read_metrics(folder)
    assert set(logged["grpo/staleness"].values()) == {0.0}
    assert max(gap or 0.0 for gap in logged["grpo/logprob_gap"].values()) < 1e-4
