"""What a session makes of the recipe's settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deedrl.cli.main import main
from deedrl.environments.environment import Environment
from deedrl.errors import CheckpointError, EnvironmentAuthorError, TaskError
from deedrl.pipeline.context import StageContext
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.grpo_stage import silent_part
from deedrl.pipeline.online import family_weights, update_settings
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.pipeline.session import Session
from deedrl.pipeline.step_episodes import sampled_entropy
from deedrl.pipeline.validation import Validations
from deedrl.reports.progress import make_progress
from deedrl.rollouts.limits import Limits
from deedrl.tasks.pool import TaskPool
from deedrl.tracking.tracker import Tracker
from deedrl.training.losses import Silent
from deedrl.training.policy_gradient import PolicyUpdate
from deedrl.training.selection import SelectionCounts
from deedrl.types import Action, Completion, Step, Task, Trajectory


@pytest.fixture
def open_session(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """A session of a recipe with one evaluation and the sections given; nothing is loaded yet."""
    opened: list[Run] = []

    def open_with(**sections: Any) -> Session:
        recipe = recipe_from({"name": "tiny", "stages": [{"stage": "baseline"}], **sections})
        opened.append(Run.open(tmp_path / "run", recipe))
        return Session(StageContext(recipe, opened[0], Tracker([]), make_progress("quiet")))

    yield open_with
    for run in opened:
        run.close()


def test_every_limit_of_the_recipe_reaches_the_episodes(open_session: Callable[..., Session]) -> None:
    session = open_session(
        limits={
            "max_steps": 11,
            "max_tokens_per_episode": 1200,
            "call_timeout_s": 1.3,
            "episode_timeout_s": 14.0,
            "max_parse_failures": 5,
            "loop_warn": 6,
            "loop_end": 7,
        }
    )
    assert session.limits == Limits(
        max_steps=11,
        max_tokens_per_episode=None,
        max_context_tokens=1200,
        call_timeout_s=1.3,
        episode_timeout_s=14.0,
        max_parse_failures=5,
        loop_warn=6,
        loop_end=7,
    )


def test_a_task_file_is_the_split_it_is_named_for(open_session: Callable[..., Session], tmp_path: Path) -> None:
    tasks = [Task.create("Close ticket 7.", split="test"), Task.create("Close ticket 8.", split="test")]
    TaskPool(tasks).save(tmp_path / "tasks.jsonl")
    assert open_session(tasks={"files": {"test": str(tmp_path / "tasks.jsonl")}}).tasks("test") == tasks


def test_a_task_file_without_tasks_is_refused(open_session: Callable[..., Session], tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("\n\n")
    session = open_session(tasks={"files": {"test": str(tmp_path / "tasks.jsonl")}})
    with pytest.raises(TaskError, match="expected tasks of the split 'test', one JSON object a line, found none"):
        session.tasks("test")


def test_a_task_file_that_names_an_unknown_tool_is_refused(
    open_session: Callable[..., Session], tmp_path: Path
) -> None:
    TaskPool([Task.create("Close ticket 7.", split="test", tools=("close_tikket",))]).save(tmp_path / "tasks.jsonl")
    session = open_session(tasks={"files": {"test": str(tmp_path / "tasks.jsonl")}})
    with pytest.raises(TaskError, match=r"tasks\.jsonl: a task allows the tool 'close_tikket', which does not exist"):
        session.tasks("test")


def test_F22_a_file_of_another_split_ends_the_run_with_code_2(tmp_path: Path, capsys: Any) -> None:
    tasks = tmp_path / "tasks.jsonl"
    TaskPool([Task.create("Close ticket 7.", split="train")]).save(tasks)
    recipe = tmp_path / "recipe.yaml"
    # No such model: the tasks are looked at before one is loaded.
    files = f"{{files: {{test: {tasks}}}}}"
    recipe.write_text(f"name: tiny\nmodel: ./none\ntasks: {files}\nstages: [{{stage: baseline}}]\n")
    with pytest.raises(SystemExit) as ended:
        main(["run", str(recipe), "--out", str(tmp_path / "run"), "--quiet"])
    assert ended.value.code == 2
    assert f"{tasks}, line 1: expected a task of the split 'test', got task" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda: 1 // 0, r"Odd.rubric raised ZeroDivisionError: .*test_session.py:\d+ in <lambda>"),
        (lambda: 5, "Odd.rubric: expected a Rubric or None, got 5"),
    ],
)
def test_a_rubric_that_breaks_the_contract_is_the_authors_error(
    open_session: Callable[..., Session], give: Callable[[], Any], message: str
) -> None:
    class Odd(Environment):
        @classmethod
        def rubric(cls) -> Any:
            return give()

    session = open_session()
    session.environment_class = Odd
    with pytest.raises(EnvironmentAuthorError, match=message):
        _ = session.rubric


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("No space left on device (os error 28)")]
)
def test_E12_a_policy_that_cannot_be_saved_leaves_the_earlier_one(
    open_session: Callable[..., Session], error: Exception
) -> None:
    def save(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise error

    session = open_session()
    session.run.adapter_folder.mkdir()
    session.loaded = SimpleNamespace(save=save)  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match="what was saved before is intact; make room"):
        session.save_policy()
    assert session.run.adapter_folder.is_dir()
    assert not list(session.run.folder.glob(".adapter-*"))


def test_every_update_setting_of_the_stage_reaches_the_update() -> None:
    stage = Grpo(
        learning_rate=0.5,
        max_grad_norm=2.0,
        micro_batch_tokens=3,
        clip_low=0.4,
        clip_high=5.0,
        kl_coefficient=6.0,
        loss_normalisation="sequence",
        normalisation_tokens=7,
        updates_per_batch=8,
    )
    assert update_settings(stage, 0.1) == PolicyUpdate(
        learning_rate=0.1,
        max_grad_norm=2.0,
        micro_batch_tokens=3,
        clip_low=0.4,
        clip_high=5.0,
        kl_coefficient=6.0,
        normalisation="sequence",
        normalisation_tokens=7,
        updates_per_batch=8,
    )


def test_one_policy_rests_while_the_other_samples(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each holds caches and a copy of the weights; both at once were the peak of a whole run."""
    resting: list[bool] = []

    class Policy:
        def __init__(self, *_: Any, guided: bool, **__: Any) -> None:
            self.guided = guided

        def rest(self) -> None:
            resting.append(self.guided)

    monkeypatch.setattr("deedrl.pipeline.session.LocalPolicy", Policy)
    monkeypatch.setattr("deedrl.pipeline.session.check_room", lambda *_: None)
    monkeypatch.setattr(Session, "loaded", SimpleNamespace(model=None, renderer=None))
    session = open_session()
    plain = session.policy()
    assert (session.policy(guided=True) is plain, resting) == (False, [False])
    assert (session.policy() is plain, resting) == (True, [False, True])
    assert (session.policy() is plain, resting) == (True, [False, True, True])


@pytest.mark.parametrize(
    ("groups", "without_signal", "part"),
    [
        (4, 0, 0.0),  # all have one
        (4, 3, 1.0),  # no refill: three of the step's four groups teach nothing, and count
        (7, 3, 0.0),  # three were replaced
        (6, 3, 1 / 3),  # two were replaced, the third has its place in the step
    ],
)
def test_C01_groups_that_a_refill_replaced_are_no_part_of_the_mean(
    groups: int, without_signal: int, part: float
) -> None:
    counts = SelectionCounts(groups=groups, zero_variance=without_signal, silent_episodes=18, silent_tokens=180)
    found = silent_part(Grpo(tasks_per_step=4), counts)
    assert (found.episodes, found.action_tokens) == pytest.approx((18 * part, 180 * part))
    assert isinstance(found, Silent)


def test_families_are_weighted_by_what_the_last_validation_did_not_solve() -> None:
    assert family_weights({"window": 0.25, "status": 1.0}, 8.0) == {"window": 7.0, "status": 1.0}
    assert family_weights({"window": 0.25}, 0.0) == {"window": 1.0}
    assert family_weights({}, 8.0) == {}


def test_C17_what_draws_depend_on_is_part_of_the_checkpoint() -> None:
    held = Validations(step=2, score=0.7, completion=0.75, solved={"window": 0.25})
    assert Validations.from_state(json.loads(json.dumps(held.state()))) == held
    assert Validations.from_state({"best_step": 1, "best_score": 0.5, "best_completion": 0.5}).solved == {}


def test_entropy_is_the_mean_surprise_of_what_was_sampled() -> None:
    def episode(*logprobs: tuple[float, ...]) -> Trajectory:
        steps = [
            Step(index=i, observation="", completion=Completion(text="", logprobs=values), action=Action())
            for i, values in enumerate(logprobs)
        ]
        return Trajectory(episode_id="e", task_id="t", steps=tuple(steps))

    assert sampled_entropy([episode((-0.5, -1.0), (0.0,)), episode((-2.5,))]) == pytest.approx(1.0)
    assert sampled_entropy([episode()]) == 0.0
