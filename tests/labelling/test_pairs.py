"""Which pairs are shown, and what of them."""

from __future__ import annotations

from pathlib import Path

from deedrl.config import dump_yaml
from deedrl.labelling.pairs import shown, shown_pairs, training_episodes
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Failure, Verdict


def test_pairs_are_of_one_task_and_of_different_words(trajectories) -> None:
    episodes = [trajectories(f"{task}{n}", f"text {n % 2}", task=task) for task in "ab" for n in range(4)]
    found = shown_pairs(episodes, limit=10, seed=3)
    assert len(found) == 2, "equal words are shown once"
    assert all(pair.left.task_id == pair.right.task_id and pair.left.turns != pair.right.turns for pair in found)


def test_the_seed_decides_and_no_side_is_preferred(trajectories) -> None:
    episodes = [trajectories(f"{task}-{n}", f"text {n}", task=str(task)) for task in range(40) for n in (0, 1)]
    found = shown_pairs(episodes, limit=100, seed=3)
    assert found == shown_pairs(episodes, limit=100, seed=3)
    assert found != shown_pairs(episodes, limit=100, seed=4)
    first_on_the_left = sum(pair.left.episode_id.endswith("-0") for pair in found)
    assert 10 < first_on_the_left < 30
    assert len(shown_pairs(episodes, limit=7, seed=3)) == 7


def test_at_most_three_pairs_of_a_task(trajectories) -> None:
    episodes = [trajectories(str(n), f"text {n}") for n in range(6)]
    assert len(shown_pairs(episodes, limit=100, seed=0)) == 3


def test_G04_episodes_of_different_roles_are_not_compared(trajectories) -> None:
    roles = [trajectories(f"{role}{n}", f"text {n}", role=role) for role in ("solver", "critic") for n in range(2)]
    found = shown_pairs(roles, limit=10, seed=3)
    assert [{pair.left.episode_id, pair.right.episode_id} for pair in found] in (
        [{"solver0", "solver1"}, {"critic0", "critic1"}],
        [{"critic0", "critic1"}, {"solver0", "solver1"}],
    )


def test_H11_H14_neither_escapes_nor_keys_nor_the_verdict_are_shown(trajectories) -> None:
    said = "\x1b[31mred\x1b[0m hf_abcdefghij0123456789 and hf_abcdef\x1b[1mghij0123456789"
    found = shown(trajectories("a", said, verdict=Verdict(solved=True)))
    assert found.turns[0].said == "red [redacted] and [redacted]"
    assert "solved" not in str(found)


def test_episodes_come_from_training_alone_and_not_from_trouble(trajectories, tmp_path: Path) -> None:
    stages = [{"stage": "baseline"}, {"stage": "grpo"}]
    (tmp_path / "recipe.yaml").write_text(dump_yaml({"name": "tiny", "stages": stages}))
    (tmp_path / "trajectories").mkdir()
    trouble = Failure(kind="OSError", phase="step", message="")
    TrajectoryStore(tmp_path / "trajectories" / "grpo.jsonl").append_many(
        [
            trajectories("good", "text"),
            trajectories("held", "text", split="test"),
            trajectories("broken", "text", failure=trouble),
            trajectories("silent"),
        ]
    )
    TrajectoryStore(tmp_path / "trajectories" / "baseline.jsonl").append(trajectories("evaluated", "text"))
    assert [t.episode_id for t in training_episodes(tmp_path)] == ["good"]
