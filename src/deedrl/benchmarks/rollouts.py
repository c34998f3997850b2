"""How fast the local policy plays episodes of several turns: sampled tokens a second, all episodes together."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.benchmarks.long_desk import ActingPolicy, LongDesk, long_specs
from deedrl.benchmarks.measure import BenchmarkResult, Figure, check_count, figure, peak_figures, this_machine, timed
from deedrl.config import require
from deedrl.policies.local.model import LoadedModel, load_model
from deedrl.policies.local.policy import LocalPolicy
from deedrl.rollouts.runner import Limits, run_episodes_sync
from deedrl.types import Record, Trajectory

MAX_GROWTH = 1.25
NEVER = -1
"""No token has this id, so no turn ends before its last token."""


class RolloutSettings(Record, frozen=True):
    """What to play."""

    model: str = "embedded"
    dtype: str = "auto"
    episodes: int = 64
    """All at once."""
    turns: tuple[int, ...] = (4,)
    """Of an episode; everything is measured for each of these numbers."""
    new_tokens: int = 32
    """Sampled in every turn."""
    temperature: float = 1.0
    seed: int = 0
    repetitions: int = 3

    def __post_init__(self) -> None:
        for name in ("episodes", "new_tokens", "repetitions"):
            require(getattr(self, name) >= 1, name, f"expected at least 1, got {getattr(self, name)}")
        require(bool(self.turns), "turns", "expected at least one number of turns, got none")
        require(min(self.turns, default=2) >= 2, "turns", f"expected at least 2 each, got {min(self.turns, default=2)}")


def benchmark_rollouts(settings: RolloutSettings) -> BenchmarkResult:
    """Plays each number of turns once unmeasured, then all of them in turn. Raises `BenchmarkError` for other work."""
    machine = this_machine()
    loaded = load_model(settings.model, dtype=settings.dtype)
    for turns in settings.turns:
        play(settings, loaded, turns)
    seconds: dict[int, list[float]] = {turns: [] for turns in settings.turns}
    for _ in range(settings.repetitions):
        for turns in settings.turns:
            _, spent = timed(lambda turns=turns: play(settings, loaded, turns))  # type: ignore[misc]
            seconds[turns].append(spent.wall_s)
    return BenchmarkResult(
        benchmark="rollouts",
        settings={
            **{name: getattr(settings, name) for name in settings.__struct_fields__ if name != "turns"},
            "turns": " ".join(map(str, settings.turns)),
            "precision": str(loaded.model.dtype).removeprefix("torch."),
        },
        counts={f"tokens sampled in {turns} turns": _tokens(settings, turns) for turns in settings.turns},
        figures=(*_figures(settings, seconds), *_growth(settings, seconds), *peak_figures()),
        machine=machine,
    )


def play(settings: RolloutSettings, loaded: LoadedModel, turns: int) -> list[Trajectory]:
    """All episodes once, caches empty at the beginning; checks that everything asked for was sampled and done."""
    specs = long_specs(
        settings.episodes, new_tokens=settings.new_tokens, temperature=settings.temperature, seed=settings.seed
    )
    policy = LocalPolicy(loaded.model, loaded.renderer, max_rows=settings.episodes, stop_ids=(NEVER,))
    played = run_episodes_sync(
        specs,
        environment=LongDesk,
        policy=ActingPolicy(policy, specs, turns),
        rubric=None,
        limits=Limits(loop_warn=None, loop_end=None, episode_timeout_s=86_400),
        concurrency=settings.episodes,
    )
    check_count("solved episodes", settings.episodes, sum(trajectory.solved is True for trajectory in played))
    sampled = sum(len(step.completion.token_ids) for trajectory in played for step in trajectory.steps)
    check_count("sampled tokens", _tokens(settings, turns), sampled)
    return played


def _tokens(settings: RolloutSettings, turns: int) -> int:
    return settings.episodes * turns * settings.new_tokens


def _figures(settings: RolloutSettings, seconds: dict[int, list[float]]) -> list[Figure]:
    found = []
    for turns, measured in seconds.items():
        found.append(figure(f"{turns} turns: whole run (wall)", "s", measured))
        rates = [_tokens(settings, turns) / second for second in measured]
        found.append(figure(f"{turns} turns: sampled tokens (wall)", "1/s", rates))
    return found


def _growth(settings: RolloutSettings, seconds: dict[int, list[float]]) -> list[Figure]:
    """How much more a sampled token costs at the most expensive number of turns than at the cheapest."""
    if len(seconds) < 2:
        return []
    rounds: Sequence[tuple[float, ...]] = list(zip(*seconds.values(), strict=True))
    costs = [[one / _tokens(settings, turns) for one, turns in zip(row, seconds, strict=True)] for row in rounds]
    ratios = [max(row) / min(row) for row in costs]
    return [figure("cost of a token, dearest over cheapest number of turns", "×", ratios, at_most=MAX_GROWTH)]
