"""TRL's GRPOTrainer with `environment_factory` on DeedRL's support desk, one optimiser step a repetition.

Each episode is DeedRL's own episode loop (parser, tools, limits, verifier, rubric), whose policy is TRL: every turn
goes to it as a call of one tool. TRL knows no end of an episode, so the last call returns more than fits a
conversation; such a result TRL drops, and samples no further turn.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch
import trl
from datasets import Dataset
from learning import Clock, session_of
from peft import PeftModel
from serving import Requests, read_work
from stepped import SteppedEpisode
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from trl_rollouts import TEMPLATE

from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.online import shuffled_tasks
from deedrl.pipeline.session import Session
from deedrl.rendering.renderer import Renderer
from deedrl.rollouts.prompting import system_prompt, user_message
from deedrl.rollouts.slot import EnvironmentSlot, EnvironmentSource
from deedrl.types import Message, Task, Trajectory

ENDED = "end " * 9000
"""More tokens than the model has positions."""


class Desk:
    """What TRL calls; its only tool takes a whole turn, for DeedRL's parser reads it."""

    session: ClassVar[Session]
    stage: ClassVar[Grpo]
    loop: ClassVar[asyncio.AbstractEventLoop]
    numbers = itertools.count()

    _episode: SteppedEpisode | None = None

    def reset(self, *, task: str, **_: Any) -> None:
        read = msgspec.json.decode(task, type=Task)
        name = f"{Desk.stage.title}-{next(Desk.numbers)}-{read.id}"
        sampling = Desk.session.sampling(Desk.stage.temperature)
        spec = Desk.session.spec(read, name, stage=Desk.stage.title, sampling=sampling)
        # TRL plays all episodes in step with each other, so each takes as long as all of them.
        limits = msgspec.structs.replace(Desk.session.limits, episode_timeout_s=86_400.0)
        slot = EnvironmentSlot(EnvironmentSource(Desk.session.environment))
        self._episode = SteppedEpisode(Desk.loop, spec, slot=slot, rubric=Desk.session.rubric, limits=limits)

    def act(self, text: str, cut: bool) -> str:
        """Does what a turn says.

        Args:
            text: The turn.
            cut: Whether it hit the limit of tokens.
        """
        assert self._episode is not None
        told = self._episode.turn(text, cut)
        return ENDED if told is None else told

    def _trajectory(self) -> Trajectory | None:
        return self._episode and self._episode.trajectory


def read_turn(tokenizer: Any, ids: list[int], **_: Any) -> dict[str, Any]:
    """Stands in for TRL's parser: every turn is a call of the one tool."""
    cut = ids[-1] != tokenizer.eos_token_id
    text = tokenizer.decode(ids if cut else ids[:-1], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    call = {"type": "function", "function": {"name": "act", "arguments": {"text": text, "cut": cut}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def rows_of(session: Session, stage: Grpo, steps: int) -> list[dict[str, Any]]:
    """The tasks of `steps` steps in order; they are drawn as ours are, but without weights."""
    system = system_prompt(
        session.environment_class.instructions, session.environment_class.tools.schemas(), session.prompt
    )
    pool = session.tasks("train")
    return [
        {
            "prompt": [
                {"role": "system", "content": system},
                {"role": "user", "content": user_message(task.prompt, session.prompt)},
            ],
            "task": msgspec.json.encode(task).decode(),
        }
        for step in range(steps)
        for task in shuffled_tasks(session, stage.title, pool, step, stage.tasks_per_step)
    ]


def settings_of(work: dict[str, Any], session: Session, stage: Grpo) -> GRPOConfig:
    """The stage's settings under TRL's names."""
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer-"),
        use_cpu=True,
        bf16=work["precision"] == "bfloat16",
        report_to=[],
        save_strategy="no",
        max_steps=work["steps"] + 1,  # the last one never begins: its adapter is asked for first
        shuffle_dataset=False,
        per_device_train_batch_size=stage.group_size,
        gradient_accumulation_steps=stage.tasks_per_step,
        num_generations=stage.group_size,
        gradient_checkpointing=False,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=stage.max_grad_norm,
        temperature=stage.temperature or session.recipe.sampling.temperature,
        top_p=1.0,
        top_k=0,
        max_completion_length=session.recipe.limits.max_tokens_per_episode,
        generation_kwargs={"max_new_tokens": session.recipe.sampling.max_tokens},
        beta=stage.kl_coefficient,
        epsilon=stage.clip_low,
        epsilon_high=stage.clip_high,
        scale_rewards={"grpo": "group", "dr_grpo": "none"}[stage.advantage],
        loss_type={"sequence": "grpo", "token": "dapo"}[stage.loss_normalisation],
    )


def trainer_of(work: dict[str, Any], session: Session, stage: Grpo) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    tokenizer.chat_template = TEMPLATE
    # Unused, since turns are not parsed, but TRL wants one.
    tokenizer.response_schema = {"type": "object", "properties": {}}
    grpo_trainer.parse_response = read_turn
    Desk.session, Desk.stage, Desk.loop = session, stage, asyncio.new_event_loop()
    threading.Thread(target=Desk.loop.run_forever, daemon=True).start()
    base = AutoModelForCausalLM.from_pretrained(work["model"], dtype=getattr(torch, work["precision"]))
    return GRPOTrainer(
        model=PeftModel.from_pretrained(base, work["adapter"], is_trainable=True),
        args=settings_of(work, session, stage),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows_of(session, stage, work["steps"])),
        reward_funcs=reward,
        environment_factory=Desk,
    )


def reward(environments: list[Desk], **_: Any) -> list[float | None]:
    return [(found := desk._trajectory()) and found.reward for desk in environments]


class Answering(TrainerCallback):
    """Answers when a step has ended."""

    def __init__(self, requests: Requests, trainer: GRPOTrainer) -> None:
        self._requests, self._trainer = requests, trainer
        self._sampling = Clock()
        self._tokens = 0
        score = trainer._generate_and_score_completions

        def begin(rows: Any) -> Any:
            requests.wait()
            made = score(rows)
            self._tokens = int((made["completion_mask"] * made["tool_mask"]).sum())
            return made

        trainer._generate = self._sampling.on(trainer._generate)
        trainer._generate_and_score_completions = begin

    def on_step_end(self, *_: Any, **__: Any) -> None:
        played = [desk._trajectory() for desk in self._trainer.environments]
        self._requests.answer(
            tokens=self._tokens,
            sampling_s=self._sampling.take(),
            episodes=len(played),
            solved=sum(one is not None and one.solved is True for one in played),
        )


def same_prompts(trainer: GRPOTrainer, model: str, rows: int = 20) -> bool:
    """Whether TRL's template gives the tokens that DeedRL's renderer gives, for the first tasks."""
    renderer = Renderer(AutoTokenizer.from_pretrained(model))
    prompts = trainer.train_dataset["prompt"][:rows]
    theirs = trainer.processing_class.apply_chat_template(
        prompts, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return theirs == [renderer.prompt_ids([Message(**message) for message in prompt]) for prompt in prompts]


def main() -> None:
    work = read_work()
    with session_of(work, work["adapter"]) as (session, stage):
        trainer = trainer_of(work, session, stage)

        def save(folder: Path) -> None:
            trainer.model.save_pretrained(folder, selected_adapters=["default"])

        facts = {
            "trl": trl.__version__,
            "torch": torch.__version__,
            "same_prompts": same_prompts(trainer, work["model"]),
        }
        trainer.add_callback(Answering(Requests(save, **facts), trainer))
        trainer.train()


if __name__ == "__main__":
    main()
