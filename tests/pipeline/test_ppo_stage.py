"""The stage `ppo` on a tiny model: that it learns, what it logs and says, and that an interruption changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.cli.main import main
from deedrl.config import dump_yaml
from deedrl.errors import ConfigError
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.recipe import load_recipe, recipe_from, select_stages
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

STEPS, WARM_UP = 4, 1
PPO: dict[str, Any] = {
    "stage": "ppo",
    "steps": STEPS,
    "tasks_per_step": 4,
    "group_size": 2,
    "value_warmup_steps": WARM_UP,
    "learning_rate": 5e-4,
    "critic_learning_rate": 1e-2,
    "validate_every": 2,
    "validation_tasks": 4,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def made(taught: dict[str, Any], **changes: Any) -> Any:
    return recipe_from(taught | {"stages": [PPO | changes]})


@pytest.fixture(scope="module")
def finished(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of the command; tests only read it."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "recipe.yaml").write_text(dump_yaml(taught | {"stages": [PPO]}))
    with pytest.raises(SystemExit) as end:
        main(["ppo", str(folder / "recipe.yaml"), "--run", str(folder / "whole"), "--quiet"])
    assert not end.value.code
    return folder / "whole"


# ---------------------------------------------------------------- learning


@pytest.mark.parametrize("critic", ["value_head", "adapter"])
def test_completion_rises(taught: dict[str, Any], tmp_path: Path, critic: str) -> None:
    changes = {"steps": 8, "tasks_per_step": 8, "critic": critic, "validate_every": 0}
    folder = play(tmp_path / "run", made(taught, **changes))
    completion = [value or 0.0 for _, value in sorted(read_metrics(folder)["ppo/completion"].items())]
    assert sum(completion[:2]) / 2 < 0.2
    assert sum(completion[-4:]) / 4 > 0.6
    files = sorted(path.name for path in (folder / "adapter").iterdir())
    assert "adapter_model.safetensors" in files
    assert "critic" not in files, "the critic is no part of the policy"


# ---------------------------------------------------------------- what is logged and said


def test_all_figures_are_logged_and_warm_up_leaves_the_policy_alone(finished: Path) -> None:
    logged = read_metrics(finished)
    for name in ("value_loss", "critic_grad_norm", "value_mean", "return_mean", "entropy", "reward", "learning_rate"):
        assert set(logged[f"ppo/{name}"]) == {1, 2, 3, 4}, name
    for name in ("loss", "grad_norm", "kl", "approx_kl", "clip_fraction", "logprob_gap"):
        assert set(logged[f"ppo/{name}"]) == {2, 3, 4}, name
    assert logged["ppo/explained_variance"]
    assert logged["ppo/learning_rate"] == {1: 0.0, 2: 5e-4, 3: 2.5e-4, 4: 0.0}
    assert logged["ppo/kl"][2] is not None
    assert max(logged["ppo/logprob_gap"].values()) < 1e-4  # type: ignore[type-var, operator]
    assert logged["ppo/value_mean"][1] == 0.0
    assert logged["ppo/value_mean"][2] != 0.0


def test_value_warm_up_does_not_change_the_policy(taught: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("ppo", at=1))
    checkpoints = CheckpointFolder(tmp_path / "run" / "checkpoints" / "ppo")
    saved = checkpoints.latest()
    assert saved is not None
    assert saved.step == 1
    policy = {name: value for name, value in saved.tensors.items() if name.startswith("parameter.")}
    for name, value in policy.items():
        assert torch.equal(value, saved.tensors[f"reference.{name.removeprefix('parameter.')}"])
    assert float(saved.tensors["critic.parameter.value_head.weight"].abs().max()) > 0


def test_episodes_that_a_limit_cut_are_bootstrapped_counted_and_said(taught: dict[str, Any], tmp_path: Path) -> None:
    """So few tokens that no answer is finished, and one turn."""
    short = taught | {"sampling": {"max_tokens": 4}, "limits": {"max_steps": 1}}
    progress = Watching()
    folder = play(tmp_path / "run", made(short, steps=2, validate_every=0), progress)
    logged = read_metrics(folder)
    assert {t.termination.value for t in TrajectoryStore(folder / "trajectories" / "ppo.jsonl")} == {"step_limit"}
    assert logged["ppo/bootstrapped_episodes"] == logged["ppo/learnt_episodes"] == {1: 8.0, 2: 8.0}
    said = [text for text in progress.warnings if text.startswith("ppo: ")]
    assert sum("a limit cut 8 of 8 episodes" in text for text in said) == 2
    assert sum("sampling.max_tokens (4); raise it" in text for text in said) == 2
    folder = play(tmp_path / "judged", made(short, steps=2, validate_every=0, bootstrap_at=[]), progress := Watching())
    assert read_metrics(folder)["ppo/bootstrapped_episodes"] == {1: 0.0, 2: 0.0}
    assert not any("bootstrap_at" in text for text in progress.warnings)


def test_step_rewards_that_a_stage_cannot_use_are_said(taught: dict[str, Any], tmp_path: Path) -> None:
    paying = tmp_path / "paying.py"
    source = Path(taught["environment"].rpartition(":")[0]).read_text()
    step = """
    def step(self, action):
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward + 0.25, terminated, truncated, info

    @classmethod
    def rubric"""
    paying.write_text(source.replace("\n    @classmethod\n    def rubric", step))
    taught = taught | {"environment": f"{paying}:Letters"}
    few = {"steps": 2, "validate_every": 0}
    used, unused, group = Watching(), Watching(), Watching()
    folder = play(tmp_path / "used", made(taught, **few), used)
    assert not any("single steps" in text for text in used.warnings)
    assert read_metrics(folder)["ppo/step_reward_episodes"][1]
    play(tmp_path / "unused", made(taught, **few, step_reward_weight=0.0), unused)
    assert any("pays for single steps" in text for text in unused.warnings)
    grpo = {"stage": "grpo", "steps": 1, "tasks_per_step": 2, "group_size": 2, "validate_every": 0}
    play(tmp_path / "grpo", recipe_from(taught | {"stages": [grpo]}), group)
    assert any(text.startswith("grpo: the environment pays for single steps") for text in group.warnings)


# ---------------------------------------------------------------- resume


def assert_same_result(one: Path, other: Path) -> None:
    first, second = (CheckpointFolder(folder / "checkpoints" / "ppo").latest() for folder in (one, other))
    assert first is not None
    assert second is not None
    assert first.step == second.step == STEPS
    assert first.state == second.state
    assert first.tensors.keys() == second.tensors.keys()
    assert any(name.startswith("critic.exp_avg.") for name in first.tensors)
    for name, value in first.tensors.items():
        assert torch.equal(second.tensors[name], value), name
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other)]
    assert all(torch.equal(adapters[1][name], value) for name, value in adapters[0].items())
    assert read_metrics(one) == read_metrics(other)


@pytest.mark.parametrize("at", [1, 2], ids=["after_the_warm_up", "after_a_validation"])
def test_C17_an_interrupted_stage_resumes_to_the_same_parameters_moments_and_figures(
    finished: Path, taught: dict[str, Any], tmp_path: Path, at: int
) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("ppo", at=at))
    assert_same_result(finished, play(tmp_path / "run", made(taught)))


def test_C17_with_an_adapter_for_the_critic_too(taught: dict[str, Any], tmp_path: Path) -> None:
    recipe = made(taught, critic="adapter")
    whole = play(tmp_path / "whole", recipe)
    with pytest.raises(Interruption):
        play(tmp_path / "run", recipe, Watching("ppo", at=3))
    assert_same_result(whole, play(tmp_path / "run", recipe))


# ---------------------------------------------------------------- settings


def problem(**changes: Any) -> str:
    data = {"name": "tiny", "stages": [{"stage": "ppo"} | changes.pop("ppo", {})]} | changes
    with pytest.raises(ConfigError) as error:
        recipe_from(data)
    return str(error.value)


@pytest.mark.parametrize(
    ("ppo", "message"),
    [
        ({"value_warmup_steps": 10}, "stages.ppo.value_warmup_steps: expected less than steps (10)"),
        ({"gamma": 0.0}, "gamma"),
        ({"gae_lambda": 1.1}, "gae_lambda"),
        ({"critic": "value-head"}, "critic"),
        ({"bootstrap_at": ["goal"]}, "bootstrap_at"),
        ({"bootstrap_at": ["loop", "loop"]}, "stages.ppo.bootstrap_at: expected each limit once, got loop twice"),
        ({"final_learning_rate": 1.0}, "stages.ppo.final_learning_rate: expected at most learning_rate"),
        ({"patience_steps": 3, "validate_every": 0}, "stages.ppo.patience_steps: early stopping needs validations"),
        ({"advantage": "grpo"}, "advantage"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_name(ppo: dict[str, Any], message: str) -> None:
    assert message in problem(ppo=ppo)


def test_the_rest_of_the_recipe_must_fit(tmp_path: Path) -> None:
    assert "stages.ppo.critic: expected value_head" in problem(ppo={"critic": "adapter"}, model={"adapter": None})
    assert "stages.ppo.temperature: expected above 0" in problem(sampling={"temperature": 0.0})
    assert "stages.ppo: validation needs tasks" in problem(tasks={"validation": 0})


def test_one_trajectory_of_a_task_is_enough() -> None:
    [stage] = recipe_from({"name": "tiny", "stages": [{"stage": "ppo", "group_size": 1}]}).stages
    assert isinstance(stage, Ppo)


def test_the_command_runs_ppo_stages_only(finished: Path) -> None:
    events = [json.loads(line) for line in (finished / "events.jsonl").read_text().splitlines()]
    assert [event["stage"] for event in events if event["event"] == "stage_finished"] == ["ppo"]
    quickstart = load_recipe(Path(__file__).resolve().parents[2] / "recipes" / "quickstart.yaml")
    with pytest.raises(ConfigError, match="expected a ppo stage"):
        select_stages(quickstart, ("ppo",))
