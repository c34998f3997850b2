"""What a set of episodes shows, each figure with its numerator, denominator and 95 % interval.

Which episodes count (the same everywhere in this file):

- an *errored* episode (infrastructure trouble) counts in nothing but `errored`;
- an *unscored* episode was never judged by the verifier; it is out of the completion rate and in everything else;
- an episode that ended because its text could not be parsed is not completed, verifier or not (case F24).

So `episodes` = denominator of the completion rate + `unscored` + `errored`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import StatisticsError, correlation

from deedrl.errors import TaskError
from deedrl.evaluation.caching import cache_hit_share
from deedrl.evaluation.claims import unsupported_claims
from deedrl.evaluation.figures import Figure, mean, share
from deedrl.evaluation.spread import Spread, spread_over_repeats
from deedrl.tasks.outcomes import completed, succeeded_calls
from deedrl.types import Record, SamplingParams, Step, Task, TerminationReason, Trajectory, content_hash


class SplitIdentity(Record, frozen=True):
    """Which tasks a figure was measured on (case F22)."""

    size: int
    """Distinct tasks."""
    hash: str
    """16 hex digits over the sorted task ids: equal hashes, equal task sets."""


class GroupMetrics(Record, frozen=True):
    """Figures of one part of the episodes (a family, a difficulty, a split)."""

    episodes: int
    unscored: int
    errored: int
    completion_rate: Figure
    mean_steps: Figure
    tool_use: Figure
    """Share of episodes with an accepted call of an evidence tool (case F10)."""


class Metrics(Record, frozen=True):
    """All figures of a set of episodes; the first seven fields are the public contract of ``summary.json``."""

    completion_rate: Figure
    """Solved episodes over judged ones."""
    mean_steps: Figure
    """Completions over episodes, failed ones included; t-interval."""
    tool_call_accuracy: Figure
    """Completions with the right name and the right parameters over all completions."""
    format_compliance: Figure
    """Completions that were one lone strict action over all completions."""
    episodes: int
    unscored: int
    errored: int
    name_accuracy: Figure
    """Completions that named an allowed tool over all completions."""
    parameter_accuracy: Figure
    """Completions whose parameters fit the schema and were accepted, over those with the right name."""
    parse_failures: Figure
    """Episodes that ended because of unparsable text over episodes."""
    mean_steps_solved: Figure
    mean_shortest_steps: Figure
    """Shortest known solutions of the tasks solved: what `mean_steps_solved` could fall to."""
    mean_reward: Figure
    """Over the episodes that have a reward."""
    tokens: Figure
    """Sampled tokens per episode, over the episodes whose policy recorded tokens."""
    cache_hit_share: Figure
    """Context tokens that the policy found in its caches over all, where it says so (case I09)."""
    unsupported_claims: Figure
    """Unsolved episodes that claim success in their last completion, over unsolved ones (case F11)."""
    reward_completion_correlation: float | None
    """Pearson, over episodes with both; None when either is constant."""
    terminations: dict[str, int]
    errors: dict[str, int]
    """Errored episodes by phase and kind."""
    splits: dict[str, SplitIdentity]
    by_split: dict[str, GroupMetrics]
    by_family: dict[str, GroupMetrics]
    by_difficulty: dict[str, GroupMetrics]
    spread: Spread | None = None
    """Over repeated runs of the same tasks; None when no task was run twice."""
    sampling: SamplingParams | None = None


def compute_metrics(
    trajectories: Sequence[Trajectory],
    *,
    sampling: SamplingParams | None = None,
    evidence_tools: Collection[str] = (),
) -> Metrics:
    """All figures of `trajectories`; `evidence_tools` are those whose use is tracked (empty: any tool)."""
    counted = [trajectory for trajectory in trajectories if not trajectory.errored]
    names_right = [(step, _name_right(step)) for trajectory in counted for step in trajectory.steps]
    solved = [trajectory for trajectory in counted if completed(trajectory)]
    failed = [trajectory for trajectory in counted if completed(trajectory) is False]
    tokens = [trajectory.sampled_tokens for trajectory in counted]
    return Metrics(
        completion_rate=completion_rate(trajectories),
        mean_steps=mean_steps(trajectories),
        tool_call_accuracy=tool_call_accuracy(trajectories),
        format_compliance=format_compliance(trajectories),
        episodes=len(trajectories),
        unscored=sum(completed(trajectory) is None for trajectory in counted),
        errored=len(trajectories) - len(counted),
        name_accuracy=share(right for _, right in names_right),
        parameter_accuracy=share(_call_right(step) for step, right in names_right if right),
        parse_failures=share(run.termination is TerminationReason.PARSE_FAILURES for run in counted),
        mean_steps_solved=mean_steps(solved),
        mean_shortest_steps=mean([run.shortest_steps for run in solved if run.shortest_steps is not None], floor=0.0),
        mean_reward=mean([trajectory.reward for trajectory in counted if trajectory.reward is not None]),
        tokens=mean([count for count in tokens if count], floor=0.0),
        cache_hit_share=cache_hit_share(counted),
        unsupported_claims=share(bool(unsupported_claims(trajectory)) for trajectory in failed),
        reward_completion_correlation=reward_outcome_correlation(trajectories),
        terminations=dict(sorted(Counter(trajectory.termination.value for trajectory in trajectories).items())),
        errors=_errors(trajectories),
        splits=_splits(trajectories),
        by_split=_grouped(trajectories, lambda trajectory: trajectory.split, evidence_tools),
        by_family=_grouped(trajectories, lambda trajectory: trajectory.family, evidence_tools),
        by_difficulty=_grouped(trajectories, lambda trajectory: trajectory.difficulty, evidence_tools),
        spread=spread_over_repeats(trajectories),
        sampling=sampling,
    )


# ---------------------------------------------------------------- single figures


def completion_rate(trajectories: Sequence[Trajectory]) -> Figure:
    """Solved over judged episodes; Wilson interval."""
    outcomes = (completed(trajectory) for trajectory in trajectories)
    return share(outcome for outcome in outcomes if outcome is not None)


def mean_steps(trajectories: Sequence[Trajectory]) -> Figure:
    """Completions per episode that did not error; t-interval."""
    return mean([len(trajectory.steps) for trajectory in trajectories if not trajectory.errored], floor=0.0)


def tool_call_accuracy(trajectories: Sequence[Trajectory]) -> Figure:
    """Completions that called an allowed tool with parameters it accepted, over all that noise did not take."""
    return share(
        _call_right(step) for trajectory in trajectories if not trajectory.errored for step in trajectory.own_steps
    )


def format_compliance(trajectories: Sequence[Trajectory]) -> Figure:
    """Completions that were one lone strict action, over all completions."""
    return share(
        _strict_and_alone(step) for trajectory in trajectories if not trajectory.errored for step in trajectory.steps
    )


def tool_use_rate(trajectories: Sequence[Trajectory], evidence_tools: Collection[str] = ()) -> Figure:
    """Share of episodes with an accepted call of one of `evidence_tools` (empty: of any tool)."""
    return share(
        any(name in evidence_tools or not evidence_tools for name in succeeded_calls(trajectory))
        for trajectory in trajectories
        if not trajectory.errored
    )


def low_tool_use(by_family: Mapping[str, GroupMetrics], threshold: float = 0.5) -> list[str]:
    """Families whose tool use fell below `threshold`, each with its figure: the agent may be guessing (case F10)."""
    return [
        f"family '{family}': {group.tool_use.numerator} of {group.tool_use.denominator} episodes looked before acting"
        for family, group in sorted(by_family.items())
        if group.tool_use.value is not None and group.tool_use.value < threshold
    ]


def reward_outcome_correlation(trajectories: Sequence[Trajectory]) -> float | None:
    """Pearson correlation of reward and verified completion over the episodes that have both; None when constant."""
    pairs = [
        (trajectory.reward, float(outcome))
        for trajectory in trajectories
        if trajectory.reward is not None and (outcome := completed(trajectory)) is not None
    ]
    try:
        return correlation([reward for reward, _ in pairs], [outcome for _, outcome in pairs])
    except StatisticsError:  # fewer than two pairs, or one side constant
        return None


def check_split(tasks: Sequence[Task], trained_ids: Collection[str]) -> None:
    """Raises `TaskError` when a task to evaluate on was trained on (case F22).

    `trained_ids`: ids (content hashes) of the training tasks. A task is compared by its id and by the hash of its
    content, so a renamed copy is found too.
    """
    trained = set(trained_ids)
    overlap = sorted({task.id for task in tasks if task.id in trained or content_hash(task) in trained})
    if overlap:
        raise TaskError(
            f"evaluation needs tasks that were not trained on, but {len(overlap)} of {len(tasks)} were "
            f"({', '.join(overlap[:3])}{', …' if len(overlap) > 3 else ''}); evaluate on another split or on new tasks"
        )


def split_identity(task_ids: Collection[str]) -> SplitIdentity:
    """Size and hash of a set of tasks, whatever their order or number of repeats."""
    distinct = sorted(set(task_ids))
    return SplitIdentity(size=len(distinct), hash=hashlib.sha256("\n".join(distinct).encode()).hexdigest()[:16])


# ---------------------------------------------------------------- parts


def _name_right(step: Step) -> bool:
    """A rejected action may still have named a tool that the task allows, with parameters that do not fit."""
    return step.action.valid or step.action.refused_tool is not None


def _call_right(step: Step) -> bool:
    """A valid action has an allowed name and fits the schema; the tool says whether it took the values."""
    return step.action.valid and step.tool_output is not None and step.tool_output.ok


def _strict_and_alone(step: Step) -> bool:
    return step.action.valid and step.action.tier == "strict" and step.action.ignored_actions == 0


def _errors(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    failures = (trajectory.failure for trajectory in trajectories)
    return dict(sorted(Counter(f"{failure.phase}:{failure.kind}" for failure in failures if failure).items()))


def _splits(trajectories: Sequence[Trajectory]) -> dict[str, SplitIdentity]:
    ids: dict[str, set[str]] = defaultdict(set)
    for trajectory in trajectories:
        ids[trajectory.split].add(trajectory.task_id)
    return {name: split_identity(ids[name]) for name in sorted(ids)}


def _grouped(
    trajectories: Sequence[Trajectory], key: Callable[[Trajectory], str], evidence_tools: Collection[str]
) -> dict[str, GroupMetrics]:
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        groups[key(trajectory)].append(trajectory)
    return {name: _group_metrics(groups[name], evidence_tools) for name in sorted(groups)}


def _group_metrics(group: Sequence[Trajectory], evidence_tools: Collection[str]) -> GroupMetrics:
    rate = completion_rate(group)
    errored = sum(trajectory.errored for trajectory in group)
    return GroupMetrics(
        episodes=len(group),
        unscored=len(group) - errored - rate.denominator,
        errored=errored,
        completion_rate=rate,
        mean_steps=mean_steps(group),
        tool_use=tool_use_rate(group, evidence_tools),
    )
