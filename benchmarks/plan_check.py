"""Compares the memory that `deedrl plan` estimates with what processes of their own really take.

    python benchmarks/plan_check.py [--only PART_OF_A_NAME] [--json FILE]

Every case runs in a fresh process: an update of a made-up GRPO batch with a reference pass, or sampling with
`LocalPolicy`. A first update of two short episodes leaves the optimiser's state as every later update finds it. Models
but the embedded one have random weights, which take the same memory. Runs on the processor in float32; about six
minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deedrl.memory import peak_gb
from deedrl.planning.load import Load
from deedrl.planning.memory import MemorySettings, Tuning, memory
from deedrl.planning.shape import EMBEDDED, ModelShape, shape_of

SAMPLED, TOLD = 25, 15
"""Tokens of a turn and of a result in the made-up batch."""
RANK = 16


@dataclass(frozen=True)
class Case:
    """One process: `model` is "embedded" or the settings of a Llama with random weights."""

    name: str
    model: dict[str, Any] | None
    load: Load
    tuning: Tuning = "lora"
    samples: bool = False
    mapped: bool = False
    """Large blocks of memory are mapped one by one: shows what the tensors take, without the heap's holes."""

    @property
    def shape(self) -> ModelShape:
        return EMBEDDED if self.model is None else shape_of(self.model)


def llama(hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, tied: bool) -> dict[str, Any]:
    """The settings of transformers' LlamaConfig that decide its size."""
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


SMALL = llama(320, 12, 5, 5, 1024, 8_000, True)
WIDE_VOCABULARY = llama(512, 8, 8, 8, 1408, 48_000, False)
DEEP = llama(512, 20, 8, 2, 1536, 16_000, True)
LARGE = llama(1024, 16, 16, 4, 3584, 16_000, True)

SHORT = Load(prefix_tokens=300, own_tokens=200, episodes=12, group_size=4, micro_batch_tokens=1024)
LONG = Load(prefix_tokens=350, own_tokens=300, episodes=16, group_size=8, micro_batch_tokens=4096)
PLAYED = Load(prefix_tokens=300, own_tokens=172, episodes=16, group_size=1, concurrency=16)

CASES = (
    Case("small lora", SMALL, LONG),
    Case("small full", SMALL, LONG, tuning="full"),
    Case("deep lora", DEEP, LONG),
    Case("deep lora, mapped", DEEP, LONG, mapped=True),
    Case("wide vocabulary lora", WIDE_VOCABULARY, SHORT),
    Case("wide vocabulary full", WIDE_VOCABULARY, SHORT, tuning="full"),
    Case("embedded lora", None, SHORT),
    Case("embedded lora, mapped", None, SHORT, mapped=True),
    Case("embedded full", None, SHORT, tuning="full"),
    Case("large lora", LARGE, SHORT),
    Case("wide vocabulary sampling", WIDE_VOCABULARY, PLAYED, samples=True),
    Case("embedded sampling", None, PLAYED, samples=True),
)


# ---------------------------------------------------------------- in the process of a case


def loaded_model(case: Case) -> Any:
    """The case's model in float32 with what is trained."""
    from deedrl.policies.local.model import LoadedModel, add_adapter, load_model

    loaded = load_model("embedded", dtype="fp32") if case.model is None else random_model(case.model)
    for parameter in loaded.model.parameters():
        parameter.requires_grad_(case.tuning == "full")
    if case.tuning == "full":
        return loaded
    adapted = add_adapter(loaded, rank=RANK, alpha=2.0 * RANK, dropout=0.0, target="all-linear", seed=0)
    assert isinstance(adapted, LoadedModel)
    return adapted


def random_model(settings: dict[str, Any]) -> Any:
    """A Llama with random weights, and a tokenizer of a few hundred tokens."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from deedrl.policies.local.model import LoadedModel
    from deedrl.policies.local.tiny import train_tokenizer
    from deedrl.rendering.renderer import Renderer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**settings, bos_token_id=None, eos_token_id=1)).eval()
    tokenizer = train_tokenizer(["tea and cake"])
    return LoadedModel(model=model, tokenizer=tokenizer, renderer=Renderer(tokenizer), source="random")


def run_updates(case: Case) -> None:
    """A short update, then the measured one."""
    from deedrl.training.learner import Learner
    from deedrl.training.policy_gradient import PolicyUpdate, update_policy

    learner = Learner(loaded_model(case))
    reference = learner.snapshot()
    update = PolicyUpdate(
        learning_rate=1e-6,
        max_grad_norm=1.0,
        micro_batch_tokens=case.load.micro_batch_tokens,
        clip_low=0.2,
        clip_high=0.2,
        kl_coefficient=0.01,
        normalisation="token",
        normalisation_tokens=case.load.own_tokens,
    )
    vocabulary = case.shape.vocabulary
    short = Load(prefix_tokens=20, own_tokens=3 * (SAMPLED + TOLD), episodes=2, group_size=2)
    for load in (short, case.load):
        update_policy(learner, made_up_batch(load, vocabulary), update, reference)


def made_up_batch(load: Load, vocabulary: int) -> list[Any]:
    """Episodes of random tokens; siblings share the task, then results and turns take turns."""
    from deedrl.training.samples import TrainingSample

    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, vocabulary) for _ in range(count)]

    prefix, samples = tokens(load.prefix_tokens), []
    for episode in range(load.episodes):
        if episode % load.group_size == 0:
            task = tokens(load.task_tokens)
        ids, mask = [*prefix, *task], [False] * (len(prefix) + len(task))
        while (room := load.prefix_tokens + load.own_tokens - len(ids)) > 0:
            sampled = min(SAMPLED, room)
            told = min(TOLD, room - sampled)
            ids += tokens(sampled + told)
            mask += [True] * sampled + [False] * told
        advantage = 1.0 - 2.0 * (episode % 2)
        samples.append(
            TrainingSample(
                episode_id=str(episode),
                ids=tuple(ids),
                action_mask=tuple(mask),
                logprobs=tuple(-10.0 if action else 0.0 for action in mask),
                advantages=tuple(advantage if action else 0.0 for action in mask),
            )
        )
    return samples


def run_sampling(case: Case) -> None:
    """Two turns of each episode, all at once; so hot that hardly a turn ends by itself."""
    from deedrl.policies.local.policy import LocalPolicy
    from deedrl.policies.policy import CompletionRequest
    from deedrl.types import Message, SamplingParams

    loaded = loaded_model(case)
    policy = LocalPolicy(loaded.model, loaded.renderer, max_rows=case.load.concurrency)
    words = " tea"
    per_word = len(loaded.tokenizer(words * 100, add_special_tokens=False)["input_ids"]) / 100

    def text(count: int) -> str:
        return words * round(count / per_word)

    async def play(episode: int) -> None:
        messages = [Message(role="system", content=text(case.load.prefix_tokens - 10))]
        messages.append(Message(role="user", content=f"{episode:05}" + text(50)))
        for turn in range(2):
            request = CompletionRequest(
                episode_id=str(episode),
                messages=tuple(messages),
                tools=(),
                sampling=SamplingParams(temperature=3.0, max_tokens=24),
                seed=episode * 2 + turn,
            )
            completion = await policy.complete(request)
            messages.append(Message(role="assistant", content=completion.text))
            messages.append(Message(role="tool", content=text(20)))

    async def play_all() -> None:
        await asyncio.gather(*(play(episode) for episode in range(case.load.episodes)))

    asyncio.run(play_all())


def run_case(name: str) -> None:
    """Runs one case and prints the peak of this process in bytes."""
    case = next(case for case in CASES if case.name == name)
    (run_sampling if case.samples else run_updates)(case)
    peak = peak_gb()
    if peak is None:
        sys.exit("this system does not say what a process held at most; run the check on Linux or macOS")
    print(json.dumps({"peak_bytes": peak * 1e9}))


# ---------------------------------------------------------------- all of them


def measured(case: Case) -> float:
    """Peak in bytes of a fresh process that runs `case`."""
    command = [sys.executable, str(Path(__file__).resolve()), "--case", case.name]
    environment = dict(os.environ) | ({"MALLOC_MMAP_THRESHOLD_": "1000000"} if case.mapped else {})
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
    return float(json.loads(output.splitlines()[-1])["peak_bytes"])


def estimated(case: Case) -> float:
    """What the plan says about the same: the phase that the case runs, and what is held in all of them."""
    settings = MemorySettings(
        samples=case.samples,
        reference=not case.samples,
        critic="none",
        tuning=case.tuning,
        rank=RANK,
        bf16=False,
        gpus=0,
        load=case.load,
        mapped=case.mapped,
    )
    parts = memory(case.shape, settings)
    return parts.sampling_alone if case.samples else parts.update_peak


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Estimated against measured peak memory.")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case:
        run_case(options.case)
        return
    rows = []
    print(f"{'case':<28}{'parameters':>12}{'measured':>11}{'estimated':>11}{'ratio':>8}")
    for case in CASES:
        if options.only not in case.name:
            continue
        real, guess = measured(case), estimated(case)
        rows.append({"case": case.name, "measured_bytes": real, "estimated_bytes": guess})
        size = f"{case.shape.parameters / 1e6:.0f} M"
        print(f"{case.name:<28}{size:>12}{real / 1e9:>8.2f} GB{guess / 1e9:>8.2f} GB{guess / real:>8.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
