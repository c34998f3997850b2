"""Runs the same workloads on DeedRL and on peers in turn (A B A B …) and reports medians of pairwise ratios.

    python benchmarks/peers/compare.py .peers/rollouts.json .peers/update.json --peers trl vllm --pairs 5

Each engine is a process of its own in its own virtual environment (`install.py`); only one works at a time. Loading a
model is not counted, nor is a first repetition unless `--cold` asks for it. A peer that fails is reported at the end
and leaves the others' results alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from processes import Engine, EngineFailed, script_of

from deedrl.benchmarks.measure import this_machine

OURS = "deedrl"
PEERS = ("generate", "trl", "vllm", "llamacpp")

Answer = dict[str, Any]
"""Of one repetition: ``seconds``, ``tokens`` (sampled, or learnt from), ``peak_gb`` (of the process so far)."""

FIGURES: dict[str, Callable[[Answer], float]] = {
    "seconds": lambda answer: answer["seconds"],
    "tokens a second": lambda answer: answer["tokens"] / answer["seconds"],
    "peak memory, GB": lambda answer: answer["peak_gb"],
}
"""What is made of an answer; one row of the table each."""


def figures(pairs: Sequence[tuple[Answer, Answer]]) -> dict[str, Any]:
    """For each figure the medians of both engines, and of their ratio (peer to ours) within each pair."""
    found = {}
    for name, value in FIGURES.items():
        ours, peer = [value(one) for one, _ in pairs], [value(other) for _, other in pairs]
        ratios = [b / a for a, b in zip(ours, peer, strict=True)]
        found[name] = {
            "ours": statistics.median(ours),
            "peer": statistics.median(peer),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        }
    return found


def measure(ours: Engine, peer: Engine, pairs: int, warm_up: bool) -> list[tuple[Answer, Answer]]:
    """`pairs` pairs, where asked after a first unmeasured one. Both must have done as many tokens."""
    for engine in (ours, peer) if warm_up else ():
        engine.ask("run")
    measured = []
    for _ in range(pairs):
        one, other = ours.ask("run"), peer.ask("run")
        if one["tokens"] != other["tokens"]:
            raise EngineFailed(
                f"{peer.name} did {other['tokens']} tokens, {ours.name} {one['tokens']}: not the same work"
            )
        measured.append((one, other))
        print(f"  {ours.name} {one['seconds']:.1f} s, {peer.name} {other['seconds']:.1f} s", flush=True)
    return measured


def compare(workload: Path, kind: str, peer: str, pairs: int, warm_up: bool) -> dict[str, Any]:
    """All that is known of one comparison, as plain data; with ``failed`` instead of figures where it went wrong."""
    print(f"{kind}, {peer}:", flush=True)
    result: dict[str, Any] = {"work": kind, "peer": peer, "warm_up": warm_up}
    try:
        # The peer first: if it cannot be started, nothing is waited for.
        with Engine(peer, workload, kind) as other, Engine(OURS, workload, kind) as ours:
            measured = measure(ours, other, pairs, warm_up)
            facts = {OURS: ours.facts, peer: other.facts}
    except EngineFailed as error:
        print(f"  failed: {error}", flush=True)
        return result | {"failed": str(error)}
    answers = {OURS: [one for one, _ in measured], peer: [other for _, other in measured]}
    return result | {"figures": figures(measured), "answers": answers, "facts": facts}


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row a figure, in Markdown; then a line for each comparison that failed."""
    lines = [
        "| work | peer | figure | DeedRL | peer's | peer to DeedRL | lowest to highest | pairs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for name, row in result.get("figures", {}).items():
            lines.append(
                f"| {result['work']} | {result['peer']} | {name} | {row['ours']:.4g} | {row['peer']:.4g} | "
                f"{row['ratio']:.2f} | {row['ratio_low']:.2f} to {row['ratio_high']:.2f} | "
                f"{len(result['answers'][OURS])} |"
            )
    failed = [result for result in results if "failed" in result]
    return "\n".join([*lines, *(f"FAILED {one['work']}, {one['peer']}: {one['failed']}" for one in failed)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", type=Path, nargs="+", help="from workload.py")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS, help="those without an engine are left out")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="no unmeasured repetition first: for peers that take long")
    parser.add_argument("--json", type=Path, help="a file for everything measured, written after each comparison")
    options = parser.parse_args()
    machine = this_machine()
    results: list[dict[str, Any]] = []
    for workload in options.workloads:
        kind = json.loads(workload.read_text(encoding="utf-8"))["kind"]
        for peer in (peer for peer in options.peers if script_of(peer, kind).exists()):
            results.append(compare(workload, kind, peer, options.pairs, warm_up=not options.cold))
            if options.json:
                facts = {name: getattr(machine, name) for name in machine.__struct_fields__}
                options.json.write_text(json.dumps({"machine": facts, "comparisons": results}, indent=1) + "\n")
    print("\n" + table(results))
    return int(any("failed" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
