"""What the episode loop costs: 10,000 episodes at once, each part of a step measured apart.

The same run is made bare (no rubric, no store), with a rubric, and with rubric and store, with clocks on its parts.
What no clock has counted is the runner's own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from deedrl.benchmarks.clocks import PARTS, PARTS_ALWAYS, PartClocks
from deedrl.benchmarks.desk import measure_desk
from deedrl.benchmarks.measure import BenchmarkResult, Figure, check_count, figure, peak_figures, this_machine, timed
from deedrl.benchmarks.tally import Tally, ThreadedTally, Watch, tally_script, tally_specs
from deedrl.config import require
from deedrl.memory import resident_gb
from deedrl.policies.policy import Policy
from deedrl.policies.scripted import ScriptedPolicy
from deedrl.rewards.rubric import Rubric, default_rubric
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.runner import Limits, run_episodes_sync
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Record, Trajectory

MAX_OVERHEAD_US = 100.0


class RunnerSettings(Record, frozen=True):
    """How much to play."""

    concurrency: int = 10_000
    """Episodes of the run in the event loop, all at once."""
    threaded_concurrency: int = 64
    """Episodes at once, and so threads, of the run with blocking environments; it plays four times as many."""
    steps: int = 4
    """Of each episode."""
    tickets: int = 140
    """Of the support desk."""
    repetitions: int = 5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 2 if name == "steps" else 1
            require(getattr(self, name) >= least, name, f"expected at least {least}, got {getattr(self, name)}")


def benchmark_runner(settings: RunnerSettings) -> BenchmarkResult:
    """Runs everything `repetitions` times. Raises `BenchmarkError` if an episode failed or was not in flight."""
    machine = this_machine()
    memory = _Memory()
    rounds = [_play_round(settings, memory) for _ in range(settings.repetitions)]
    threaded = [_threaded_round(settings) for _ in range(settings.repetitions)]
    desk = measure_desk(settings.tickets, settings.repetitions, machine.cores)
    return BenchmarkResult(
        benchmark="runner",
        settings={name: getattr(settings, name) for name in settings.__struct_fields__},
        counts={
            "episodes a run": settings.concurrency,
            "steps a run": int(rounds[0]["steps"]),
            "episodes in flight": int(rounds[0]["in flight"]),
            "episodes in flight, threaded": int(threaded[0]["in flight"]),
            "tickets solved": desk.solved,
        },
        figures=(*_run_figures(rounds, memory, settings), *_threaded_figures(threaded), *desk.figures),
        machine=machine,
        details=(
            *(_of(rounds, f"bare {part}", f"no rubric, no store: {part}", "µs/step") for part in PARTS_ALWAYS),
            _of(rounds, "bare wall", "run: no rubric, no store (wall)", "µs/step"),
            _of(rounds, "full wall", "run: rubric and store (wall)", "µs/step"),
            _of(threaded, "wall", "run: threads, no rubric, no store (wall)", "µs/step"),
        ),
    )


Round = dict[str, float]
"""What one repetition measured, by name."""


def _of(rounds: list[Round], key: str, name: str, unit: str, **target: float) -> Figure:
    return figure(name, unit, [one[key] for one in rounds], **target)


def _run_figures(rounds: list[Round], memory: _Memory, settings: RunnerSettings) -> list[Figure]:
    parts = ("runner", *PARTS)
    return [
        _of(rounds, "bare runner", "runner itself", "µs/step", at_most=MAX_OVERHEAD_US),
        _of(rounds, "bare garbage collection", "garbage collection", "µs/step"),
        _of(rounds, "bare whole", "run: no rubric, no store", "µs/step"),
        _of(rounds, "scored whole", "run: rubric", "µs/step"),
        _of(rounds, "full whole", "run: rubric and store", "µs/step"),
        *(_of(rounds, f"full {part}", f"of that, {part}", "µs/step") for part in parts),
        *(
            figure(f"share of {part}", "%", [one[f"full {part}"] / one["full whole"] * 100 for one in rounds])
            for part in parts
        ),
        _of(rounds, "threads", "threads of a run in the event loop", "threads"),
        *memory.figures(settings.concurrency),
    ]


def _threaded_figures(rounds: list[Round]) -> list[Figure]:
    return [
        _of(rounds, "cpu", "run: threads, no rubric, no store", "µs/step"),
        _of(rounds, "threads", "threads of that run", "threads"),
    ]


# ---------------------------------------------------------------- the run in the event loop


def _play_round(settings: RunnerSettings, memory: _Memory) -> Round:
    """All three runs once: microseconds of processor time a step, and counts."""
    watch = Watch(tally_script(settings.steps))
    memory.before()
    bare = _timed_run(settings, watch, None, memory.at_first)
    scored = _timed_run(settings, watch, default_rubric(), _ignore)
    with tempfile.TemporaryDirectory(prefix="deedrl-") as folder:
        store = TrajectoryStore(Path(folder) / "run.jsonl", run_id="benchmark", config_hash="benchmark")
        full = _timed_run(settings, watch, default_rubric(), store.append)
    check_count("episodes in flight at once", settings.concurrency, watch.peak_in_flight)
    return {
        **{f"bare {name}": value for name, value in bare.items()},
        **{f"scored {name}": value for name, value in scored.items()},
        **{f"full {name}": value for name, value in full.items()},
        "threads": watch.peak_threads,
        "in flight": watch.peak_in_flight,
        "steps": settings.concurrency * settings.steps,
    }


def _timed_run(
    settings: RunnerSettings, watch: Watch, rubric: Rubric | None, keep: Callable[[Trajectory], object]
) -> Round:
    """Microseconds a step of the whole run, of each part, and of what is left: the runner.

    The clocks give each part's share of the run; its microseconds are that share of the run's processor time.
    """
    clocks = PartClocks()
    specs = tally_specs(settings.concurrency, settings.steps)

    def play() -> list[Trajectory]:
        with clocks.on():
            return _play(
                specs,
                clocks.environment(),
                settings.concurrency,
                watch,
                policy=clocks.policy(ScriptedPolicy(watch.line)),
                rubric=None if rubric is None else clocks.rubric(rubric),
                keep=lambda trajectory: clocks.run("store", keep, trajectory),
            )

    played, spent = timed(play)
    _check(played, settings.concurrency, settings.steps)
    steps = settings.concurrency * settings.steps
    whole = spent.cpu_s / steps * 1e6
    costs = {part: seconds / spent.wall_s * whole for part, seconds in clocks.seconds.items()}
    return {
        **costs,
        "whole": whole,
        "wall": spent.wall_s / steps * 1e6,
        "runner": whole - sum(costs.values()),
    }


def _play(
    specs: list[EpisodeSpec],
    environment: type[Tally],
    concurrency: int,
    watch: Watch,
    *,
    policy: Policy,
    rubric: Rubric | None,
    keep: Callable[[Trajectory], object],
) -> list[Trajectory]:
    def ended(trajectory: Trajectory) -> None:
        watch.ended()
        keep(trajectory)

    return run_episodes_sync(
        specs,
        environment=environment,
        policy=policy,
        rubric=rubric,
        limits=Limits(loop_warn=None, loop_end=None, episode_timeout_s=86_400),
        concurrency=concurrency,
        on_trajectory=ended,
    )


def _check(played: list[Trajectory], episodes: int, steps: int) -> None:
    check_count("episodes", episodes, len(played))
    check_count("solved episodes", episodes, sum(trajectory.solved is True for trajectory in played))
    check_count("steps", episodes * steps, sum(len(trajectory.steps) for trajectory in played))


def _ignore(trajectory: Trajectory) -> None:
    pass


# ---------------------------------------------------------------- memory and threads


class _Memory:
    """What the first run holds while all its episodes are in flight and none has ended."""

    def __init__(self) -> None:
        self._before_gb: float | None = None
        self._first_gb: float | None = None

    def before(self) -> None:
        if self._before_gb is None:
            self._before_gb = resident_gb()

    def at_first(self, trajectory: Trajectory) -> None:
        """Called with every trajectory; the first one counts."""
        if self._first_gb is None:
            self._first_gb = resident_gb()

    def figures(self, episodes: int) -> list[Figure]:
        """Nothing where the system does not say."""
        found = []
        if self._before_gb is not None and self._first_gb is not None:
            grown_kb = (self._first_gb - self._before_gb) * 1e6 / episodes
            found.append(figure("memory of an episode in flight", "kB", [grown_kb]))
        return [*found, *peak_figures()]


def _threaded_round(settings: RunnerSettings) -> Round:
    episodes = 4 * settings.threaded_concurrency
    specs = tally_specs(episodes, settings.steps)
    watch = Watch(tally_script(settings.steps))
    policy = ScriptedPolicy(watch.line)
    played, spent = timed(
        lambda: _play(
            specs, ThreadedTally, settings.threaded_concurrency, watch, policy=policy, rubric=None, keep=_ignore
        )
    )
    _check(played, episodes, settings.steps)
    steps = episodes * settings.steps
    return {
        "cpu": spent.cpu_s / steps * 1e6,
        "wall": spent.wall_s / steps * 1e6,
        "threads": watch.peak_threads,
        "in flight": watch.peak_in_flight,
    }
