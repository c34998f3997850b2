"""What the episode loop costs: 10,000 episodes at once, each part of a step measured apart.

The whole run is measured three times: bare (no rubric, no store), with a rubric, and with rubric and store. Then each
part does the same work by itself. The runner's own overhead is the bare run less environment, parser and policy, so
whatever a part costs more inside a crowded run than by itself (cold caches, garbage collection) counts as the runner's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from deedrl.benchmarks.measure import BenchmarkResult, Figure, Spent, check_count, figure, this_machine, timed
from deedrl.benchmarks.tally import Tally, ThreadedTally, Watch, tally_script, tally_specs
from deedrl.config import require
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.memory import peak_gb, resident_gb
from deedrl.parsing.parser import parse_action
from deedrl.policies.policy import CompletionRequest
from deedrl.policies.scripted import ScriptedPolicy
from deedrl.rewards.rubric import Rubric, default_rubric
from deedrl.rollouts.episode import EpisodeSpec, environment_seed
from deedrl.rollouts.runner import Limits, run_episodes_sync
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Message, Record, SamplingParams, Task, Trajectory

MAX_OVERHEAD_US = 100.0
MIN_DESK_STEPS_PER_S = 5000.0
PARTS = ("environment", "parser", "policy", "rubric", "store")


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
    tasks = SupportDesk.generate_tasks("train", settings.tickets, seed=0)
    desk = [_desk_round(tasks) for _ in range(settings.repetitions)]
    return BenchmarkResult(
        benchmark="runner",
        settings={name: getattr(settings, name) for name in settings.__struct_fields__},
        counts={
            "episodes a run": settings.concurrency,
            "steps a run": int(rounds[0]["steps"]),
            "episodes in flight": int(rounds[0]["in flight"]),
            "episodes in flight, threaded": int(threaded[0]["in flight"]),
            "tickets solved": int(desk[0]["solved"]),
        },
        figures=(*_run_figures(rounds, memory, settings), *_threaded_figures(threaded), *_desk_figures(desk)),
        machine=machine,
        details=(
            _of(rounds, "bare wall", "run: no rubric, no store (wall)", "µs/step"),
            _of(rounds, "full wall", "run: rubric and store (wall)", "µs/step"),
            _of(threaded, "wall", "run: threads, no rubric, no store (wall)", "µs/step"),
            _of(desk, "steps wall", "support desk: steps (wall)", "1/s"),
        ),
    )


Round = dict[str, float]
"""What one repetition measured, by name."""


def _of(rounds: list[Round], key: str, name: str, unit: str, **target: float) -> Figure:
    return figure(name, unit, [one[key] for one in rounds], **target)


def _run_figures(rounds: list[Round], memory: _Memory, settings: RunnerSettings) -> list[Figure]:
    return [
        _of(rounds, "runner", "runner itself", "µs/step", at_most=MAX_OVERHEAD_US),
        *(_of(rounds, part, f"{part} by itself", "µs/step") for part in PARTS),
        _of(rounds, "bare", "run: no rubric, no store", "µs/step"),
        _of(rounds, "scored", "run: rubric", "µs/step"),
        _of(rounds, "full", "run: rubric and store", "µs/step"),
        *_shares(rounds),
        _of(rounds, "threads", "threads of a run in the event loop", "threads"),
        *memory.figures(settings.concurrency),
    ]


def _threaded_figures(rounds: list[Round]) -> list[Figure]:
    return [
        _of(rounds, "cpu", "run: threads, no rubric, no store", "µs/step"),
        _of(rounds, "threads", "threads of that run", "threads"),
    ]


def _desk_figures(rounds: list[Round]) -> list[Figure]:
    return [
        _of(rounds, "steps", "support desk: steps", "1/s", at_least=MIN_DESK_STEPS_PER_S),
        _of(rounds, "resets", "support desk: resets", "1/s"),
    ]


def _shares(rounds: list[Round]) -> list[Figure]:
    """Of the sum over the runner itself and all parts by themselves."""
    names = ("runner", *PARTS)
    return [
        figure(f"share of {name}", "%", [one[name] / sum(one[part] for part in names) * 100 for one in rounds])
        for name in names
    ]


# ---------------------------------------------------------------- the run in the event loop


def _play_round(settings: RunnerSettings, memory: _Memory) -> Round:
    """All three runs and all parts once: microseconds of processor time a step, and counts."""
    specs = tally_specs(settings.concurrency, settings.steps)
    steps = settings.concurrency * settings.steps
    rubric = default_rubric()
    watch = Watch(tally_script(settings.steps))

    def run(rubric: Rubric | None, keep: Callable[[Trajectory], object]) -> tuple[list[Trajectory], Spent]:
        played, spent = timed(lambda: _play(specs, Tally, settings.concurrency, watch, rubric, keep))
        _check(played, settings.concurrency, settings.steps)
        return played, spent

    memory.before()
    bare = run(None, memory.at_first)[1]
    scored = run(rubric, _ignore)[1]
    with tempfile.TemporaryDirectory(prefix="deedrl-") as folder:
        played, full = run(rubric, _store(folder, "run").append)
        parts = _parts(specs, played, rubric, _store(folder, "alone"))
    check_count("episodes in flight at once", settings.concurrency, watch.peak_in_flight)
    costs = {name: spent.cpu_s / steps * 1e6 for name, spent in parts.items()}
    costs |= {"bare": bare.cpu_s / steps * 1e6, "scored": scored.cpu_s / steps * 1e6, "full": full.cpu_s / steps * 1e6}
    costs["runner"] = costs["bare"] - costs["environment"] - costs["parser"] - costs["policy"]
    return costs | {
        "bare wall": bare.wall_s / steps * 1e6,
        "full wall": full.wall_s / steps * 1e6,
        "threads": watch.peak_threads,
        "in flight": watch.peak_in_flight,
        "steps": steps,
    }


def _play(
    specs: list[EpisodeSpec],
    environment: type[Tally],
    concurrency: int,
    watch: Watch,
    rubric: Rubric | None,
    keep: Callable[[Trajectory], object],
) -> list[Trajectory]:
    def ended(trajectory: Trajectory) -> None:
        watch.ended()
        keep(trajectory)

    return run_episodes_sync(
        specs,
        environment=environment,
        policy=ScriptedPolicy(watch.line),
        rubric=rubric,
        limits=Limits(loop_warn=None, loop_end=None, episode_timeout_s=86_400),
        concurrency=concurrency,
        on_trajectory=ended,
    )


def _check(played: list[Trajectory], episodes: int, steps: int) -> None:
    check_count("episodes", episodes, len(played))
    check_count("solved episodes", episodes, sum(trajectory.solved is True for trajectory in played))
    check_count("steps", episodes * steps, sum(len(trajectory.steps) for trajectory in played))


def _store(folder: str, name: str) -> TrajectoryStore:
    """As a run of the pipeline opens it."""
    return TrajectoryStore(Path(folder) / f"{name}.jsonl", run_id="benchmark", config_hash="benchmark")


def _ignore(trajectory: Trajectory) -> None:
    pass


# ---------------------------------------------------------------- its parts


def _parts(
    specs: list[EpisodeSpec], played: list[Trajectory], rubric: Rubric, store: TrajectoryStore
) -> dict[str, Spent]:
    """What each part takes to do by itself what it did in the run."""
    tools = Tally.tools.schemas()
    texts = [step.completion.text for trajectory in played for step in trajectory.steps]
    watch = Watch([step.completion for step in played[0].steps])
    requests = _requests(played[0]) * len(played)
    return {
        "environment": timed(lambda: _step_through(specs, played))[1],
        "parser": timed(lambda: _for_each(texts, lambda text: parse_action(text, tools)))[1],
        "policy": timed(lambda: anyio.run(_complete_all, ScriptedPolicy(watch.line), requests))[1],
        "rubric": timed(lambda: _for_each(played, rubric.score))[1],
        "store": timed(lambda: _for_each(played, store.append))[1],
    }


def _step_through(specs: list[EpisodeSpec], played: list[Trajectory]) -> None:
    """What the runner asks of the environments, one episode after the other."""
    for spec, trajectory in zip(specs, played, strict=True):
        environment = Tally()
        environment.reset(seed=environment_seed(spec.seed), options={"task": spec.task})
        for step in trajectory.steps:
            environment.state_hash()
            environment.step(step.action)
        environment.close()


def _requests(trajectory: Trajectory) -> list[CompletionRequest]:
    """The requests of one episode."""
    messages = [Message(role="system", content=Tally.instructions)]
    requests: list[CompletionRequest] = []
    for step in trajectory.steps:
        messages.append(Message(role="tool" if requests else "user", content=step.observation))
        requests.append(
            CompletionRequest(
                episode_id=trajectory.episode_id,
                messages=tuple(messages),
                tools=Tally.tools.schemas(),
                sampling=SamplingParams(),
                seed=0,
            )
        )
        messages.append(Message(role="assistant", content=step.completion.text))
    return requests


async def _complete_all(policy: ScriptedPolicy, requests: list[CompletionRequest]) -> None:
    for request in requests:
        await policy.complete(request)


def _for_each(items: Iterable[object], function: Callable[..., object]) -> None:
    for item in items:
        function(item)


# ---------------------------------------------------------------- memory, threads, the support desk


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
        peak = peak_gb()
        return found if peak is None else [*found, figure("peak memory of the process", "GB", [peak])]


def _threaded_round(settings: RunnerSettings) -> Round:
    episodes = 4 * settings.threaded_concurrency
    specs = tally_specs(episodes, settings.steps)
    watch = Watch(tally_script(settings.steps))
    played, spent = timed(lambda: _play(specs, ThreadedTally, settings.threaded_concurrency, watch, None, _ignore))
    _check(played, episodes, settings.steps)
    steps = episodes * settings.steps
    return {
        "cpu": spent.cpu_s / steps * 1e6,
        "wall": spent.wall_s / steps * 1e6,
        "threads": watch.peak_threads,
        "in flight": watch.peak_in_flight,
    }


def _desk_round(tasks: list[Task]) -> Round:
    """The demonstration of every ticket; only `reset` and `step` are on the clock."""
    desk = SupportDesk()
    reset_s = step_s = step_wall_s = 0.0
    steps = solved = 0
    for task in tasks:
        began_s = time.process_time()
        desk.reset(seed=0, options={"task": task})
        reset_s += time.process_time() - began_s
        verdict = None
        for action in desk.demonstrate(task):
            wall_s, began_s = time.perf_counter(), time.process_time()
            info = desk.step(action)[4]
            step_s += time.process_time() - began_s
            step_wall_s += time.perf_counter() - wall_s
            steps += 1
            verdict = info.get("verdict")
        solved += verdict is not None and verdict.solved
    desk.close()
    check_count("tickets solved by their demonstration", len(tasks), solved)
    return {
        "steps": steps / step_s,
        "steps wall": steps / step_wall_s,
        "resets": len(tasks) / reset_s,
        "solved": solved,
    }
