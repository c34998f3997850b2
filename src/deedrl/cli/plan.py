"""``deedrl plan``: whether training would fit a machine, and how long a step would take."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Literal

import typer


def plan(
    algorithm: Annotated[Literal["grpo", "ppo", "dpo", "sft"], typer.Option(help="What trains the model.")],
    model: Annotated[str, typer.Option(help="embedded, a folder, or a hub id with its size in the name.")] = "embedded",
    gpus: Annotated[str, typer.Option(help="2x24GB, 80GB, ..., or cpu: this machine's processor.")] = "cpu",
    tuning: Annotated[Literal["lora", "full"], typer.Option(help="A LoRA adapter, or all weights.")] = "lora",
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapter.")] = 16,
    critic: Annotated[
        Literal["value_head", "adapter", "model"], typer.Option(help="What ppo's critic is built on.")
    ] = "value_head",
    dtype: Annotated[
        Literal["auto", "bf16", "fp32"], typer.Option(help="Of frozen weights; auto: bf16 where it is fast.")
    ] = "auto",
    prompt_tokens: Annotated[int, typer.Option(min=0, help="What all episodes begin with: instructions, tools.")] = 350,
    own_tokens: Annotated[int, typer.Option(min=1, help="Further tokens of an episode: task, turns, results.")] = 300,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes (sft: demonstrations, dpo: answers) of a step.")] = 48,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes of one task (grpo, ppo).")] = 6,
    micro_batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one pass of an update.")] = 4096,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes sampled at once.")] = 32,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Estimate memory and step time before anything is loaded: does it fit, and what to change if not."""
    from msgspec.structs import replace

    from deedrl.planning.load import Load
    from deedrl.planning.machine import detect_machine, parse_gpus
    from deedrl.planning.plan import Request, checked
    from deedrl.planning.shape import model_shape
    from deedrl.planning.words import plan_json, plan_text

    load = Load(
        prefix_tokens=prompt_tokens,
        own_tokens=own_tokens,
        episodes=episodes,
        group_size=group_size,
        micro_batch_tokens=micro_batch_tokens,
        concurrency=concurrency,
    )
    request = checked(
        Request(
            shape=model_shape(model),
            machine=replace(detect_machine(), gpus=parse_gpus(gpus)),
            algorithm=algorithm,
            tuning=tuning,
            rank=rank,
            dtype=dtype,
            critic=critic,
            load=load,
        )
    )
    if json:
        typer.echo(json_format.dumps(plan_json(request, model)))
        return
    for line in plan_text(request, model):
        typer.echo(line)
