"""Evaluation: figures with their denominators and intervals, comparisons, and the run's summary."""

from deedrl.evaluation.claims import unsupported_claims
from deedrl.evaluation.compare import Comparison, GapAlarm, compare_completion, gap_alarm
from deedrl.evaluation.figures import Figure
from deedrl.evaluation.metrics import (
    GroupMetrics,
    Metrics,
    SplitIdentity,
    check_split,
    completion_rate,
    compute_metrics,
    format_compliance,
    low_tool_use,
    mean_steps,
    reward_outcome_correlation,
    split_identity,
    tool_call_accuracy,
    tool_use_rate,
)
from deedrl.evaluation.spread import Spread, spread_over_repeats
from deedrl.evaluation.summary import StageSummary, Summary, read_summary, write_summary

__all__ = [
    "Comparison",
    "Figure",
    "GapAlarm",
    "GroupMetrics",
    "Metrics",
    "SplitIdentity",
    "Spread",
    "StageSummary",
    "Summary",
    "check_split",
    "compare_completion",
    "completion_rate",
    "compute_metrics",
    "format_compliance",
    "gap_alarm",
    "low_tool_use",
    "mean_steps",
    "read_summary",
    "reward_outcome_correlation",
    "split_identity",
    "spread_over_repeats",
    "tool_call_accuracy",
    "tool_use_rate",
    "unsupported_claims",
    "write_summary",
]
