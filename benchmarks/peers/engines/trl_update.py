"""TRL's GRPOTrainer, one optimiser step a repetition: `train()` itself, with the rollouts replaced by the workload's.

The clock runs from when the trainer has its batch until its step has ended, the optimiser included.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from serving import Requests, read_work
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Answering(TrainerCallback):
    def __init__(self, requests: Requests, tokens: int) -> None:
        self._requests, self._tokens = requests, tokens

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._requests.answer(self._tokens)


def batch_of(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """All rows are of one length and have prompts of one length, so nothing is padded."""
    ids = torch.tensor([row["ids"] for row in rows])
    actions = torch.tensor([row["action_mask"] for row in rows], dtype=torch.long)
    start = int(actions[0].argmax())
    return {
        "prompt_ids": ids[:, :start],
        "prompt_mask": torch.ones_like(ids[:, :start]),
        "completion_ids": ids[:, start:],
        "completion_mask": torch.ones_like(ids[:, start:]),
        "tool_mask": actions[:, start:],
        "advantages": torch.tensor([row["advantage"] for row in rows]),
        "num_items_in_batch": actions.sum(),
    }


def main() -> None:
    work = read_work()
    rows = work["rows"]
    micro = work["micro_batch_rows"]
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer-"),
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",
        report_to=[],
        save_strategy="no",
        max_steps=1000,
        learning_rate=1e-6,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=len(rows) // micro,
        num_generations=work["siblings"],
        gradient_checkpointing=work["gradient_checkpointing"],
        beta=0.0,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work["model"], dtype=getattr(torch, work["precision"])),
        args=arguments,
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * len(rows)),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        peft_config=LoraConfig(
            r=work["rank"], lora_alpha=2 * work["rank"], target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    requests = Requests(
        trl=trl.__version__,
        torch=torch.__version__,
        micro_batch_rows=micro,
        gradient_checkpointing=work["gradient_checkpointing"],
    )
    trainer.add_callback(Answering(requests, sum(map(sum, (row["action_mask"] for row in rows)))))

    def rollouts(_: Any) -> dict[str, torch.Tensor]:
        requests.wait()
        return batch_of(rows)

    trainer._generate_and_score_completions = rollouts
    trainer.train()


if __name__ == "__main__":
    main()
