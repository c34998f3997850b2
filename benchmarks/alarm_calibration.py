"""Which alarms of online training speak on real runs, and on failures planted in tiny ones.

    python benchmarks/alarm_calibration.py [--seeds 2] [--only NAME ...] [--runs FOLDER] [--json FILE]

Real runs are replayed from their figures (`tests/pipeline/real_runs`, a file each), step by step through the code that
a stage calls. The planted ones are trained: a random two-layer model learns the job of `alarm_jobs.py` by
demonstrations, and then GRPO goes on from there with one thing wrong, from the start or from a step on. Printed are the
steps at which each alarm spoke, what was expected, and how far each figure went, which is what thresholds are chosen
by. Minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import torch
from msgspec.structs import replace

from deedrl.environments.loading import load_environment
from deedrl.pipeline import grpo_stage
from deedrl.pipeline.alarms import held_out_alarm, logprob_gap_alarm
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import ADAPTER, Run
from deedrl.pipeline.stability import EARLY_STEPS, FEWEST_USUAL, USUAL_STEPS, stability_alarms
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.pipeline.stages import run_recipe
from deedrl.policies.local.policy import LocalPolicy
from deedrl.policies.local.tiny import build_tiny_model
from deedrl.policies.policy import CompletionRequest
from deedrl.reports.progress import make_progress
from deedrl.tracking.jsonl import read_metrics
from deedrl.types import Completion

HERE = Path(__file__).resolve().parent
JOBS = HERE / "alarm_jobs.py"
REAL_RUNS = HERE.parent / "tests" / "pipeline" / "real_runs"
VALIDATION = "validation_completion"

PHRASES = {
    "reward fell": "the mean reward of a step fell",
    "entropy fell": "siblings become alike",
    "entropy rose": "ever more at random",
    "divergence": "from the one it started from",
    "ratios": "of action tokens had become",
    "gradient": "the gradient norm is",
    "skipped update": "updates of this step were left out",
    "reasoning": "reasoning depends on its input less",
    "sampler": "as sampled and as recomputed differ",
    "held out": "held-out score fell",
    "no signal": "no group of this step has a signal",
}
"""Names of alarms, and words that only they say."""


def name_of(text: str) -> str:
    """Of the alarm that said `text`; "other" for warnings that are not about stability."""
    return next((name for name, phrase in PHRASES.items() if phrase in text), "other")


Said = dict[str, list[int]]
"""By alarm the steps at which it spoke."""


# ------------------------------------------------------------ real runs


@dataclass(frozen=True)
class RealRun:
    """What a run's file says: a line on the run, then a line of figures for each validation and step."""

    about: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, file: Path) -> RealRun:
        about, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return cls(about, lines)

    def replayed(self) -> list[tuple[int, str]]:
        """Steps and texts of the alarms, as the stage would have said them."""
        seen = StageFigures()
        said: list[tuple[int, str]] = []
        for line in self.lines:
            figures = {name: value for name, value in line.items() if name != "step"}
            seen.add(figures)
            if VALIDATION in figures:
                alarms = [held_out_alarm(seen)]
            else:
                stable = stability_alarms(seen, figures, self.about["tasks"])
                alarms = [logprob_gap_alarm(figures, torch.bfloat16), *stable]
            said += [(line["step"], text) for text in alarms if text is not None]
        return said

    def series(self) -> dict[str, list[float]]:
        names = {name for line in self.lines for name in line} - {"step"}
        return {name: [line[name] for line in self.lines if line.get(name) is not None] for name in names}


# ------------------------------------------------------------ planted failures


@dataclass(frozen=True)
class Plant:
    """A run of the tiny model and what is wrong with it."""

    name: str
    planted: str
    alarm: str | None
    """Which is to speak; None where none is."""
    within: int = 0
    """Steps, from the first one that is wrong on, in which it is to speak."""
    job: str = "Colours"
    stage: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the stage that are wrong, or that the failure needs."""
    after: int = 0
    """Steps that are right."""
    wrong: Callable[[], AbstractContextManager[None]] | None = None
    """Makes the steps wrong that are played inside."""


@contextmanager
def stale_weights() -> Iterator[None]:
    """Sampling goes on with the weights that it has, under the name of the new ones."""

    def renamed(policy: LocalPolicy, version: str) -> None:
        policy.hold_weights()
        policy._version = version

    with patch.object(LocalPolicy, "rest", lambda policy: None), patch.object(LocalPolicy, "weights_changed", renamed):
        yield


@contextmanager
def greedy_sampling() -> Iterator[None]:
    """Sampling takes the likeliest tokens whatever it is asked for, so that siblings are alike."""
    right = LocalPolicy.complete

    async def greedy(policy: LocalPolicy, request: CompletionRequest) -> Completion:
        return await right(policy, replace(request, sampling=replace(request.sampling, temperature=0.01)))

    with patch.object(LocalPolicy, "complete", greedy):
        yield


def scaled_rewards(factor: float) -> Callable[[], AbstractContextManager[None]]:
    """What turns earn times `factor`, as where one unit is taken for another."""

    @contextmanager
    def wrong() -> Iterator[None]:
        right = grpo_stage.turn_rewards
        with patch.object(
            grpo_stage, "turn_rewards", lambda *args, **named: [factor * value for value in right(*args, **named)]
        ):
            yield

    return wrong


GRPO: dict[str, Any] = {
    "stage": "grpo",
    "steps": 15,
    "tasks_per_step": 8,
    "group_size": 6,
    "advantage": "dr_grpo",
    "learning_rate": 1e-3,
    "schedule": "constant",
    "refill_attempts": 0,
    "validate_every": 3,
    "validation_tasks": 48,
    "reasoning_check_every": 1,
}
PLANTS = (
    Plant("healthy", "nothing", None),
    Plant("healthy, twice the rate", "nothing", None, stage={"learning_rate": 2e-3}),
    Plant(
        "healthy, 4 updates",
        "nothing, 4 updates a batch at half the rate",
        None,
        stage={"updates_per_batch": 4, "learning_rate": 5e-4},
    ),
    Plant("learning rate", "100 times the learning rate", "reward fell", 6, stage={"learning_rate": 0.1}),
    Plant(
        "divergence",
        "no weight of KL to speak of, a reward for chatter, 10 times the learning rate",
        "divergence",
        15,
        job="PaysForChatter",
        stage={"learning_rate": 1e-2, "kl_coefficient": 1e-6},
    ),
    Plant(
        "ratios",
        "16 updates a batch, 10 times the learning rate",
        "ratios",
        3,
        stage={"updates_per_batch": 16, "learning_rate": 1e-2},
    ),
    Plant("greedy sampling", "sampling takes the likeliest tokens", "entropy fell", 3, after=5, wrong=greedy_sampling),
    Plant("stale sampler", "sampling keeps its weights", "sampler", 6, after=5, wrong=stale_weights),
    Plant("unit of rewards", "rewards times 10", "gradient", 1, after=7, wrong=scaled_rewards(10.0)),
    Plant("scale of rewards", "rewards times 100", "gradient", 1, after=7, wrong=scaled_rewards(100.0)),
    Plant("infinite gradient", "rewards times 1e38", "skipped update", 1, after=7, wrong=scaled_rewards(1e38)),
    Plant(
        "template",
        "a reward for reasoning that would fit any task",
        "reasoning",
        15,
        job="PaysForVague",
        stage={"learning_rate": 2e-3},
    ),
    Plant(
        "reward hacking",
        "a reward for red, whatever the task names; temperature 1.2, 3 times the learning rate",
        "held out",
        20,
        job="PaysForRed",
        stage={"advantage": "grpo", "temperature": 1.2, "learning_rate": 3e-3, "validate_every": 1, "steps": 20},
    ),
)


class Listening:
    """Progress that notes at which step something was warned of, and plants what goes wrong."""

    def __init__(self, plant: Plant) -> None:
        self.plant, self.done = plant, 0
        self.warned: list[tuple[int, str]] = []
        self._quiet = make_progress("quiet")
        self._open = ExitStack()

    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Any:
        return self if title == "grpo" else self._quiet.bar(title, total, unit, done)

    def __enter__(self) -> Listening:
        self._plant()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def advance(self, count: int = 1, **figures: object) -> None:
        self.done += count
        self._plant()

    def _plant(self) -> None:
        if self.plant.wrong is not None and self.done == self.plant.after:
            self._open.enter_context(self.plant.wrong())

    def say(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warned.append((self.done + 1, text))


def recipe_data(model: Path, job: str, seed: int, *stages: Mapping[str, Any], **of_model: Any) -> dict[str, Any]:
    return {
        "name": "alarms",
        "seed": seed,
        "model": {"path": str(model), "dtype": "fp32", **of_model},
        "environment": f"{JOBS}:{job}",
        "tasks": {"train": 96, "validation": 48, "test": 24, "test_unseen": 0},
        "sampling": {"max_tokens": 48},
        "limits": {"max_steps": 1},
        "stages": list(stages),
    }


def taught(folder: Path) -> Path:
    """A tiny model that has learnt the job from demonstrations, all its weights trained."""
    job = load_environment(f"{JOBS}:Colours")()
    texts = [job.instructions, "Answer every turn with one JSON object and nothing else:"]
    for task in job.generate_tasks("train", 96, 0):
        [action] = job.demonstrate(task)
        shown = {"reasoning": action.reasoning, "tool_name": action.tool_name, "parameters": dict(action.parameters)}
        texts += [task.prompt, json.dumps(shown, separators=(",", ":"))]
    model = build_tiny_model(folder / "random", texts)
    stages = (
        {"stage": "cold_start", "tasks": 0, "demonstrations": 96},
        {"stage": "sft", "steps": 240, "batch_size": 8, "learning_rate": 3e-3, "final_learning_rate": 3e-4},
    )
    recipe = recipe_from(recipe_data(model, "Colours", 0, *stages, adapter=None))
    with Run.open(folder / "start", recipe) as run:
        run_recipe(recipe, run, make_progress("quiet"))
    return folder / "start" / ADAPTER


@dataclass(frozen=True)
class Outcome:
    """What was said of a run, and how far its figures went."""

    run: str
    what: str
    expected: str | None
    said: Said
    in_time: bool
    """Whether the expected alarm spoke within its steps; of a run that expects none, whether none spoke."""
    reached: Mapping[str, float]


def planted(plant: Plant, seed: int, model: Path, folder: Path) -> Outcome:
    """Trains; the run's folder is left in `folder`."""
    recipe = recipe_from(recipe_data(model, plant.job, seed, GRPO | plant.stage))
    progress = Listening(plant)
    with Run.open(folder, recipe) as run:
        run_recipe(recipe, run, progress)
    said = by_name(progress.warned)
    steps = [step - plant.after for step in said.get(plant.alarm or "", [])]
    in_time = any(0 < step <= plant.within for step in steps) if plant.alarm else not said
    logged = {name.removeprefix("grpo/"): values for name, values in read_metrics(folder).items()}
    series = {name: [v for _, v in sorted(values.items()) if v is not None] for name, values in logged.items()}
    return Outcome(f"{plant.name}, seed {seed}", plant.planted, plant.alarm, said, in_time, reached(series))


def replayed(run: RealRun) -> Outcome:
    said = by_name(run.replayed())
    wanted = {"healthy": None, "failed": "reward fell", "undecided": None}[run.about["outcome"]]
    what = f"{run.about['outcome']}, learning rate {run.about['learning_rate']:g}"
    in_time = wanted in said if wanted else not said
    return Outcome(run.about["run"], what, wanted, said, in_time, reached(run.series()))


def by_name(said: Sequence[tuple[int, str]]) -> Said:
    found: Said = {}
    for step, text in said:
        if (name := name_of(text)) != "other":
            found.setdefault(name, []).append(step)
    return found


def reached(series: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How far figures went, in the units of the thresholds."""
    found = {f"most {name}": max(series[name]) for name in ("kl", "ratio_outside", "logprob_gap") if series.get(name)}
    entropy, norms = series.get("entropy", ()), series.get("grad_norm", ())
    if len(entropy) > EARLY_STEPS:
        shares = [value / fmean(entropy[:EARLY_STEPS]) for value in entropy[EARLY_STEPS:]]
        found |= {"least entropy": min(shares), "most entropy": max(shares)}
    usual = {at: median(norms[max(at - USUAL_STEPS, 0) : at]) for at in range(FEWEST_USUAL, len(norms))}
    if usual:
        found["most gradient"] = max(norms[at] / value for at, value in usual.items() if value)
    for name in ("reasoning_information", "reasoning_retrieval"):
        values = series.get(name, ())
        if len(values) >= 2 * EARLY_STEPS:
            means = [fmean(values[at - EARLY_STEPS : at]) for at in range(2 * EARLY_STEPS, len(values) + 1)]
            found |= {f"early {name}": fmean(values[:EARLY_STEPS]), f"least {name}": min(means)}
    return found


def shown(outcome: Outcome) -> str:
    said = "; ".join(f"{name} at {', '.join(map(str, steps))}" for name, steps in outcome.said.items()) or "nothing"
    figures = ", ".join(f"{name} {value:.3g}" for name, value in outcome.reached.items())
    expected, right = outcome.expected or "nothing", "yes" if outcome.in_time else "NO"
    return f"| {outcome.run} | {outcome.what} | {expected} | {said} | {right} | {figures} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="of each planted run")
    parser.add_argument("--only", nargs="+", choices=[plant.name for plant in PLANTS], help="of the planted runs")
    parser.add_argument("--runs", type=Path, default=REAL_RUNS, help="folder of real runs' figures")
    parser.add_argument("--json", type=Path, help="writes all outcomes there")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # tiny products are slower on many
    outcomes: list[Outcome] = []

    def add(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(shown(outcome), flush=True)

    print("| run | what | expected | said at steps | as expected | figures |\n|---|---|---|---|---|---|")
    for file in sorted(given.runs.glob("*.jsonl")):
        add(replayed(RealRun.read(file)))
    chosen = [plant for plant in PLANTS if given.only is None or plant.name in given.only]
    with tempfile.TemporaryDirectory() as work:
        model = taught(Path(work))
        for number, plant in enumerate(chosen):
            for seed in range(given.seeds):
                add(planted(plant, seed, model, Path(work) / f"{number}-{seed}"))
    if given.json:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
