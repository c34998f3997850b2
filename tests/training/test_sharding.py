"""Weights in shards: two and three real processes over gloo against one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import in_processes
from safetensors.torch import load_file, save_file
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.policies.local.model import LoadedModel, add_adapter
from deedrl.training import fused, processes, sharding
from deedrl.training.backend import frozen_at
from deedrl.training.critic import HeadCritic, Rates
from deedrl.training.learner import Learner
from deedrl.training.packing import Batch, pack

RATE = 1e-3


def loaded(kit: Any, tuning: str) -> LoadedModel:
    if tuning.startswith("lora"):
        base = kit.load(trainable=False, dtype="bf16" if tuning == "lora in bf16" else "fp32")
        model = add_adapter(base, rank=4, alpha=8, dropout=0.1, target="all-linear", seed=2)
        with torch.no_grad():  # B begins at 0, and then A has no gradient
            for name, parameter in model.model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        return model
    model: LoadedModel = kit.load(tie_word_embeddings=tuning == "tied")
    return model


def batches(kit: Any) -> list[Batch]:
    """Micro-batches of two clusters of siblings and of samples by themselves; neither two nor three divide them."""
    head = kit.ids(1000, 9)
    samples = [
        kit.sample(
            f"{g}-{i}", [*head, *kit.ids(100 + g, 20), *kit.ids(i, 2)], kit.ids(10 + i, 5), advantage=float(i - g)
        )
        for g in range(2)
        for i in range(1, 4)
    ]
    samples += [
        kit.sample(f"alone-{i}", [*head, *kit.ids(40 + i, 3 + i)], kit.ids(50 + i, 4 + i), advantage=0.5)
        for i in range(5)
    ]
    packed = pack(samples, micro_batch_tokens=40)
    assert len(packed) == 5
    assert 0 < sum(bool(batch.shared_ids.numel()) for batch in packed) < len(packed)
    return packed


def loss(batch: Batch, logprobs: Tensor) -> Tensor:
    return -(logprobs * batch.advantages).sum()


def updated(learner: Learner, packed: Sequence[Batch], updates: int) -> dict[str, Tensor]:
    """What is left of some updates: state, norms, and log-probabilities of policy and reference."""
    reference = learner.snapshot()
    state: dict[str, Tensor] = {}
    for update in range(updates):
        stats = learner.update(packed, loss, learning_rate=RATE, max_grad_norm=0.5, dropout=True)
        state[f"figures.{update}"] = torch.tensor([stats.loss, stats.grad_norm])
    state["logprobs"] = torch.cat(learner.logprobs(packed))
    with frozen_at(list(learner.parameters.values()), reference):
        state["reference"] = torch.cat(learner.logprobs(packed))
    return state | learner.tensors()


EXACT = ("logprobs", "figures")


def first_update(learner: Learner, packed: Sequence[Batch], _: int) -> dict[str, Tensor]:
    """Log-probabilities before it, loss and norm, and gradients as AdamW keeps them."""
    logprobs = torch.cat(learner.logprobs(packed))
    stats = learner.update(packed, loss, learning_rate=RATE, max_grad_norm=0.5)
    moments = {name: value for name, value in learner.tensors().items() if name.startswith("exp_avg.")}
    return {"logprobs": logprobs, "figures": torch.tensor([stats.loss, stats.grad_norm]), **moments}


def with_head(learner: Learner, packed: Sequence[Batch], updates: int) -> dict[str, Tensor]:
    """The same with a value head on the policy's trunk, which is trained with it and alone."""
    critic = HeadCritic(learner, coefficient=0.5)

    def of_values(batch: Batch, values: Tensor) -> Tensor:
        return ((values - batch.advantages) ** 2).sum()

    for update in range(updates):
        critic.update(packed[update:], loss, of_values, Rates(RATE, RATE, 0.5))
        critic.update_alone(packed, of_values, Rates(RATE, RATE, 0.5))
    values = critic.values(packed)
    heads = {f"head.{name}": value for name, value in critic.optimiser.tensors().items()}
    return learner.tensors() | heads | {"values": torch.cat([of.actions for of in values])}


Work = Callable[[Learner, Sequence[Batch], int], dict[str, Tensor]]


def _of_several(rank: int, count: int, folder: Path, kit: Any, tuning: str, work: Work, start: Any) -> None:
    with processes.joined(count, shard="weights"):
        model = loaded(kit, tuning)
        sharding.shard_weights(model.model)
        learner = Learner(model)
        if start is not None:
            learner.load_tensors(start)
        state = work(learner, batches(kit), 2)
        (folder / f"held-{rank}").write_text(" ".join(map(str, held(learner))))
        if processes.is_first():
            save_file(state, folder / "state.safetensors")
        sharding.gather(model.model)
        save_file(
            {n: p.detach().clone() for n, p in model.model.named_parameters()}, folder / f"whole-{rank}.safetensors"
        )


def held(learner: Learner) -> tuple[int, int]:
    """Elements in memory of weights and moments, while sampling and between passes."""
    model = learner.loaded.model
    weights = sharding.sharded(model)
    assert weights is not None

    def elements() -> int:
        tensors = (*model.parameters(), *weights._pieces.values())
        memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in tensors}
        return sum(memory.values()) + learner.optimiser.state_elements()

    sharding.gather(model)
    sampling = elements()
    sharding.release(model)
    return sampling, elements()


def of_several(
    count: int, folder: Path, kit: Any, tuning: str, work: Work = updated, start: dict[str, Tensor] | None = None
) -> dict[str, Tensor]:
    in_processes(count, _of_several, folder, kit, tuning, work, start)
    return load_file(folder / "state.safetensors")


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # A step of AdamW is up to the learning rate, however small the gradient is: there rounding has a say in it.
        limits = {"rtol": 0.0, "atol": 2e-5} if "parameter" in name else {"rtol": 1e-3, "atol": 1e-5}
        torch.testing.assert_close(found[name], value, **limits, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("count", "tuning"), [(2, "full"), (2, "tied"), (2, "lora"), (3, "full"), (3, "lora")])
def test_weights_in_shards_learn_what_one_process_learns(
    kit: Any, tmp_path: Path, count: int, tuning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_with_fused_layers", lambda decoder: None)  # which weights in shards do not have
    model = loaded(kit, tuning)
    learner = Learner(model)
    elements = sum(parameter.numel() for parameter in model.model.parameters())
    assert_same(of_several(count, tmp_path, kit, tuning), updated(learner, batches(kit), 2))
    whole = {name: parameter.detach() for name, parameter in model.model.named_parameters()}
    for rank in range(count):
        for name, value in load_file(tmp_path / f"whole-{rank}.safetensors").items():
            torch.testing.assert_close(value, whole[name], rtol=0.0, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    # What a process holds of weights and moments is its part, a last norm and an adapter; while sampling all weights.
    trained = sum(parameter.numel() for parameter in learner.parameters.values())
    adapter = trained if "lora" in tuning else 0
    of_all = elements + 2 * trained / count
    of_pieces = (elements - adapter + 2 * trained) / count + adapter
    for rank in range(count):
        sampling, between = map(int, (tmp_path / f"held-{rank}").read_text().split())
        # Each parameter is cut to the element, and filled up.
        assert abs(sampling - of_all) <= (count + 2) * len(whole)
        assert abs(between - of_pieces) <= 3 * len(whole) + 64


def test_a_frozen_base_in_bf16_is_cut_in_its_own_type(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients at the shared prefix are summed in bf16, by each process those of its own micro-batches."""
    monkeypatch.setattr(fused, "_with_fused_layers", lambda decoder: None)  # which weights in shards do not have
    expected = first_update(Learner(loaded(kit, "lora in bf16")), batches(kit), 1)
    found = of_several(2, tmp_path, kit, "lora in bf16", first_update)
    assert found.keys() == expected.keys()
    assert_same({name: found.pop(name) for name in EXACT}, {name: expected.pop(name) for name in EXACT})
    one, two = (torch.cat([state[name].flatten() for name in sorted(expected)]) for state in (expected, found))
    assert (two - one).norm() < 0.02 * one.norm()
    types = {value.dtype for value in load_file(tmp_path / "whole-0.safetensors").values()}
    assert types == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_value_head_on_sharded_weights_learns_as_on_whole_ones(kit: Any, tmp_path: Path, tuning: str) -> None:
    expected = with_head(Learner(loaded(kit, tuning)), batches(kit), 2)
    assert_same(of_several(2, tmp_path, kit, tuning, with_head), expected)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_checkpoint_goes_over_to_another_number_of_processes(kit: Any, tmp_path: Path, tuning: str) -> None:
    packed = batches(kit)
    once = Learner(loaded(kit, tuning))
    start = of_moments_and_parameters(updated(once, packed, 2))
    expected = updated(once, packed, 2)
    assert_same(of_several(2, tmp_path, kit, tuning, start=start), expected)
    again = Learner(loaded(kit, tuning))
    again.load_tensors(of_moments_and_parameters(of_several(2, tmp_path, kit, tuning)))
    assert again.updates == 2
    assert_same(updated(again, packed, 2), expected)


def of_moments_and_parameters(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items() if name.startswith(("parameter", "exp_avg", "step"))}


def test_a_head_of_another_form_is_refused(kit: Any) -> None:
    model = kit.load().model
    model.set_output_embeddings(torch.nn.Linear(model.config.hidden_size, 7))
    with pytest.raises(ModelError, match=r"linear output head without bias.*set processes\.shard to optimiser or none"):
        sharding.shard_weights(model)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(5, 3), (7,), (1,)])
def test_pieces_are_equally_long_and_make_up_the_whole(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], count: int
) -> None:
    value, pieces = torch.randn(shape), []
    for rank in range(count):
        monkeypatch.setattr(processes, "_place", processes._Place(rank, count))
        pieces.append(processes.padded_piece(value))
    assert len({piece.shape for piece in pieces}) == 1
    joined = torch.cat(pieces)
    assert torch.equal(joined[: value.numel()], value.flatten())
    assert not joined[value.numel() :].any()


@pytest.mark.parametrize(("items", "rounds"), [(1, 1), (3, 1), (4, 2)])
def test_processes_make_equally_many_passes_where_weights_are_in_shards(
    monkeypatch: pytest.MonkeyPatch, items: int, rounds: int
) -> None:
    counted: list[int] = []
    for rank in range(3):
        monkeypatch.setattr(processes, "_place", processes._Place(rank, 3, shard="weights"))
        passes = list(processes.rounds(range(items)))
        assert len(passes) == rounds
        counted += [item for item, counts in passes if counts]
    assert sorted(counted) == list(range(items))
