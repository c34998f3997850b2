"""Runs the same workload on DeedRL and a peer in turn (A B A B …) and reports the median of the pairwise ratios.

    python benchmarks/peers/compare.py trl --workload /tmp/rollouts.json --pairs 5

Each engine is a process of its own in its own virtual environment (`install.py`); only one works at a time. Loading a
model is not counted, nor is a first repetition unless `--cold` asks for it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from deedrl.benchmarks.measure import this_machine

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = Path(".peers")
"""Where `install.py` puts a peer's virtual environment, below the current folder."""
PEERS = ("generate", "trl", "vllm", "llamacpp")


class Engine:
    """One engine in its process."""

    def __init__(self, name: str, workload: Path) -> None:
        kind = json.loads(workload.read_text(encoding="utf-8"))["kind"]
        script = HERE / "engines" / f"{name}_{kind}.py"
        if not script.exists():
            raise SystemExit(f"{name} has no engine for {kind}; expected {script}")
        own = ENVIRONMENTS / name / "bin" / "python"
        python = str(own) if own.exists() else sys.executable
        self.name = name
        self._log = Path(f"{workload}.{name}.log")
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [python, str(script), str(workload)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.facts = self._answer()["ready"]

    def run(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with code {self._process.wait()}; its messages are in {self._log}")
        return json.loads(line)


def compare(ours: Engine, peer: Engine, pairs: int, warm_up: bool) -> dict[str, Any]:
    """Measures `pairs` pairs, where asked after a first unmeasured one; both must have done as many tokens."""
    for engine in (ours, peer) if warm_up else ():
        engine.run()
    measured = []
    for _ in range(pairs):
        one, other = ours.run(), peer.run()
        if one["tokens"] != other["tokens"]:
            raise SystemExit(
                f"{ours.name} did {one['tokens']} tokens, {peer.name} {other['tokens']}: not the same work"
            )
        measured.append((one, other))
        print(f"  {ours.name} {one['seconds']:.1f} s, {peer.name} {other['seconds']:.1f} s", flush=True)
    ratios = [other["seconds"] / one["seconds"] for one, other in measured]
    return {
        "peer": peer.name,
        "median_ratio": statistics.median(ratios),
        "ratios": ratios,
        "warm_up": warm_up,
        "tokens": measured[0][0]["tokens"],
        "seconds": {
            ours.name: [one["seconds"] for one, _ in measured],
            peer.name: [other["seconds"] for _, other in measured],
        },
        "peak_gb": {ours.name: measured[-1][0]["peak_gb"], peer.name: measured[-1][1]["peak_gb"]},
        "facts": {ours.name: ours.facts, peer.name: peer.facts},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--workload", type=Path, required=True, help="from workload.py")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="no unmeasured repetition first: for peers that take long")
    parser.add_argument("--out", type=Path, help="a file for everything measured, as JSON")
    options = parser.parse_args()
    engines = [Engine(name, options.workload) for name in ("deedrl", options.peer)]
    try:
        result = compare(*engines, options.pairs, warm_up=not options.cold)
    finally:
        for engine in engines:
            engine.stop()
    machine = this_machine()
    result["machine"] = {name: getattr(machine, name) for name in machine.__struct_fields__}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    medians = {name: statistics.median(seconds) for name, seconds in result["seconds"].items()}
    rates = {name: result["tokens"] / second for name, second in medians.items()}
    print(
        f"{options.peer}: DeedRL is {result['median_ratio']:.2f} times as fast (median of {options.pairs} pairs, "
        f"{min(result['ratios']):.2f} to {max(result['ratios']):.2f}); tokens a second: "
        + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    )


if __name__ == "__main__":
    main()
