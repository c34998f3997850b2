"""The memory model against what torch keeps for the backward pass, and by hand; `benchmarks/plan_check.py` measures."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from deedrl.planning import memory as model
from deedrl.planning.load import Load, micro_batch
from deedrl.planning.memory import Memory, MemorySettings, memory
from deedrl.planning.shape import EMBEDDED, shape_of
from deedrl.policies.local import engine, kv_store
from deedrl.policies.local.fused import NotFused
from deedrl.policies.local.model import LoadedModel, add_adapter
from deedrl.training import backend
from deedrl.training.backend import LogprobModel
from deedrl.training.packing import pack
from deedrl.training.samples import TrainingSample

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 64,
    "tie_word_embeddings": True,
}
LOAD = Load(prefix_tokens=40, own_tokens=80, episodes=6, group_size=3, micro_batch_tokens=1000)


def settings(**changes: Any) -> MemorySettings:
    plain = MemorySettings(
        samples=True, reference=True, critic="none", tuning="lora", rank=4, bf16=False, gpus=0, load=LOAD
    )
    return replace(plain, **changes)


def of(**changes: Any) -> Memory:
    return memory(EMBEDDED, settings(**changes))


def samples() -> list[TrainingSample]:
    """As `LOAD` says: siblings share 20 tokens after the prefix, all else differs; the last token predicts nothing."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, 64, (count,), generator=generator).tolist()

    prefix, made = tokens(40), []
    for episode in range(6):
        if episode % 3 == 0:
            task = tokens(LOAD.task_tokens)
        own = tokens(81 - len(task))
        mask = [False] * (40 + len(task)) + [True] * len(own)
        ids = (*prefix, *task, *own)
        made.append(
            TrainingSample(
                episode_id=str(episode), ids=ids, action_mask=tuple(mask), logprobs=(0.0,) * len(ids), advantages=()
            )
        )
    return made


def kept_bytes(tuning: str, dtype: torch.dtype, *, fused: bool) -> float:
    """Bytes of all tensors that the backward pass of one micro-batch and its prefix needs, weights left out."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    base = AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG), dtype=dtype).eval()
    for parameter in base.parameters():
        parameter.requires_grad_(tuning == "full")
    loaded: Any = LoadedModel(model=base, tokenizer=None, renderer=None, source="random")  # type: ignore[arg-type]
    if tuning == "lora":
        loaded = add_adapter(loaded, rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    (batch,) = pack(samples(), micro_batch_tokens=1000)
    weights = {parameter.untyped_storage().data_ptr() for parameter in loaded.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = (logprobs := LogprobModel(loaded.model))(batch)[0]
    assert result.requires_grad
    assert (logprobs._decoder._fused is not None) is fused
    return float(sum(storage.nbytes() for storage in kept.values()))


@pytest.mark.parametrize(
    ("tuning", "dtype"), [("lora", torch.float32), ("full", torch.float32), ("lora", torch.bfloat16)]
)
@pytest.mark.parametrize("gpus", [0, 1], ids=["processor", "gpu"])
def test_activations_are_what_torch_keeps(
    tuning: str, dtype: torch.dtype, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if gpus:  # where layers run as they are

        def refuse(_: Any) -> None:
            raise NotFused("this is a test")

        monkeypatch.setattr("deedrl.training.fused._with_fused_layers", refuse)
    monkeypatch.setattr(model, "HOLES", {"lora": 1.0, "full": 1.0})
    monkeypatch.setattr(model, "GPU_HOLES", 1.0)
    made = settings(tuning=tuning, bf16=dtype == torch.bfloat16, gpus=gpus)
    expected = model.activation_bytes(shape_of(CONFIG), made, micro_batch(LOAD))
    # The model counts a token's own keys and values twice, for they live as long as the pass; torch's hooks do not.
    assert kept_bytes(tuning, dtype, fused=made.fused) == pytest.approx(expected, rel=0.1)


def test_weights_and_optimiser_by_hand() -> None:
    adapter = EMBEDDED.adapter(4)
    parts = of()
    assert parts.weights == 4 * (EMBEDDED.parameters + adapter)
    assert (parts.gradients, parts.reference, parts.optimiser) == (4 * adapter, 4 * adapter, 8 * adapter)
    full = of(tuning="full")
    assert full.weights == 4 * EMBEDDED.parameters
    assert full.optimiser == 8 * EMBEDDED.parameters


def test_frozen_weights_in_bf16_take_half() -> None:
    adapter = 4 * EMBEDDED.adapter(4)
    assert of(bf16=True).weights - adapter == (of().weights - adapter) / 2
    assert of(bf16=True, tuning="full").weights == of(tuning="full").weights


def test_cache_by_hand() -> None:
    load = Load(prefix_tokens=100, own_tokens=130, episodes=8, concurrency=4)
    # 131 tokens take three steps of 64.
    assert of(load=load).cache == (100 + 4 * 192) * 2 * 30 * 192 * 4


def test_constants_are_those_of_the_code_they_speak_of() -> None:
    """They are written down twice, since a plan must not load torch."""
    first_prefill = inspect.signature(engine.Engine.__init__).parameters["prefill_tokens"].default
    assert first_prefill == model.PREFILL_TOKENS
    assert (engine.DRAFT_ROOM, engine.MAX_DRAFT) == (model.GUESSED_TOKENS, model.GUESSES)
    assert kv_store.SLOT_QUANTUM == model.SLOT_QUANTUM
    assert backend.LOGITS_CHUNK == model.LOGITS_CHUNK


def test_sampling_on_gpus_has_no_copy_of_the_weights() -> None:
    assert of().sampling_weights > 0
    assert of(gpus=1).sampling_weights == 0


def test_supervised_learning_by_itself_has_neither_cache_nor_reference() -> None:
    parts = of(samples=False, reference=False)
    assert parts.cache == parts.sampling_weights == parts.sampling_work == parts.reference_pass == 0


def test_phases_are_compared_and_not_added() -> None:
    parts = of()
    assert parts.peak == max(parts.update_peak, parts.sampling_peak)
    both = parts.update_peak + parts.sampling_peak - parts.held
    assert of(overlapped=True).peak == pytest.approx(both)
    update = parts.merged_weights + parts.gradients + parts.activations + parts.logits
    assert parts.update_peak == pytest.approx(parts.held + update)


def test_more_micro_batch_tokens_take_more() -> None:
    peaks = [of(load=replace(LOAD, episodes=99, micro_batch_tokens=n)).update_peak for n in (256, 1024, 4096)]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]


def test_mapped_blocks_leave_almost_no_holes() -> None:
    assert of(mapped=True).activations < 0.95 * of().activations


def test_a_critic_costs_what_it_has_of_its_own() -> None:
    assert of(critic="model", tuning="full").peak - of(tuning="full").peak == 12 * EMBEDDED.parameters
    adapter = EMBEDDED.adapter(4)
    assert of(critic="adapter").peak - of().peak == pytest.approx(12 * adapter)
    assert of(critic="model").peak - of().peak == pytest.approx(12 * adapter + 4 * EMBEDDED.parameters)
    assert of(critic="value_head") == of()


@pytest.mark.parametrize("gpus", [2, 8])
def test_gpus_share_what_is_trained(gpus: int) -> None:
    one, many = of(gpus=1, tuning="full"), of(gpus=gpus, tuning="full")
    assert many.optimiser == one.optimiser / gpus
    assert many.activations == one.activations
