"""Peak memory of one update of GRPO, DPO and PPO on the same batch, each in a process of its own.

    python benchmarks/memory_of_learners.py [--model embedded|360m|510m] [--tasks 4] [--siblings 4]
        [--micro-batch-tokens 1024] [--no-kl] [--only lora|full] [--learners NAME …] [--repeats 1] [--json FILE]

The embedded model, or one of 362 million random weights in the shape of SmolLM2-360M, or of 510 million, in float32 on
the processor, with an adapter of rank 16 or all weights. What differs is the learner: GRPO; DPO on neighbouring
siblings as pairs; PPO with a value head on the policy's trunk; with an adapter of its own for the critic; with a second
model for it, trained like the policy, as is usual in the field. Every step is what a training step does after sampling:
values, the reference's log-probabilities, one update. A first step on two short episodes leaves the optimisers' state
as every later step finds it. `estimated` is what `deedrl plan` says of the same step. Seconds a case on two cores with
AMX, a minute elsewhere.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from plan_check import llama, random_model

from deedrl.benchmarks.update import UpdateSettings, made_up_batch
from deedrl.memory import peak_gb
from deedrl.planning.load import Load
from deedrl.planning.memory import MemorySettings, memory
from deedrl.planning.shape import EMBEDDED, shape_of

RANK = 16
RANDOM = {"360m": llama(960, 32, 15, 5, 2560, 49_152, True), "510m": llama(1152, 32, 18, 6, 3072, 49_152, True)}
SHAPES = {"embedded": EMBEDDED} | {name: shape_of(settings) for name, settings in RANDOM.items()}
NAMES = {
    "grpo": "GRPO",
    "dpo": "DPO",
    "value_head": "PPO, value head",
    "adapter": "PPO, adapter",
    "model": "PPO, second model",
}
"""The learners; those of PPO are called after their critic."""


def loaded_model(model: str, tuning: str) -> Any:
    """With what is trained."""
    from deedrl.policies.local.model import add_adapter, load_model

    loaded = load_model("embedded", dtype="fp32") if model == "embedded" else random_model(RANDOM[model])
    if tuning == "lora":
        return add_adapter(loaded, rank=RANK, alpha=2.0 * RANK, dropout=0.0, target="all-linear", seed=0)
    for parameter in loaded.model.parameters():
        parameter.requires_grad_(True)
    return loaded


def step_of(learner: str, tuning: str, settings: UpdateSettings) -> AbstractContextManager[Callable[[Any], Any]]:
    """Inside the block, what makes one step from a list of samples."""
    from deedrl.training.critic import HeadCritic, adapter_critic, model_critic
    from deedrl.training.learner import Learner
    from deedrl.training.policy_gradient import PolicyUpdate, update_policy

    policy = Learner(loaded_model(settings.model, tuning))
    if learner == "dpo":
        return nullcontext(_dpo_step(policy, settings))
    reference = policy.snapshot() if settings.kl else None
    update = PolicyUpdate(
        learning_rate=1e-6,
        max_grad_norm=1.0,
        micro_batch_tokens=settings.micro_batch_tokens,
        clip_low=0.2,
        clip_high=0.2,
        kl_coefficient=settings.kl,
        normalisation="token",
        normalisation_tokens=512,
    )
    if learner == "grpo":
        return nullcontext(lambda samples: update_policy(policy, samples, update, reference))
    if learner == "adapter":
        return _Entered(adapter_critic(policy), lambda built: _ppo_step(built, update, reference))
    if learner == "value_head":
        return nullcontext(_ppo_step(HeadCritic(policy, coefficient=0.5), update, reference))
    return nullcontext(_ppo_step(model_critic(policy, loaded_model(settings.model, tuning)), update, reference))


class _Entered:
    """A block whose value is made from that of another block."""

    def __init__(self, block: AbstractContextManager[Any], make: Callable[[Any], Any]) -> None:
        self._block, self._make = block, make

    def __enter__(self) -> Any:
        return self._make(self._block.__enter__())

    def __exit__(self, *error: Any) -> Any:
        return self._block.__exit__(*error)


def _dpo_step(policy: Any, settings: UpdateSettings) -> Callable[[Any], Any]:
    """Every two neighbours are a pair. What a stage does once, for all pairs, is in the step too."""
    from deedrl.training.dpo import DpoUpdate, recorded, update_preferences
    from deedrl.training.preferences import PreferencePair

    update = DpoUpdate(
        learning_rate=1e-6,
        max_grad_norm=1.0,
        micro_batch_tokens=settings.micro_batch_tokens,
        loss="sigmoid",
        beta=0.1,
        label_smoothing=0.0,
        sft_coefficient=0.0,
    )

    def step(samples: Sequence[Any]) -> dict[str, float]:
        pairs = [
            PreferencePair(
                kind="outcome",
                task_id=chosen.episode_id,
                chosen=chosen.episode_id,
                rejected=rejected.episode_id,
                margin=1.0,
                chosen_tokens=chosen.action_tokens,
                rejected_tokens=rejected.action_tokens,
            )
            for chosen, rejected in zip(samples[::2], samples[1::2], strict=True)
        ]
        episodes = {sample.episode_id: (sample,) for sample in samples}
        known = recorded(policy, episodes, settings.micro_batch_tokens)
        return update_preferences(policy, pairs, known, update)

    return step


def _ppo_step(critic: Any, update: Any, reference: Any) -> Callable[[Any], Any]:
    from deedrl.training.critic import ActorCritic
    from deedrl.training.episodes import RewardedEpisode
    from deedrl.training.ppo import PpoUpdate, update_actor_critic

    settings = PpoUpdate(
        policy=update,
        critic_learning_rate=1e-6,
        gamma=1.0,
        gae_lambda=1.0,
        value_clip=0.2,
        whiten_advantages=True,
    )

    def step(samples: Sequence[Any]) -> dict[str, float]:
        episodes = [
            RewardedEpisode(
                task_id=sample.episode_id.partition("-")[0],
                samples=(sample,),
                rewards=(0.0,) * (sample.action_tokens - 1) + (float(place % 2),),
            )
            for place, sample in enumerate(samples)
        ]
        return update_actor_critic(ActorCritic(critic), episodes, settings, reference, random.Random(0))

    return step


def run_case(learner: str, tuning: str, settings: UpdateSettings) -> None:
    """A short step, then the measured one; prints the peak of this process in bytes."""
    from msgspec.structs import replace

    short = replace(settings, tasks=1, siblings=2, shared_tokens=20, own_tokens=80)
    with step_of(learner, tuning, settings) as step:
        for each in (short, settings):
            batch = made_up_batch(each, SHAPES[settings.model].vocabulary)
            figures = step(batch)
            assert figures["action_tokens"] == sum(sample.action_tokens for sample in batch)
    peak = peak_gb()
    if peak is None:
        sys.exit("this system does not say what a process held at most; run it on Linux or macOS")
    print(json.dumps({"peak_bytes": peak * 1e9}))


def estimated(learner: str, tuning: str, settings: UpdateSettings) -> float:
    """What the plan says about the same."""
    load = Load(
        prefix_tokens=settings.shared_tokens,
        own_tokens=settings.own_tokens,
        episodes=settings.tasks * settings.siblings,
        group_size=settings.siblings,
        micro_batch_tokens=settings.micro_batch_tokens,
    )
    parts = memory(
        SHAPES[settings.model],
        MemorySettings(
            samples=False,
            reference=settings.kl > 0 and learner != "dpo",  # its reference is in the samples
            critic=learner if learner in ("value_head", "adapter", "model") else "none",  # type: ignore[arg-type]
            tuning=tuning,  # type: ignore[arg-type]
            rank=RANK,
            bf16=False,
            gpus=0,
            load=load,
        ),
    )
    return parts.update_peak


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Peak memory of GRPO, DPO and PPO updates on one batch.")
    parser.add_argument("--model", choices=list(SHAPES), default="embedded")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--siblings", type=int, default=4)
    parser.add_argument("--micro-batch-tokens", type=int, default=1024)
    parser.add_argument("--no-kl", action="store_true", help="without a reference policy")
    parser.add_argument("--only", choices=["lora", "full"], help="one way of tuning alone")
    parser.add_argument("--learners", nargs="+", choices=list(NAMES), default=list(NAMES), help="these, after grpo")
    parser.add_argument("--repeats", type=int, default=1, help="processes of each case; the largest peak counts")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    settings = UpdateSettings(
        model=options.model,
        dtype="fp32",
        tasks=options.tasks,
        siblings=options.siblings,
        micro_batch_tokens=options.micro_batch_tokens,
        kl=0.0 if options.no_kl else 0.01,
    )
    if options.case:
        run_case(*options.case, settings)
        return
    rows = []
    print(f"{'trained':<10}{'learner':<20}{'measured':>11}{'estimated':>11}{'GRPO needs less by':>20}")
    for tuning in [options.only] if options.only else ["lora", "full"]:
        grpo = 0.0
        for learner in dict.fromkeys(["grpo", *options.learners]):
            if learner == "adapter" and tuning == "full":
                continue
            real = max(_measured(learner, tuning, arguments) for _ in range(options.repeats))
            guess = estimated(learner, tuning, settings)
            grpo = grpo or real
            print(
                f"{tuning:<10}{NAMES[learner]:<20}{real / 1e9:>8.2f} GB{guess / 1e9:>8.2f} GB{1 - grpo / real:>20.1%}",
                flush=True,
            )
            rows.append({"tuning": tuning, "learner": learner, "measured_bytes": real, "estimated_bytes": guess})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _measured(learner: str, tuning: str, arguments: Sequence[str] | None) -> float:
    given = sys.argv[1:] if arguments is None else arguments
    command = [sys.executable, str(Path(__file__).resolve()), *given, "--case", learner, tuning]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(json.loads(output.splitlines()[-1])["peak_bytes"])


if __name__ == "__main__":
    main()
