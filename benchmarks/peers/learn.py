"""How long DeedRL and TRL take from one SFT adapter to a held-out completion, each by itself and from the same weights.

    python benchmarks/peers/learn.py ADAPTER --budget 14400 --out .peers/learning.jsonl

The stage `grpo` of the recipe says what a step is. On the clock are steps (sampling and update); validation and loading
are not. The same evaluator, in a process of its own, validates both every `--every` steps. A line of JSON is written
after every step and validation, so a run that is stopped has told what it knew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from processes import Engine, EngineFailed

from deedrl.config import read_yaml, to_plain
from deedrl.pipeline.recipe import recipe_from
from deedrl.policies.local.model import embedded_model_folder, load_model

LEARNERS = ("deedrl", "trl")

Line = dict[str, Any]
Note = Callable[[Line], None]


def workload(options: argparse.Namespace) -> dict[str, Any]:
    """What the engines read: the recipe with its stage `grpo` alone, as plain data, and the model's folder."""
    data = read_yaml(options.recipe)
    data["stages"] = [stage for stage in data["stages"] if stage["stage"] == "grpo"][:1]
    # Learnt until the target or the budget: the driver validates, and ends.
    never = ["stages.grpo.steps=1000000", "stages.grpo.validate_every=0"]
    recipe = recipe_from(data, [*options.set, *never], str(options.recipe))
    folder = str(embedded_model_folder()) if recipe.model.path == "embedded" else recipe.model.path
    loaded = load_model(folder, dtype=recipe.model.dtype).model
    return {
        "kind": "learning",
        "model": folder,
        "precision": str(loaded.dtype).removeprefix("torch."),
        "adapter": str(options.adapter.resolve()),
        "recipe": to_plain(recipe),
        "steps": options.steps,
    }


def evaluate(work: Path, adapter: Path, step: int) -> Line:
    """Loads the model anew each time, so that nothing of it is in memory while an engine learns."""
    with Engine("deedrl", work, "evaluation") as evaluator:
        answer = evaluator.ask("run", adapter=str(adapter), step=step)
    return {"event": "validation", "step": step} | {
        key: answer[key] for key in ("completion", "episodes", "solved", "seconds")
    }


def learn(name: str, work: Path, first: Line, options: argparse.Namespace, note: Note) -> str:
    """Steps and validations of one engine until one of them ends it; why it ended."""
    spent_s, solved = 0.0, first["solved"]
    with Engine(name, work, "learning") as engine, tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        note({"event": "ready", "facts": engine.facts})
        for step in range(1, options.steps + 1):
            answer = engine.ask("run", solved=solved)
            spent_s += answer["seconds"]
            update_s = answer["seconds"] - answer["sampling_s"]
            note({"event": "step", "step": step, "spent_s": spent_s, "update_s": update_s} | answer)
            ended = spent_s >= options.budget or step == options.steps
            if step % options.every == 0 or ended:
                adapter = Path(scratch) / f"step-{step}"
                engine.ask("save", folder=str(adapter))
                found = evaluate(work, adapter, step)
                note(found | {"spent_s": spent_s})
                solved = found["solved"]
                if (found["completion"] or 0.0) >= options.target:
                    return "target"
            if ended:
                break
    return "budget" if spent_s >= options.budget else "steps"


def summary(lines: Sequence[Line], target: float) -> str:
    """One row an engine, in Markdown; seconds are on the clock, medians over steps."""
    rows = [
        f"| engine | {target:.0%} after | steps | a step | sampling | update | best validation | memory | ended by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(line["engine"] for line in lines):
        own = [line for line in lines if line["engine"] == name]
        steps = [line for line in own if line["event"] == "step"]
        best = max((line["completion"] or 0.0 for line in own if line["event"] == "validation"), default=None)
        why = next((line["why"] for line in own if line["event"] == "end"), "interruption")
        spent_s = steps[-1]["spent_s"] if steps else 0.0
        cells = [
            name,
            f"{spent_s:.0f} s" if why == "target" else f"not in {spent_s:.0f} s",
            str(len(steps)),
            *(_median(steps, key) for key in ("seconds", "sampling_s", "update_s")),
            "–" if best is None else f"{best:.1%}",
            f"{steps[-1]['peak_gb']:.1f} GB" if steps else "–",
            why,
        ]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _median(steps: Sequence[Line], key: str) -> str:
    return f"{statistics.median(step[key] for step in steps):.0f} s" if steps else "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path, help="folder of the PEFT adapter to start from")
    parser.add_argument("--recipe", type=Path, default=Path("recipes/quickstart.yaml"))
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="of the recipe, as in deedrl run"
    )
    parser.add_argument("--engines", nargs="+", choices=LEARNERS, default=LEARNERS, help="one after the other")
    parser.add_argument("--target", type=float, default=0.9, help="held-out completion, 0 to 1")
    parser.add_argument("--every", type=int, default=2, help="steps between validations")
    parser.add_argument(
        "--budget", type=float, default=14_400.0, help="seconds of steps, each engine; no step begins later"
    )
    parser.add_argument("--steps", type=int, default=60, help="at most, each engine")
    parser.add_argument("--out", type=Path, default=Path(".peers/learning.jsonl"))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    work = options.out.with_suffix(".work.json")
    work.write_text(json.dumps(workload(options)), encoding="utf-8")
    lines: list[Line] = []
    with options.out.open("w", encoding="utf-8") as out:

        def note(line: Line) -> None:
            lines.append(line)
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(json.dumps({key: value for key, value in line.items() if key not in ("facts", "solved")}), flush=True)

        first = evaluate(work, options.adapter.resolve(), 0)
        if (first["completion"] or 0.0) >= options.target:
            parser.error(f"the adapter has {first['completion']:.1%} already, expected less than --target")
        for name in options.engines:
            note({"engine": name, "spent_s": 0.0} | first)
            try:
                why = learn(name, work, first, options, lambda line, name=name: note({"engine": name} | line))
            except EngineFailed as error:
                why = f"failure: {error}"
            note({"engine": name, "event": "end", "why": why})
    print("\n" + summary(lines, options.target))
    return int(any(line.get("why", "").startswith("failure") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
