"""Supervised samples are rendered: which tokens of a stored episode are trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from deedrl.pipeline.context import StageContext
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.rendering import rendered_sample
from deedrl.pipeline.run import Run
from deedrl.pipeline.session import Session
from deedrl.pipeline.sft_stage import sft_samples
from deedrl.rendering.renderer import CHATML, Renderer
from deedrl.tracking.tracker import Tracker
from deedrl.training.samples import TrainingSample
from deedrl.types import Action, Completion, FinishReason, Step, Trajectory

SYSTEM = "Choose letters."


@pytest.fixture(scope="module")
def renderer(tiny_models: Callable[..., Any]) -> Renderer:
    loaded = tiny_models(["Choose letters.", '{"tool_name":"choose","parameters":{"letter":"A"}}'] * 20).load()
    return Renderer(loaded.renderer.tokenizer)


def episode(*turns: tuple[str, FinishReason]) -> Trajectory:
    steps = (
        Step(
            index=index,
            observation=f"observation {index}",
            completion=Completion(text=text, finish_reason=reason),
            action=Action(tool_name="choose"),
        )
        for index, (text, reason) in enumerate(turns)
    )
    return Trajectory(episode_id="e", task_id="t", steps=tuple(steps))


def trained(sample: TrainingSample) -> list[int]:
    return [token for token, action in zip(sample.ids, sample.action_mask, strict=True) if action]


def test_B03_three_complete_turns_train_exactly_three_turn_ends(renderer: Renderer) -> None:
    texts = ["Choose A.", "Choose B.", "Choose C."]
    sample = rendered_sample(renderer, episode(*((text, "stop") for text in texts)), SYSTEM)
    assert trained(sample) == [token for text in texts for token in renderer.completion_ids(text)]
    assert trained(sample).count(renderer.turn_end_id) == 3
    # System and user turns end with the same token, untrained.
    assert sample.ids.count(renderer.turn_end_id) == 3 + 2 + 2


def test_B03_a_turn_the_limit_cut_gets_its_end_as_context(renderer: Renderer) -> None:
    sample = rendered_sample(renderer, episode(("Choose A. And th", "length"), ("Choose B.", "stop")), SYSTEM)
    assert trained(sample) == [*renderer.completion_ids("Choose A. And th")[:-1], *renderer.completion_ids("Choose B.")]
    whole = rendered_sample(renderer, episode(("Choose A. And th", "stop"), ("Choose B.", "stop")), SYSTEM)
    assert sample.ids == whole.ids


@pytest.mark.parametrize("tokenizer_adds", [False, True])
@pytest.mark.parametrize("template_prints", [False, True])
def test_B07_a_supervised_row_has_one_bos_at_its_start(
    renderer: Renderer, template_prints: bool, tokenizer_adds: bool
) -> None:
    tokenizer: Any = copy.deepcopy(renderer.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.chat_template = "{{ bos_token }}" * template_prints + CHATML
    if tokenizer_adds:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
        )
    sample = rendered_sample(Renderer(tokenizer), episode(("Choose A.", "stop"), ("Choose B.", "stop")), SYSTEM)
    expected = int(template_prints or tokenizer_adds)
    assert sample.ids.count(tokenizer.bos_token_id) == expected
    assert sample.ids[:1].count(tokenizer.bos_token_id) == expected


def test_B03_a_cut_last_turn_trains_no_end(renderer: Renderer) -> None:
    sample = rendered_sample(renderer, episode(("Choose A. And th", "length")), SYSTEM)
    assert trained(sample) == renderer.completion_ids("Choose A. And th")[:-1]


class Warnings:
    """Progress of which only the warnings are looked at."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def test_B09_a_positive_over_the_limit_is_left_out_whole_and_said(
    tmp_path: Path, tiny_models: Callable[..., Any]
) -> None:
    models = tiny_models(["Choose letters.", "Take A."] * 20)
    environment = Path(__file__).with_name("letters.py")
    recipe = recipe_from(
        {
            "name": "tiny",
            "model": {"path": str(models.folder()), "dtype": "fp32"},
            "environment": f"{environment}:Letters",
            "sampling": {"max_tokens": 3},
            "limits": {"max_tokens_per_episode": 400},
            "stages": [{"stage": "sft", "steps": 1}],
        }
    )
    warnings = Warnings()
    with Run.open(tmp_path / "run", recipe) as run:
        session = Session(StageContext(recipe, run, Tracker([]), warnings))  # type: ignore[arg-type]
        task = session.tasks("train")[0].id
        store = session.store("cold-start-positives")
        for name, text in (("short", "Take A."), ("long", "Take A. " * 400)):
            completion = Completion(text=text)
            step = Step(index=0, observation="Take A.", completion=completion, action=Action(tool_name="choose"))
            store.append(Trajectory(episode_id=name, task_id=task, steps=(step,)))
        samples = sft_samples(session, "sft")
    assert [sample.episode_id for sample in samples] == ["short"]
    assert warnings.texts == [
        "1 of 2 positives are longer than 400 tokens and are left out; "
        "raise limits.max_tokens_per_episode, up to the model's context, to keep them",
        "1 of 1 positives have a turn of more than sampling.max_tokens (3) tokens; the policy would be cut there: "
        f"raise it to {samples[0].longest_turn} or more",
    ]
    assert samples[0].longest_turn > 3
