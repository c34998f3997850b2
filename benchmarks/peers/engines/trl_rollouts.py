"""TRL's GRPOTrainer with `environment_factory`: its own tool loop, as it runs it before each update.

Which tool a model without training calls is a matter of luck, so every turn is read as the same call, and the tool says
what the support desk said at this point. Everything else is TRL's.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import trl
from datasets import Dataset
from serving import read_work, serve
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "act", "arguments": {}}}],
}


class Desk:
    """Says what the recorded support desk said."""

    episodes: list[dict[str, Any]] = []

    def reset(self, *, episode: int, **_: Any) -> None:
        self._told = iter(Desk.episodes[episode]["observations"])

    def act(self) -> str:
        """Does the next thing."""
        return next(self._told)


def trainer_of(work: dict[str, Any]) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    tokenizer.chat_template = TEMPLATE
    # Unused, since turns are not parsed, but TRL wants one.
    tokenizer.response_schema = {"type": "object", "properties": {}}
    grpo_trainer.parse_response = lambda *_, **__: dict(TURN)
    Desk.episodes = work["episodes"]
    rows = [
        {
            "prompt": [{"role": "system", "content": work["system"]}, {"role": "user", "content": episode["prompt"]}],
            "episode": index,
        }
        for index, episode in enumerate(work["episodes"])
    ]
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer-"),
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",
        report_to=[],
        per_device_train_batch_size=len(rows),
        num_generations=len(rows),
        beta=0.0,
        temperature=work["temperature"],
        top_p=1.0,
        top_k=0,
        max_completion_length=4096,  # of the whole episode; a turn's limit is below
        max_tool_calling_iterations=work["turns"] - 1,
        generation_kwargs={"max_new_tokens": work["new_tokens"], "min_new_tokens": work["new_tokens"]},
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(work["model"], dtype=getattr(torch, work["precision"])),
        args=arguments,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        environment_factory=Desk,
    )


def main() -> None:
    work = read_work()
    trainer = trainer_of(work)
    rows = list(trainer.train_dataset)
    trainer.model.train()

    def play() -> int:
        made = trainer._generate_and_score_completions(rows)
        return int((made["completion_mask"] * made.get("tool_mask", 1)).sum())

    serve(play, trl=trl.__version__, torch=torch.__version__)


if __name__ == "__main__":
    main()
