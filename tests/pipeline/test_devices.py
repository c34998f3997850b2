"""Runs on an accelerator against runs on the processor: on a CUDA device, and without one on a pretended one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from pretended import pretended_device
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.reward_model_folder import place
from deedrl.pipeline.stages import export_policy
from deedrl.policies.local.attention import install
from deedrl.policies.local.device import chosen_device
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.kv_store import PrefixLayout
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.model import add_adapter, load_adapter, load_model
from deedrl.policies.local.rows import shared_length
from deedrl.policies.local.turn import Turn
from deedrl.store.jsonl import TrajectoryStore
from deedrl.training import processes
from deedrl.training.critic import HeadCritic, Rates
from deedrl.training.learner import Learner
from deedrl.training.optimiser import Optimiser
from deedrl.training.packing import pack
from deedrl.training.rank_agreement import Comparison, Place
from deedrl.training.reward_model import Reading, pairs_lesson
from deedrl.training.samples import TrainingSample
from deedrl.types import Completion

LEARNS: dict[str, Any] = {"learning_rate": 1e-3, "micro_batch_tokens": 48}
ONLINE: dict[str, Any] = {
    "steps": 2,
    "temperature": 1.5,  # siblings that are alike would be one row of one micro-batch
    "tasks_per_step": 2,
    "group_size": 3,
    "validate_every": 2,
    "validation_tasks": 2,
    **LEARNS,
}
STAGES: list[dict[str, Any]] = [
    {"stage": "cold_start", "tasks": 2, "samples_per_task": 2, "demonstrations": 4, "guided_share": 0.5},
    {"stage": "sft", "steps": 2, "batch_size": 3, **LEARNS},
    {"stage": "grpo", "mini_batches": 2, "sampler_cap": 2.0, **ONLINE},
    {"stage": "ppo", "critic": "adapter", **ONLINE},
    {
        "stage": "dpo",
        "tasks": 3,
        "samples_per_task": 4,
        "temperature": 1.5,
        "kinds": ["outcome"],
        "steps": 2,
        "pairs_per_step": 2,
        "hand_check": 1,
        "validate_every": 2,
        "validation_tasks": 2,
        **LEARNS,
    },
    {"stage": "evaluate", "tasks": 2},
]
LEARNERS = ("sft", "grpo", "ppo", "dpo")


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device: make test-gpu there")
KINDS = ["pretended", pytest.param("cuda", marks=needs_cuda)]


@contextmanager
def made_available(kind: str) -> Iterator[torch.device]:
    """The pretended accelerator or the real one."""
    if kind == "cuda":
        yield chosen_device("cuda")
        return
    with pytest.MonkeyPatch.context() as patch, pretended_device(patch) as found:
        yield found


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with made_available(request.param) as found:
        yield found


def on(device: str, data: dict[str, Any]) -> dict[str, Any]:
    return data | {"model": data["model"] | {"device": device}}


def run(data: dict[str, Any], folder: Path, only: set[str] | None = None) -> Path:
    return play(folder, recipe_from(data), only=only)


@pytest.fixture(scope="module")
def data(taught: dict[str, Any]) -> dict[str, Any]:
    return taught | {"stages": STAGES}


def with_dropout(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The recipe with an adapter that has dropout."""
    adapter = folder / "adapter"
    shutil.copytree(data["model"]["start_adapter"], adapter)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_dropout": 0.1}))
    return data | {"model": data["model"] | {"start_adapter": str(adapter)}}


@pytest.fixture(scope="module", params=KINDS)
def both(
    request: pytest.FixtureRequest, data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Run folders of the same recipe by processor and by accelerator; tests only read them."""
    folder = tmp_path_factory.mktemp("runs")
    # A real accelerator draws what is dropped from a generator of its own.
    data = with_dropout(data, folder) if request.param == "pretended" else data
    one = run(on("cpu", data), folder / "processor")
    with made_available(request.param):
        return one, run(on("cuda", data), folder / "accelerator")


def turns(folder: Path, name: str) -> dict[tuple[str, int], Completion]:
    store = TrajectoryStore(folder / "trajectories" / name)
    return {(t.episode_id, step.index): step.completion for t in store for step in t.steps}


def test_the_same_episodes_are_sampled(both: tuple[Path, Path]) -> None:
    names = sorted(path.name for path in (both[0] / "trajectories").glob("*.jsonl"))
    assert names == sorted(path.name for path in (both[1] / "trajectories").glob("*.jsonl"))
    compared = parted = 0
    for name in names:
        one, two = (turns(folder, name) for folder in both)
        for key in one.keys() & two.keys():
            expected, found = one[key], two[key]
            same = shared_length(expected.token_ids, found.token_ids)
            assert found.logprobs[:same] == pytest.approx(expected.logprobs[:same], abs=1e-3)
            compared, parted = compared + 1, parted + (expected.token_ids != found.token_ids)
    # Where a number drawn is at the very edge between two tokens, rounding decides.
    assert compared
    assert parted <= compared / 20


@pytest.mark.parametrize("stage", LEARNERS)
def test_the_same_is_learnt(both: tuple[Path, Path], stage: str, request: pytest.FixtureRequest) -> None:
    if stage != "sft" and "cuda" in request.node.name:
        pytest.skip("one token drawn otherwise for rounding, and other episodes are learnt from")
    one, two = (CheckpointFolder(folder / "checkpoints" / stage).latest() for folder in both)
    assert one is not None
    assert two is not None
    assert one.tensors.keys() == two.tensors.keys()
    assert any(name.startswith("exp_avg") for name in one.tensors)
    for name, value in one.tensors.items():
        away = two.tensors[name] - value
        if name.startswith("exp_avg"):
            assert float(away.norm()) <= 1e-3 * float(value.norm()) + 1e-7, name
        else:  # A step of AdamW is up to the learning rate, 1e-3, however small a gradient is and whatever its sign.
            assert float(away.abs().mean()) <= 2e-5, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_over_to_another_device(data: dict[str, Any], tmp_path: Path, kind: str) -> None:
    """Begun on the processor, interrupted amid a stage, and ended on an accelerator that the recipe now names."""
    begun = data | {"stages": [STAGES[0] | {"tasks": 0}, STAGES[1]]}
    run(on("cpu", begun), tmp_path / "whole")
    with pytest.raises(Interruption):
        play(tmp_path / "run", recipe_from(on("cpu", begun)), Watching("sft", at=1))
    with made_available(kind):
        run(on("cuda:0", begun), tmp_path / "run")
    whole, found = (CheckpointFolder(tmp_path / name / "checkpoints" / "sft").latest() for name in ("whole", "run"))
    assert whole is not None
    assert found is not None
    assert found.step == whole.step == 2
    for name, value in whole.tensors.items():
        torch.testing.assert_close(found.tensors[name], value, rtol=1e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    export_policy(tmp_path / "run", tmp_path / "merged", merge=True)
    assert load_file(tmp_path / "merged" / "model.safetensors")


def test_sampling_beside_an_update_takes_a_copy(data: dict[str, Any], device: torch.device) -> None:
    """Else the model's own layers are run, for its weights hardly fit into the memory of a card once."""
    settings = data["model"]
    base = load_model(settings["path"], dtype="fp32", device=device)
    model = load_adapter(base, Path(settings["start_adapter"])).model
    assert {parameter.device for parameter in model.parameters()} == {device}
    sampling = SamplingModel(model)
    ids = torch.tensor([[5, 6, 7]], device=device)
    positions = torch.arange(3, device=device)[None]
    install(model)

    def states() -> torch.Tensor:
        with torch.no_grad():
            return sampling.hidden(ids, positions, PrefixLayout(3, model)).cpu()

    whole = states()
    sampling.hold()
    torch.testing.assert_close(states(), whole, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.mul_(2.0)
    torch.testing.assert_close(states(), whole, rtol=1e-3, atol=1e-4)
    sampling.weights_changed()
    assert float((states() - whole).abs().max()) > 1e-2


def test_a_reward_model_is_placed_saved_and_scores_alike(
    data: dict[str, Any], tmp_path: Path, device: torch.device
) -> None:
    episodes = {"e": (Reading(ids=(5, 6, 7, 8, 9, 10), ends=(3, 5), steps=(0, 1)),)}
    places = [Place("e", 0), Place("e", 1)]
    lesson = pairs_lesson([Comparison("t", Place("e", 1), Place("e", 0))], smoothing=0.0, centre=0.0)
    scores = []
    for at in (torch.device("cpu"), device):
        base = load_model(data["model"]["path"], dtype="fp32", device=at)
        loaded = add_adapter(base, rank=2, alpha=4.0, dropout=0.0, target="all-linear", seed=1)
        placed = place(loaded, "judge", 64)
        for _ in range(2):
            placed.model.update(episodes, lesson, rate=1e-2, max_grad_norm=1.0)
        scores.append(placed.model.scores(episodes, places))
        assert all(value.device.type == "cpu" for value in placed.model.tensors().values())
        placed.model.load_tensors(placed.model.tensors())
        assert placed.model.scores(episodes, places) == scores[-1]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert scores[0][Place("e", 1)] > scores[0][Place("e", 0)]


@pytest.mark.parametrize("trained", ["adapter", "all weights"])
def test_an_update_of_a_policy_and_the_head_of_its_critic(
    data: dict[str, Any], trained: str, device: torch.device
) -> None:
    samples = [
        TrainingSample(
            episode_id=f"e{number}",
            ids=(5, 6, 7, 8 + number, 9, 10),
            action_mask=(False, False, False, True, True, number > 0),
            logprobs=(0.0,) * 6,
            cut=number > 0,
        )
        for number in range(3)
    ]
    batches = pack(samples, micro_batch_tokens=8)
    assert len(batches) > 1
    found = []
    for at in (torch.device("cpu"), device):
        loaded = load_model(data["model"]["path"], dtype="fp32", device=at)
        if trained == "adapter":
            loaded = add_adapter(loaded, rank=2, alpha=4.0, dropout=0.0, target="all-linear", seed=1)
        for parameter in loaded.model.parameters():
            parameter.requires_grad_(parameter.requires_grad or trained != "adapter")
        critic = HeadCritic(Learner(loaded), coefficient=0.5)
        stats = critic.update(
            batches,
            lambda batch, logprobs: -logprobs.sum(),
            lambda batch, values: (values - 1.0).square().sum(),
            Rates(policy=1e-3, critic=1e-2, max_grad_norm=1.0),
        )
        values = torch.cat([torch.cat([each.actions, each.ends]) for each in critic.values(batches)])
        logprobs = torch.cat(critic.policy.logprobs(batches))
        assert logprobs.device.type == values.device.type == "cpu"
        found.append((stats.policy_norm, stats.critic_norm, values.tolist(), logprobs.tolist()))
    for one, two in zip(*found, strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-4)


def test_optimiser_states_in_shards_are_on_the_device_and_saved_from_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process's piece is the whole; what is sent between several, and in which, is no matter of devices."""
    start, goal = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0)).unbind()

    def after_two_steps(at: torch.device, state: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
        weight = torch.nn.Parameter(start.clone().to(at))
        optimiser = Optimiser({"w": weight})
        if state is not None:
            optimiser.load_tensors(state)
        for _ in range(2):
            optimiser.backward((weight - goal.to(at)).square().sum())
            optimiser.step(0.1)
        assert weight.device == at
        return optimiser.tensors()

    begun = after_two_steps(torch.device("cpu"), None)
    ended = after_two_steps(torch.device("cpu"), begun)
    monkeypatch.setattr(processes, "_place", processes._Place(0, 1, None, shard="optimiser"))
    monkeypatch.setattr(processes, "_sum", lambda tensor: None)
    for state, expected in ((None, begun), (begun, ended)):
        found = after_two_steps(device, state)
        assert {value.device.type for value in found.values()} == {"cpu"}
        assert found.keys() == expected.keys() == {"parameter.w", "step.w", "exp_avg.w", "exp_avg_sq.w"}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=lambda m, n=name: f"{n}: {m}")


def test_tensors_of_two_devices_do_not_mix(device: torch.device) -> None:
    """What the tests above rest on."""
    there, here = torch.ones(2, 2, device=device), torch.ones(2, 2)
    assert there.device == device
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(RuntimeError, match="device"):
        here[torch.tensor([0], device=device)]
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.embedding(torch.tensor([0]), there)
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there[torch.tensor([1])].cpu() + here[:1]).tolist() == [[2.0, 2.0]]


def bf16_gap(data: dict[str, Any], device: torch.device) -> float:
    """The mean distance between log-probabilities as sampled and as an update finds them."""
    base = load_model(data["model"]["path"], dtype="bf16", device=device)
    loaded = load_adapter(base, Path(data["model"]["start_adapter"]))
    engine = Engine(loaded.model, stop_ids=[0])
    prefix = list(range(5, 45))
    turns = [Turn(str(seed), [*prefix, 50 + seed], prefix, 40, 1.0, seed) for seed in range(8)]
    for turn in turns:
        engine.submit(turn)
    while engine.busy:
        engine.step()
    samples = [
        TrainingSample(
            episode_id=turn.key,
            ids=(*turn.context, *turn.tokens),
            action_mask=(False,) * len(turn.context) + (True,) * len(turn.tokens),
            logprobs=(0.0,) * len(turn.context) + tuple(turn.logprobs),
        )
        for turn in turns
    ]
    batches = pack(samples, micro_batch_tokens=256)
    found = Learner(loaded).logprobs(batches)
    return float(torch.cat([(b.logprobs - values).abs() for b, values in zip(batches, found, strict=True)]).mean())


@needs_cuda
def test_bf16_sampling_and_updates_on_cuda_agree_as_on_a_processor(data: dict[str, Any]) -> None:
    assert bf16_gap(data, chosen_device("cuda")) < 1.5 * bf16_gap(data, torch.device("cpu"))
