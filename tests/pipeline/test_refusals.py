"""What a run refuses before or instead of doing it, in one message with exit code 2 and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deedrl.cli.main import main
from deedrl.config import dump_yaml
from deedrl.errors import ConfigError, ModelError
from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import ADAPTER, Run, latest_adapter
from deedrl.pipeline.stages import export_policy
from deedrl.policies.local.model import add_adapter

ENVIRONMENT = Path(__file__).with_name("letters.py")
BASELINE, COLD_START, SFT = {"stage": "baseline"}, {"stage": "cold_start", "tasks": 2}, {"stage": "sft", "steps": 1}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def models(tiny_models: Callable[..., Any]) -> Any:
    return tiny_models(["Call choose with the letter."] * 9)


@pytest.fixture
def refused(models: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command on a recipe with these sections in `tmp_path`/run; returns what it says with exit code 2."""

    def refuse(command: str, positions: int = 2048, **sections: Any) -> str:
        data = {
            "name": "letters",
            "model": {"path": str(models.folder(positions=positions)), "dtype": "fp32"},
            "environment": f"{ENVIRONMENT}:Letters",
            "tasks": {"train": 4, "validation": 2, "test": 2, "test_unseen": 0},
            "sampling": {"max_tokens": 8},
            "stages": [BASELINE],
        }
        (tmp_path / "recipe.yaml").write_text(dump_yaml(data | sections))
        where = "--out" if command == "run" else "--run"
        with pytest.raises(SystemExit) as ended:
            main([command, str(tmp_path / "recipe.yaml"), where, str(tmp_path / "run"), "--quiet"])
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refuse


def test_a_model_without_room_for_a_turn_is_refused_before_the_first_episode(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    said = refused("run", positions=16)
    assert "holds 16 tokens, too few for one turn: expected room for" in said
    assert "8 of sampling.max_tokens); take a model with a longer context" in said
    assert not list((tmp_path / "run").glob("trajectories/*.jsonl"))


def test_an_episode_limit_below_the_prompt_is_refused(refused: Callable[..., str]) -> None:
    said = refused("run", limits={"max_tokens_per_episode": 20})
    assert "limits.max_tokens_per_episode: expected more than the" in said


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([COLD_START, SFT], "no cold start has finished in {run} yet; run it first: deedrl collect --run {run}"),
        ([BASELINE, SFT], "the recipe has no cold_start stage; add one before this stage"),
    ],
)
def test_sft_before_a_cold_start_says_what_to_run_first(
    refused: Callable[..., str], tmp_path: Path, stages: list[dict[str, Any]], message: str
) -> None:
    assert message.format(run=tmp_path / "run") in refused("sft", stages=stages)


# ------------------------------------------------------------ a policy between its two renames


def test_E08_a_policy_left_between_two_renames_is_put_back(tmp_path: Path) -> None:
    recipe = recipe_from({"name": "tiny", "stages": [BASELINE]})
    Run.open(tmp_path, recipe).close()
    (tmp_path / ".adapter-old").mkdir()
    (tmp_path / ".adapter-old" / "adapter_config.json").write_text("{}")
    assert latest_adapter(tmp_path) == tmp_path / ".adapter-old"
    with Run.open(tmp_path, recipe) as run:
        assert any("an interrupted process left it as .adapter-old; put back" in text for text in run.warnings)
    assert (tmp_path / ADAPTER / "adapter_config.json").exists()
    assert not (tmp_path / ".adapter-old").exists()


@pytest.fixture
def adapter(models: Any, tmp_path: Path) -> Path:
    """A run whose policy lies under the name it has between the two renames."""
    Run.open(tmp_path / "run", recipe_from({"name": "tiny", "stages": [BASELINE]})).close()
    folder = tmp_path / "run" / ".adapter-old"
    add_adapter(models.load(), rank=2, alpha=4, dropout=0.0, target="q_proj", seed=0).save(folder)
    return folder


def test_E08_a_policy_left_between_two_renames_is_exported(adapter: Path, tmp_path: Path) -> None:
    export_policy(adapter.parent, tmp_path / "out", merge=False)
    assert (tmp_path / "out" / "adapter_config.json").exists()


def test_a_torn_policy_is_not_exported(adapter: Path, tmp_path: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:300])
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors: expected a whole safetensors file"):
        export_policy(adapter.parent, tmp_path / "out", merge=False)
    assert not (tmp_path / "out").exists()


def test_an_adapter_beside_its_old_one_is_the_new_one(tmp_path: Path) -> None:
    with Run.open(tmp_path, recipe_from({"name": "tiny", "stages": [BASELINE]})) as run:
        for name in ("first", "second"):
            (tmp_path / "written").mkdir()
            (tmp_path / "written" / name).touch()
            run.replace_adapter(tmp_path / "written")
    assert [entry.name for entry in (tmp_path / ADAPTER).iterdir()] == ["second"]
    assert not (tmp_path / ".adapter-old").exists()


# ------------------------------------------------------------ secrets in the run's own recipe

SECRET = "Mention sk-" + "a1B2c3D4" * 5 + " never."


def test_a_recipe_whose_secret_was_hidden_is_not_run_with_the_hole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_from({"name": "tiny", "prompt": {"system": SECRET}, "stages": [BASELINE, SFT]})
    Run.open(tmp_path, recipe).close()
    assert "[redacted]" in (tmp_path / "recipe.yaml").read_text()
    with pytest.raises(SystemExit) as ended:
        main(["sft", "--run", str(tmp_path), "--quiet"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "recipe.yaml: prompt.system held a secret and was written as [redacted]; expected the whole recipe" in said
    with pytest.raises(ConfigError, match="held a secret"):
        export_policy(tmp_path, tmp_path / "out", merge=True)


def test_a_hidden_secret_may_be_given_again_as_a_setting(tmp_path: Path) -> None:
    recipe = recipe_from({"name": "tiny", "prompt": {"system": SECRET}, "stages": [BASELINE]})
    Run.open(tmp_path, recipe).close()
    assert load_own_recipe(tmp_path, [f"prompt.system={SECRET}"]) == recipe
