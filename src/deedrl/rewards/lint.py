"""Says in plain words what is likely wrong with a rubric, before a run is spent on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from deedrl.rewards.rubric import Rubric
from deedrl.types import (
    Action,
    Completion,
    Record,
    RewardBreakdown,
    Step,
    TerminationReason,
    ToolOutput,
    Trajectory,
    Verdict,
)

PROCESS_SHARE = (0.20, 0.30)
MOST_TERMS = 5
NO_OP_LIMIT = 0.02
"""What an episode without progress may earn, as a share of the whole reward."""
SCALE_RATIO = 10.0
"""A term that varies this many times less than another is not heard beside it."""
ROUNDING = 1e-6


class LintFinding(Record, frozen=True):
    """One thing to look at; `str()` gives the message."""

    check: str
    """Name of the check, e.g. ``process_share``."""
    message: str

    def __str__(self) -> str:
        return self.message


def lint_rubric(rubric: Rubric, sample: Sequence[Trajectory] = ()) -> list[LintFinding]:
    """Findings about `rubric`, empty when there is nothing to say.

    `sample`: stored trajectories of the job, scored here again, for the checks that need real values (scale, constant
    terms, unscored terms). Without it, only the checks on weights, count and made-up no-progress episodes run.
    Raises `EnvironmentAuthorError` when a term gives a value outside [0, 1].
    """
    breakdowns = [rubric.score(trajectory) for trajectory in sample if not trajectory.errored]
    findings = [LintFinding(check=check.__name__, message=text) for check in RUBRIC_CHECKS for text in check(rubric)]
    findings += [
        LintFinding(check="earned_without_progress", message=text) for text in earned_without_progress(rubric, sample)
    ]
    findings += [
        LintFinding(check=check.__name__, message=text) for check in SAMPLE_CHECKS for text in check(breakdowns)
    ]
    return findings


# ---------------------------------------------------------------- the rubric alone


def weights_sum(rubric: Rubric) -> Iterator[str]:
    """Weights that do not sum to 1 are taken as shares, which may not be what was meant."""
    whole = math.fsum(weighted.weight for weighted in rubric.terms)
    if abs(whole - 1.0) > ROUNDING:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in rubric.shares.items())
        yield f"the weights sum to {whole:.3g}, not 1; they are used as shares: {shares}. Write those if they are meant"


def process_share(rubric: Rubric) -> Iterator[str]:
    """Process should be 20-30 %: less is not heard, more teaches going through the motions."""
    share = _share(rubric, "process")
    low, high = PROCESS_SHARE
    if not low - ROUNDING <= share <= high + ROUNDING:
        effect = "too little to guide" if share < low else "so much that going through the motions may pay"
        yield (
            f"process terms hold {share:.0%} of the reward, {effect}; {low:.0%} to {high:.0%} is the usual share. "
            f"(A term counts as process unless its name or `aspect` says otherwise.)"
        )


def outcome_share(rubric: Rubric) -> Iterator[str]:
    """The outcome should hold at least half, else a neat failure can beat a success."""
    share = _share(rubric, "outcome")
    if share < 0.5 - ROUNDING:
        yield f"the outcome holds {share:.0%} of the reward: a neat failure can earn more than a success; give it half"


def too_many_terms(rubric: Rubric) -> Iterator[str]:
    """Three good terms beat ten."""
    count = sum(weighted.weight > 0 for weighted in rubric.terms)
    if count > MOST_TERMS:
        yield f"{count} terms share the reward; three good ones beat ten. Drop those that do not change decisions"


def _share(rubric: Rubric, aspect: str) -> float:
    shares = rubric.shares
    return math.fsum(shares[weighted.term.name] for weighted in rubric.terms if weighted.about() == aspect)


# ---------------------------------------------------------------- episodes without progress


def earned_without_progress(rubric: Rubric, sample: Sequence[Trajectory]) -> Iterator[str]:
    """A term should earn about nothing where nothing was achieved (cases F15, F16)."""
    idle = [(f"episode '{trajectory.episode_id}'", trajectory) for trajectory in sample if _no_progress(trajectory)]
    worst: dict[str, tuple[float, str]] = {}
    for description, trajectory in [*_no_progress_probes(), *idle]:
        for name, score in rubric.score(trajectory).terms.items():
            earned = score.contribution or 0.0
            if earned > worst.get(name, (NO_OP_LIMIT, ""))[0]:
                worst[name] = (earned, description)
    for name, (earned, description) in worst.items():
        yield (
            f"term '{name}' earns {earned:.2f} without progress ({description}); "
            f"gate it by progress or score only what moves the job on"
        )


def _no_progress(trajectory: Trajectory) -> bool:
    verdict = trajectory.verdict
    return not trajectory.errored and verdict is not None and not verdict.solved and verdict.progress == 0.0


def _no_progress_probes() -> list[tuple[str, Trajectory]]:
    """Made-up episodes: nothing done; only talk; one call and ten calls that were accepted and changed nothing."""
    text = '{"tool_name": "look", "parameters": {}}'
    talk = Step(index=0, observation="", completion=Completion(text="Hello."), action=Action(error="no action"))
    calls = tuple(
        Step(
            index=index,
            observation="",
            completion=Completion(text=text),
            action=Action(tool_name="look"),
            tool_output=ToolOutput(text="nothing new"),
        )
        for index in range(10)
    )
    probes = {
        "an empty episode": ((), TerminationReason.GAVE_UP),
        "an episode of talk": ((talk,), TerminationReason.PARSE_FAILURES),
        "one useless call": (calls[:1], TerminationReason.TOOL_ENDED),
        "ten useless calls": (calls, TerminationReason.STEP_LIMIT),
    }
    return [
        (
            description,
            Trajectory(
                episode_id=description,
                task_id="probe",
                steps=steps,
                termination=termination,
                verdict=Verdict(solved=False),
                shortest_steps=2,
            ),
        )
        for description, (steps, termination) in probes.items()
    ]


# ---------------------------------------------------------------- values over a sample


def unequal_scale(breakdowns: Sequence[RewardBreakdown]) -> Iterator[str]:
    """Terms should use a comparable part of [0, 1], else the weights do not mean what they say."""
    ranges = {name: max(values) - min(values) for name, values in _values(breakdowns).items()}
    widest = max(ranges, key=lambda name: ranges[name], default=None)
    for name, width in ranges.items():
        if widest is not None and 0 < width * SCALE_RATIO < ranges[widest]:
            yield (
                f"terms of unequal scale: '{name}' varies by {width:.2g} over the sample and '{widest}' by "
                f"{ranges[widest]:.2g}, so the weight of '{name}' means little; stretch it over [0, 1]"
            )


def constant_term(breakdowns: Sequence[RewardBreakdown]) -> Iterator[str]:
    """A term with the same value everywhere teaches nothing."""
    for name, values in _values(breakdowns).items():
        if len(values) > 1 and max(values) - min(values) < ROUNDING:
            yield f"term '{name}' is {values[0]:.2f} in all {len(values)} episodes of the sample: it tells none apart"


def unscored_term(breakdowns: Sequence[RewardBreakdown]) -> Iterator[str]:
    """A term that often cannot score leaves episodes without a reward or shifts the weights."""
    names = {name for breakdown in breakdowns for name in breakdown.terms}
    for name in sorted(names):
        missing = sum(breakdown.terms[name].value is None for breakdown in breakdowns)
        if missing:
            yield f"term '{name}' could not score {missing} of {len(breakdowns)} episodes of the sample"


def _values(breakdowns: Sequence[RewardBreakdown]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for breakdown in breakdowns:
        for name, score in breakdown.terms.items():
            if score.value is not None:
                values.setdefault(name, []).append(score.value)
    return values


RUBRIC_CHECKS: tuple[Callable[[Rubric], Iterator[str]], ...] = (
    weights_sum,
    process_share,
    outcome_share,
    too_many_terms,
)
SAMPLE_CHECKS: tuple[Callable[[Sequence[RewardBreakdown]], Iterator[str]], ...] = (
    unequal_scale,
    constant_term,
    unscored_term,
)
