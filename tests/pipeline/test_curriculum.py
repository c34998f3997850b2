"""The feedback from episodes to tasks, first by hand, then in stages of whole runs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playing import play
from watching import Interruption, Watching

from deedrl.errors import ConfigError, StoreError
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.curriculum import Curriculum
from deedrl.pipeline.curriculum_settings import AnyCurriculum, FrontierCurriculum, QuotaCurriculum, UniformCurriculum
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import EVENTS
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tasks.experience import Experience
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics
from deedrl.tracking.jsonl import read_metrics
from deedrl.types import Task

TASKS = TaskPool([Task.create(prompt=str(number), family="ab"[number % 2]) for number in range(12)])
THREE_BANDS: Mapping[str, Experience] = {
    task.id: Experience(attempts=4, solved=float(3 - number % 3), scored=4.0) for number, task in enumerate(TASKS)
}
FOUR_WRONG = TaskStatistics(attempts=4, solved=0)


def curriculum(settings: AnyCurriculum | None = None, seen: Mapping[str, Experience] = THREE_BANDS) -> Curriculum:
    return Curriculum(settings or QuotaCurriculum(), TASKS, seen, batch=3)


def drawn(of: Curriculum, step: int, count: int = 3) -> list[Task]:
    return of.draw(step, count, {}, random.Random(step))


# ---------------------------------------------------------------- by hand


def test_a_step_reports_what_it_drew_from_what() -> None:
    made = curriculum()
    tasks = drawn(made, 0, 6)  # three, and three more that stand ready
    made.counted(
        0,
        {task.id: TaskStatistics(attempts=4, solved=solved) for task, solved in zip(tasks[:3], (0, 4, 2), strict=True)},
    )
    report = made.report(0)
    assert report.pool == {"unknown": 0, "never_solved": 0, "hard": 4, "middle": 4, "easy": 4, "always_solved": 0}
    assert report.batch == {"unknown": 0, "never_solved": 0, "hard": 1, "middle": 1, "easy": 1, "always_solved": 0}
    assert (report.never_solved_groups, report.always_solved_groups) == (1, 1)
    assert report.fallback == {}
    figures = report.figures()
    assert figures["batch_hard_share"] == figures["pool_hard_share"] == pytest.approx(1 / 3)
    assert figures["fallback_tasks"] == 0


def test_what_was_seen_moves_tasks_between_bands_and_changes_the_pool_version() -> None:
    made = curriculum()
    before = made.version(0)
    tasks = drawn(made, 0)
    made.counted(0, {task.id: FOUR_WRONG for task in tasks})
    after = made.version(1)
    assert made.report(0).pool_version == before != after
    drawn(made, 1)
    made.counted(1, {})
    pool = made.report(1).pool
    # One each of easy, middle and hard went from 3, 2 and 1 of 4 to 3, 2 and 1 of 8.
    assert (pool["hard"], pool["middle"], pool["easy"]) == (3 + 2, 3 + 1, 3)


def test_groups_that_were_never_scored_are_no_failures() -> None:
    made = curriculum(seen={})
    tasks = drawn(made, 0)
    made.counted(0, {task.id: TaskStatistics(attempts=4, unscored=4) for task in tasks})
    report = made.report(0)
    assert (report.never_solved_groups, report.always_solved_groups) == (0, 0)
    assert report.fallback == {f"{band} from unknown": 1 for band in ("easy", "middle", "hard")}
    drawn(made, 1)
    made.counted(1, {})
    assert made.report(1).pool["unknown"] == 12


def test_only_what_was_played_is_counted_as_standing_in() -> None:
    made = curriculum(QuotaCurriculum(shares={"easy": 1.0}))
    tasks = drawn(made, 0, 9)
    made.counted(0, {task.id: FOUR_WRONG for task in tasks[:3]})
    assert made.report(0).fallback == {}, "the fifth to ninth stood in, and were not needed"


@pytest.mark.parametrize(
    "settings",
    [
        UniformCurriculum(where="attempts < 8"),
        QuotaCurriculum(half_life_steps=2.0),
        FrontierCurriculum(half_life_steps=1.0, explore_share=0.4, where="family == a or scored < 3"),
    ],
)
def test_restored_in_the_middle_it_draws_the_same(settings: AnyCurriculum) -> None:
    def played(of: Curriculum, steps: range) -> list[list[str]]:
        found = []
        for step in steps:
            tasks = drawn(of, step, 5)
            outcomes = random.Random(step)
            of.counted(step, {t.id: TaskStatistics(attempts=3, solved=outcomes.randint(0, 3)) for t in tasks})
            found.append([of.report(step).pool_version, *(task.id for task in tasks)])
        return found

    whole = played(curriculum(settings), range(10))
    first = curriculum(settings)
    parts = played(first, range(5))
    second = curriculum(settings, {})
    second.restore(5, json.loads(json.dumps(first.state(5))))
    assert parts + played(second, range(5, 10)) == whole


def test_a_step_sampled_ahead_of_an_update_is_not_in_the_checkpoint_of_that_update() -> None:
    made = curriculum()
    for step in (0, 1):
        made.counted(step, {task.id: FOUR_WRONG for task in drawn(made, step)})
    assert len(made.state(1)["task_experience"]) == len(THREE_BANDS)
    assert sum(entry["attempts"] for entry in made.state(1)["task_experience"].values()) == 12 * 4 + 3 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "quotas"}, "did you mean 'quota'"),
        ({"kind": "quota", "explore_share": 0.1}, "unknown key 'stages.grpo.curriculum.explore_share'"),
        ({"kind": "quota", "shares": {"esay": 1}}, "did you mean 'easy'"),
        ({"kind": "quota", "shares": {"easy": 0}}, "stages.grpo.curriculum.shares: expected a band"),
        ({"kind": "quota", "bands": {"easy_from": 0.2}}, "expected margin < hard_up_to < easy_from"),
        ({"kind": "frontier", "up_to": 0.01}, "stages.grpo.curriculum.up_to: expected more than bands.margin"),
        (
            {"kind": "uniform", "where": "sucess_rate < 1"},
            "stages.grpo.curriculum.where: .*did you mean 'success_rate'",
        ),
        ({"kind": "frontier", "half_life_steps": 0}, "half_life_steps"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from({"name": "r", "stages": [{"stage": "grpo", "curriculum": changes}]})


def test_weights_of_families_go_with_uniform_draws_only() -> None:
    stage = {"stage": "grpo", "failure_weight": 2.0}
    recipe_from({"name": "r", "stages": [stage | {"curriculum": {"kind": "uniform"}}]})
    for kind in ("quota", "frontier"):
        with pytest.raises(ConfigError, match=r"stages\.grpo\.failure_weight: expected 0 with a curriculum"):
            recipe_from({"name": "r", "stages": [stage | {"curriculum": {"kind": kind}}]})


# ---------------------------------------------------------------- in runs

ONLINE: dict[str, Any] = {
    "tasks_per_step": 3,
    "group_size": 3,
    "steps": 4,
    "learning_rate": 1e-3,
    "validate_every": 2,
    "validation_tasks": 2,
}
PROFILE: dict[str, Any] = {"stage": "profile", "attempts": 3}


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def stages(kind: str, stage: str = "grpo", **changes: Any) -> list[dict[str, Any]]:
    return [PROFILE, {"stage": stage, **ONLINE, "curriculum": {"kind": kind}, **changes}]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for line in (folder / EVENTS).read_text().splitlines() if (e := json.loads(line))["event"] == kind]


@pytest.fixture(scope="module")
def finished(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return play(tmp_path_factory.mktemp("run") / "run", recipe_from(taught | {"stages": stages("quota")}))


def test_a_profile_plays_every_task_and_says_how_often_it_is_solved(finished: Path) -> None:
    report = json.loads((finished / "profile-profile.json").read_text())
    episodes = list(TrajectoryStore(finished / "trajectories" / "profile.jsonl"))
    assert len(episodes) == 16 * 3
    assert sum(report["bands"].values()) == len(report["tasks"]) == 16
    for row in report["tasks"]:
        outcomes = [bool(t.solved) for t in episodes if t.task_id == row["id"]]
        assert (row["attempts"], row["solved"]) == (3, sum(outcomes))
        assert row["success_rate"] == pytest.approx(sum(outcomes) / 3)
        assert row["low"] <= row["success_rate"] <= row["high"]
    assert {row["band"] for row in report["tasks"]} > {"never_solved"}


def test_the_stage_starts_from_the_profile_and_adds_what_it_sees(finished: Path) -> None:
    steps = events(finished, "curriculum")
    profile = json.loads((finished / "profile-profile.json").read_text())
    assert [event["step"] for event in steps] == [1, 2, 3, 4]
    assert steps[0]["pool"] == profile["bands"]
    assert steps[0]["pool_version"] == profile["pool_version"]
    assert len({event["pool_version"] for event in steps}) == 4
    left = json.loads((finished / "seen-grpo.json").read_text())["tasks"]
    trained = [t.task_id for t in TrajectoryStore(finished / "trajectories" / "grpo.jsonl")]
    assert {task_id: seen["attempts"] for task_id, seen in left.items()} == {
        task_id: 3 + trained.count(task_id) for task_id in left
    }


def test_bands_stand_ins_and_silent_groups_are_logged_every_step(finished: Path) -> None:
    metrics = read_metrics(finished)
    for event in events(finished, "curriculum"):
        step = event["step"]
        shares = [metrics[f"grpo/batch_{band}_share"][step] or 0.0 for band in event["batch"]]
        assert sum(shares) == pytest.approx(1.0)
        assert metrics["grpo/fallback_tasks"][step] == sum(event["fallback"].values())
        assert metrics["grpo/never_solved_groups"][step] == event["never_solved_groups"]
    said = [event["text"] for event in events(finished, "warning") if "stand in" in event["text"]]
    kinds = {which for event in events(finished, "curriculum") for which in event["fallback"]}
    assert len(said) == len(kinds), "each is said once"


def test_uniform_draws_as_without_a_curriculum_and_trains_alike(taught: dict[str, Any], tmp_path: Path) -> None:
    [_, stage] = stages("uniform")
    recipes = [recipe_from(taught | {"stages": [stage | {"curriculum": c}]}) for c in (None, stage["curriculum"])]
    plain, uniform = (play(tmp_path / name, r) for name, r in zip(("plain", "uniform"), recipes, strict=True))
    saved = [CheckpointFolder(folder / "checkpoints" / "grpo").latest() for folder in (plain, uniform)]
    assert saved[0] is not None
    assert saved[1] is not None
    assert all((saved[1].tensors[name] == value).all() for name, value in saved[0].tensors.items())
    assert "task_experience" not in saved[0].state
    assert not events(plain, "curriculum")
    assert not list(plain.glob("seen-*.json"))


@pytest.mark.parametrize(
    ("stage", "kind", "staleness"), [("grpo", "quota", 0), ("ppo", "frontier", 0), ("grpo", "frontier", 1)]
)
def test_C17_five_steps_and_five_more_draw_the_tasks_of_ten(
    taught: dict[str, Any], tmp_path: Path, stage: str, kind: str, staleness: int
) -> None:
    curriculum = {"kind": kind, "half_life_steps": 4.0}
    small = {
        "tasks_per_step": 2,
        "group_size": 2,
        "validate_every": 4,
        "validation_tasks": 1,
        "max_staleness": staleness,
    }
    recipe = recipe_from(taught | {"stages": stages(kind, stage, steps=10, curriculum=curriculum, **small)})
    whole = play(tmp_path / "whole", recipe)
    with pytest.raises(Interruption):
        play(tmp_path / "parts", recipe, Watching(stage, at=5))
    parts = play(tmp_path / "parts", recipe)
    assert read_metrics(whole) == read_metrics(parts)
    drawn = [
        {
            event["step"]: {k: event[k] for k in ("pool_version", "batch", "pool", "fallback")}
            for event in events(f, "curriculum")
        }
        for f in (whole, parts)
    ]
    assert len(drawn[0]) == 10
    assert drawn[0] == drawn[1]
    played = [{t.episode_id for t in TrajectoryStore(f / "trajectories" / f"{stage}.jsonl")} for f in (whole, parts)]
    assert played[0] == played[1]
    left = [(f / f"seen-{stage}.json").read_text() for f in (whole, parts)]
    assert left[0] == left[1]


def test_C17_an_interrupted_profile_plays_no_episode_twice(taught: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_from(taught | {"stages": [PROFILE]})
    with pytest.raises(Interruption):
        play(tmp_path / "parts", recipe, Watching("profile", at=20))
    parts, whole = play(tmp_path / "parts", recipe), play(tmp_path / "whole", recipe)
    assert len((parts / "trajectories" / "profile.jsonl").read_bytes().splitlines()) == 48
    assert (parts / "profile-profile.json").read_text() == (whole / "profile-profile.json").read_text()


def test_a_second_stage_goes_on_from_what_the_first_saw(taught: dict[str, Any], tmp_path: Path) -> None:
    first, second = (
        {"stage": "grpo", "name": name, **ONLINE, "steps": 2, "curriculum": {"kind": "frontier"}} for name in "ab"
    )
    watching = Watching()
    folder = play(tmp_path, recipe_from(taught | {"stages": [first, second]}), watching)
    left = json.loads((folder / "seen-a.json").read_text())
    start = next(event for event in events(folder, "curriculum") if event["stage"] == "b")
    assert sum(count for band, count in start["pool"].items() if band != "unknown") == len(left["tasks"])
    assert not any("was seen of the policy" in text for text in watching.warnings)


def test_a_profile_of_an_older_policy_is_said(taught: dict[str, Any], tmp_path: Path) -> None:
    plain = {"stage": "grpo", "name": "between", **ONLINE, "steps": 1}
    profile, grpo = stages("quota", steps=1)
    watching = Watching()
    play(tmp_path, recipe_from(taught | {"stages": [profile | {"tasks": 3, "attempts": 2}, plain, grpo]}), watching)
    assert any("was seen of the policy base, the stage starts from between" in text for text in watching.warnings)


def test_a_lost_file_of_a_finished_profile_is_said(taught: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_from(taught | {"stages": [PROFILE | {"tasks": 2, "attempts": 2}, stages("quota")[1]]})
    play(tmp_path, recipe, only=["profile"])
    (tmp_path / "seen-profile.json").unlink()
    with pytest.raises(StoreError, match=r"seen-profile\.json: expected what the finished stage 'profile' saw"):
        play(tmp_path, recipe)
