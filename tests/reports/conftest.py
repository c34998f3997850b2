from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.types import Action, Completion, Step, TerminationReason, ToolOutput, Trajectory, Verdict

HOSTILE = "</script><script>x=1</script><img src=x onerror=alert(1)>"


def share(numerator: int, denominator: int) -> dict[str, Any]:
    value = numerator / denominator
    spread = 1.96 * math.sqrt(max(value * (1 - value), 0.01) / denominator)
    return {
        "value": value,
        "numerator": numerator,
        "denominator": denominator,
        "low": max(0.0, value - spread),
        "high": min(1.0, value + spread),
    }


def mean(value: float, episodes: int) -> dict[str, Any]:
    return {
        "value": value,
        "numerator": value * episodes,
        "denominator": episodes,
        "low": value - 0.11,
        "high": value + 0.11,
    }


def metrics(solved: int, episodes: int, steps: float, formatted: int, calls: int, correlation: float | None) -> Any:
    families = ["refund_by_status", "refund_window", "several_orders", "contradiction", "partial_refund", "escalation"]
    each = episodes // len(families)

    def group(rank: int, parts: int) -> dict[str, Any]:
        count = episodes // parts
        return {
            "episodes": count,
            "completion_rate": share(max(0, min(count, round(solved / parts) + (1 - rank) * (solved > 0))), count),
        }

    return {
        "completion_rate": share(solved, episodes),
        "mean_steps": mean(steps, episodes),
        "tool_call_accuracy": share(calls, 400),
        "format_compliance": share(formatted, 400),
        "episodes": episodes,
        "unscored": 1,
        "errored": 2,
        "parse_failures": share(episodes - solved - 3 if solved < 10 else 1, episodes),
        "terminations": {"goal": solved, "parse_failures": 3, "step_limit": episodes - solved - 3},
        "reward_completion_correlation": correlation,
        "splits": {"test": {"size": episodes, "hash": "9f2c41d07a3be815"}},
        "by_family": {name: group(rank, len(families)) for rank, name in enumerate(families)} if each else {},
        "by_difficulty": {name: group(rank, 3) for rank, name in enumerate(("easy", "medium", "hard"))},
    }


def episode(text: str, observation: str, solved: bool) -> Trajectory:
    step = Step(
        index=0,
        observation="Customer: where is the refund for order 4711? It arrived broken.",
        completion=Completion(text=text),
        action=Action(tool_name="search_order") if solved else Action(error="expected one JSON object, got prose"),
        tool_output=ToolOutput(text=observation) if solved else None,
    )
    return Trajectory(
        episode_id=f"e-{solved}",
        task_id="t1",
        split="test",
        steps=(step,),
        termination=TerminationReason.GOAL if solved else TerminationReason.PARSE_FAILURES,
        verdict=Verdict(solved=solved, progress=float(solved)),
    )


def build_run(folder: Path, hostile: str = HOSTILE) -> Path:
    """A finished run as the stages would leave it, with hostile model text in it."""
    stages = ["baseline", "cold_start", "sft", "grpo", "mine", "evaluate"]
    data = {
        "name": "quickstart",
        "seed": 7,
        "stages": [{"stage": name, **({"steps": 7} if name == "sft" else {})} for name in stages],
    }
    before, after = metrics(1, 120, 2.9, 140, 61, None), metrics(114, 120, 2.08, 396, 391, 0.947)
    middle = metrics(71, 120, 2.4, 380, 350, 0.91)
    with Run.open(folder, recipe_from(data)) as run:
        figures: dict[str, dict[str, Any]] = {
            "baseline": {"episodes": 180},
            "cold_start": {
                "kept": 131,
                "rejected": 84,
                "stable share": 0.62,
                "sources": {"policy": 2, "guided": 41, "demonstration": 88},
                "families": {"window": 30, "several_orders": 101},
            },
            "sft": {"steps": 7, "loss": 0.213},
            "grpo": {"steps": 10, "zero_variance_groups": 14, "best_step": 10},
            "mine": {"probed": 64, "hard": 11, "clusters": 3},
            "evaluate": {"episodes": 180},
        }
        for number, name in enumerate(stages):
            run.start_stage(name)
            run.finish_stage(name, 31.0 + 40 * number, figures[name])
        for name, trajectory in (
            ("baseline", episode(f"Sure! I refunded it. {hostile}", "", False)),
            ("evaluate", episode('{"tool_name": "search_order", "parameters": {"id": 4711}}', hostile, True)),
        ):
            (run.trajectories / f"{name}.jsonl").write_bytes(msgspec.json.encode(trajectory) + b"\n")
        with open(run.metrics_path, "w") as file:
            for step in range(1, 41):
                row = {
                    "loss": 0.9 * math.exp(-step / 8) + 0.05 * math.sin(step),
                    "reward": 1 - 0.5 * math.exp(-step / 12) + 0.03 * math.sin(2 * step),
                    "kl": 0.002 * step,
                    "completion_rate": 1 - 0.6 * math.exp(-step / 10),
                }
                print(json.dumps({"time": step, "stage": "grpo", "step": step, "metrics": row}), file=file)
                if step <= 7:
                    sft = {"loss": 1.6 * math.exp(-step / 3) + 0.2, "learning_rate": 1e-3 * (1 - step / 7)}
                    print(json.dumps({"time": step, "stage": "sft", "step": step, "metrics": sft}), file=file)
        entries = [
            {"name": "baseline", "seconds": 31.0, "metrics": before},
            {"name": "baseline_unseen", "seconds": 12.0, "metrics": metrics(0, 60, 2.9, 130, 50, None)},
            {"name": "sft", "seconds": 111.0, "metrics": middle},
            {"name": "evaluate", "seconds": 231.0, "metrics": after},
            {"name": "evaluate_unseen", "seconds": 20.0, "metrics": metrics(37, 60, 2.4, 390, 371, 0.9)},
        ]
        run.write_json("summary.json", {"before": before, "after": after, "stages": entries})
    return folder


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    return build_run(tmp_path / "run")
