"""What the settings of the stage `grpo` do to a tiny model, and which do not go together."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from safetensors.torch import load_file
from watching import Watching

from deedrl.errors import ConfigError
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.grpo_stage import comparison
from deedrl.pipeline.recipe import recipe_from
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics
from deedrl.types import Action, Completion, RewardBreakdown, Step, TerminationReason, Trajectory

ENVIRONMENT = Path(__file__).with_name("letters.py")
# Two turns: asking is paid for at once, and the answer is another each time.
ASKING = """
    @tool(read_only=True)
    def ask(self) -> str:
        \"\"\"Asks for the letter.\"\"\"
        return "any"

    def state_hash(self):
        return HASH

    def step(self, action):
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward + 0.25 * (text == "any"), terminated, truncated, info

    def demonstrate(self, task: Task) -> Sequence[Action]:
        chosen = Action(tool_name="choose", parameters={"letter": task.goal_state["letter"]}, reasoning="I choose.")
        asked = Action(tool_name="ask", parameters={}, reasoning="I ask.")
        return [asked, chosen] if task.initial_state["number"] % 2 else [chosen]

    def verify(self"""
GRPO: dict[str, Any] = {"stage": "grpo", "steps": 2, "tasks_per_step": 4, "group_size": 4, "validate_every": 0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, tiny_models: Callable[..., Any]) -> dict[str, Any]:
    """A recipe without stages, whose model has learnt the format and asks or chooses as it likes."""
    texts = ["Call choose with the letter.", "Answer every turn with one JSON object and nothing else:"]
    texts += ['{"reasoning":"I choose.","tool_name":"choose","parameters":{"letter":"A"}}'] * 20
    folder = tmp_path_factory.mktemp("taught")
    data = {
        "name": "letters",
        "seed": 5,
        "model": {"path": str(tiny_models(texts).folder(initializer_range=0.3)), "dtype": "fp32"},
        "environment": f"{written(folder, repr('same'))}:Letters",
        "tasks": {"train": 16, "validation": 4, "test": 4, "test_unseen": 3},
        "sampling": {"max_tokens": 32},
        "limits": {"max_steps": 3},
        "stages": [
            {"stage": "cold_start", "tasks": 0, "demonstrations": 16},
            {"stage": "sft", "steps": 40, "batch_size": 8, "learning_rate": 1e-2},
        ],
    }
    play(folder / "run", recipe_from(data))
    return data | {"model": data["model"] | {"start_adapter": str(folder / "run" / "adapter")}}


def written(folder: Path, state_hash: str) -> Path:
    file = folder / "asking.py"
    source = ENVIRONMENT.read_text()
    start, end = source.index("    def demonstrate"), source.index("    @classmethod\n    def generate_tasks")
    source = source[:start] + source[end:]
    source = source.replace("\n    def verify(self", ASKING.replace("HASH", state_hash))
    file.write_text(source.replace("class Chatter", "import itertools\n\nCOUNT = itertools.count()\n\n\nclass Chatter"))
    return file


def trained(folder: Path, taught: dict[str, Any], progress: Any = None, **changes: Any) -> Path:
    return play(folder, recipe_from(taught | {"stages": [GRPO | changes]}), progress)


def adapter(folder: Path) -> torch.Tensor:
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.fixture(scope="module")
def plain(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    listening = Watching()
    return trained(tmp_path_factory.mktemp("plain") / "run", taught, listening), listening.warnings


# ---------------------------------------------------------------- what they do


def test_the_model_asks_now_and_then_and_is_paid_for_it(plain: tuple[Path, list[str]]) -> None:
    steps = [step for t in TrajectoryStore(plain[0] / "trajectories" / "grpo.jsonl") for step in t.steps]
    assert {step.reward for step in steps if step.action.tool_name == "ask"} == {0.25}
    assert all(step.state_hash == "same" for step in steps), "also where a turn was no action"
    assert any("pays for single steps" in text for text in plain[1])


def test_rewards_of_single_steps_reach_the_parameters(
    taught: dict[str, Any], plain: tuple[Path, list[str]], tmp_path: Path
) -> None:
    listening = Watching()
    paid = trained(tmp_path / "paid", taught, listening, step_reward_weight=1.0)
    by_turn = trained(tmp_path / "turn", taught, step_reward_weight=1.0, credit="returns")
    assert not any("single steps" in text for text in listening.warnings)
    first = [read_metrics(folder)["grpo/reward"][1] for folder in (plain[0], paid, by_turn)]
    assert len(set(first)) == 1, "the first step has the same episodes"
    weights = [adapter(folder) for folder in (plain[0], paid, by_turn)]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_anchors_are_counted_and_their_absence_is_said(taught: dict[str, Any], tmp_path: Path) -> None:
    met, alone = Watching(), Watching()
    folder = trained(tmp_path / "met", taught, met, credit="anchors")
    assert read_metrics(folder)["grpo/anchored_share"][1] > 0.3
    assert not any("a sibling was" in text for text in met.warnings)
    (tmp_path / "counting").mkdir()
    never_twice = written(tmp_path / "counting", "str(next(COUNT))")
    ref = f"{never_twice}:Letters"
    counting = taught | {"environment": {"ref": ref, "allow_unreplayable": [ref]}}
    trained(tmp_path / "alone", counting, alone, credit="anchors", steps=1)
    assert any(text.startswith("grpo: a sibling was in the state of 0% of the turns") for text in alone.warnings)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": "sequence_clipped", "kl_estimator": "k2", "advantage": "dr_grpo", "whiten_advantages": True},
        {"objective": "cispo", "kl_in": "reward", "kl_estimator": "k1", "kl_coefficient": 0.5, "mini_batches": 2},
        {"sampler_cap": 2.0, "sampler_band": [0.5, 2.0], "mini_batches": 2, "updates_per_batch": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_variant_trains_and_logs(
    taught: dict[str, Any], plain: tuple[Path, list[str]], tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = trained(tmp_path / "run", taught, **changes)
    logged = read_metrics(folder)
    assert all(
        math.isfinite(value) for name in ("loss", "grad_norm", "kl") for value in logged[f"grpo/{name}"].values()
    )
    assert logged["grpo/kl"][2] != 0
    if changes.get("kl_in") == "reward":
        assert logged["grpo/kl"][1] == pytest.approx(0.0, abs=1e-6), "sampled by the reference"
    assert not torch.equal(adapter(folder), adapter(plain[0]))
    if "sampler_cap" in changes:
        assert logged["grpo/sampler_weight"][1] == pytest.approx(1.0, abs=1e-3), "the sampler is the trainer"
        assert logged["grpo/sampler_masked_fraction"][1] == 0
    else:
        assert "grpo/sampler_weight" not in logged


def test_episodes_that_a_limit_cut_can_be_left_out(taught: dict[str, Any], tmp_path: Path) -> None:
    short = taught | {"limits": {"max_steps": 1}}
    folder = trained(tmp_path / "run", short, left_out_at=["step_limit"])
    cut = [
        t.termination is TerminationReason.STEP_LIMIT for t in TrajectoryStore(folder / "trajectories" / "grpo.jsonl")
    ]
    assert any(cut)
    assert not all(cut)
    logged = read_metrics(folder)
    assert sum(logged["grpo/left_out_episodes"].values()) == sum(cut)


def test_a_long_conversation_is_penalised_as_the_settings_say() -> None:
    """The buffer begins 100 tokens before the limit of 400: 350 tokens cost half of 0.8, 300 nothing, 500 all."""
    rewards = comparison(Grpo(overlong_penalty=0.8, overlong_buffer=100), 400).rewards

    def of(tokens: int) -> float:
        completion = Completion(text="", prompt_ids=(1,) * (tokens - 10), token_ids=(2,) * 10, logprobs=(-1.0,) * 10)
        step = Step(index=0, observation="", completion=completion, action=Action())
        return sum(
            rewards(Trajectory(episode_id="e", task_id="t", steps=(step,), breakdown=RewardBreakdown(total=1.0)))
        )

    assert [of(tokens) for tokens in (50, 300, 350, 400, 500)] == pytest.approx([1.0, 1.0, 0.6, 0.2, 0.2])
    assert comparison(Grpo(), 400).rewards(Trajectory(episode_id="e", task_id="t")) == [0.0]


# ---------------------------------------------------------------- what does not go together


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kl_estimator": "k1"}, r"stages.grpo.kl_estimator: expected k2 or k3 with kl_in loss, got k1"),
        ({"kl_in": "reward", "kl_on_zero_variance": True}, r"kl_on_zero_variance: expected false with kl_in reward"),
        ({"gamma": 0.9}, r"stages.grpo.gamma: expected 1 with credit outcome"),
        ({"sampler_band": [0.5, 2.0]}, r"sampler_band: expected \[low, high\] with low < high, and sampler_cap"),
        ({"sampler_cap": 2.0, "sampler_band": [2.0, 0.5]}, r"sampler_band: expected \[low, high\] with low < high"),
        ({"left_out_at": ["timeout", "timeout"]}, r"left_out_at: expected each limit once, got timeout twice"),
        ({"credit": "turns"}, r"stages.grpo.credit"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe_from({"name": "x", "seed": 1, "stages": [GRPO | changes]})
