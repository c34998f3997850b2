"""Losses and gradients of TRL's trainers for `losses.py`: their own `training_step`, on batches that are handed in."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import save_file
from serving import Requests, read_work
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Trainer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

Row = dict[str, Any]
Batch = dict[str, Tensor]


def main() -> None:
    work = read_work()
    requests = Requests()
    while True:
        request = requests.wait()
        case = request["case"]
        trainer, batches = KINDS[case["kind"]](work, case)
        trainer.current_gradient_accumulation_steps = len(batches)
        items = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
        loss = sum(float(trainer.training_step(trainer.model, batch, items)) for batch in batches)
        gradients = {n: p.grad.contiguous() for n, p in trainer.model.named_parameters() if p.grad is not None}
        save_file(gradients, request["gradients"])
        requests.answer(0, loss=loss)


def sft(work: dict[str, Any], case: Row) -> tuple[Trainer, list[Batch]]:
    trainer = SFTTrainer(
        model=model_of(work, case["trained"]),
        args=SFTConfig(**common(case), max_length=None),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        train_dataset=Dataset.from_list([{"input_ids": [1, 2]}]),
    )
    return trainer, [
        {
            "input_ids": padded([row["ids"] for row in rows]),
            "attention_mask": padded([[1] * len(row["ids"]) for row in rows]),
            "labels": padded([labels(row) for row in rows], -100),
        }
        for rows in pieces(work["rows"], case["pieces"])
    ]


def labels(row: Row) -> list[int]:
    return [token if action else -100 for token, action in zip(row["ids"], row["action_mask"], strict=True)]


def dpo(work: dict[str, Any], case: Row) -> tuple[Trainer, list[Batch]]:
    trainer = DPOTrainer(
        model=model_of(work, case["trained"]),
        ref_model=None,
        args=DPOConfig(**common(case), **case["settings"]),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        train_dataset=Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}]),
    )
    trainer.precompute_ref_logps = True  # and they are given
    batches = []
    for rows in pieces(work["rows"], case["pieces"]):
        both = rows[::2] + rows[1::2]
        sums = torch.tensor([sum(row["reference"]) for row in both])
        batches.append(
            {
                "input_ids": padded([row["ids"] for row in both]),
                "attention_mask": padded([[1] * len(row["ids"]) for row in both]),
                "completion_mask": padded([list(map(int, row["action_mask"])) for row in both]),
                "ref_chosen_logps": sums[: len(sums) // 2],
                "ref_rejected_logps": sums[len(sums) // 2 :],
            }
        )
    return trainer, batches


def policy(work: dict[str, Any], case: Row) -> tuple[Trainer, list[Batch]]:
    rows = work["rows"]
    arguments = common(case) | {"per_device_train_batch_size": len(rows) // case["pieces"]}
    trainer = GRPOTrainer(
        model=model_of(work, case["trained"]),
        args=GRPOConfig(**arguments, num_generations=2, temperature=case["temperature"], **case["settings"]),
        processing_class=AutoTokenizer.from_pretrained(work["model"]),
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * len(rows)),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
    )
    trainer._prepare_inputs = lambda batch: batch  # would sample
    tokens = torch.tensor(sum(sum(row["action_mask"]) for row in rows))
    return trainer, [batch_of(part) | {"num_items_in_batch": tokens} for part in pieces(rows, case["pieces"])]


def batch_of(rows: list[Row]) -> Batch:
    """Prompts padded on the left, what follows on the right."""
    starts = [row["action_mask"].index(True) for row in rows]

    def rest(name: str) -> Tensor:
        return padded([list(row[name][start:]) for row, start in zip(rows, starts, strict=True)])

    prompts = [row["ids"][:start] for row, start in zip(rows, starts, strict=True)]
    return {
        "prompt_ids": padded([prompt[::-1] for prompt in prompts]).flip(1),
        "prompt_mask": padded([[1] * start for start in starts]).flip(1),
        "completion_ids": rest("ids"),
        "completion_mask": padded([[1] * (len(row["ids"]) - start) for row, start in zip(rows, starts, strict=True)]),
        "tool_mask": rest("action_mask").long(),
        "old_per_token_logps": rest("logprobs"),
        "ref_per_token_logps": rest("reference"),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }


KINDS = {"sft": sft, "dpo": dpo, "policy": policy}


def common(case: Row) -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(prefix="peer-"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "gradient_accumulation_steps": case["pieces"],
    }


def model_of(work: dict[str, Any], trained: str) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32)
    return PeftModel.from_pretrained(model, work["adapter"], is_trainable=True) if trained == "adapter" else model


def pieces(rows: list[Row], count: int) -> list[list[Row]]:
    size = len(rows) // count
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def padded(rows: list[list[Any]], value: int = 0) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


if __name__ == "__main__":
    main()
