"""Rewards: terms that score one aspect each, and the rubric that composes them. See docs/reward.md."""

from deedrl.rewards.lint import LintFinding, lint_rubric
from deedrl.rewards.rubric import Rubric, WeightedTerm, default_rubric, rescore
from deedrl.rewards.term import FunctionTerm, Gate, RewardTerm, Veto, by_progress, term, ungated
from deedrl.rewards.terms import Efficiency, Format, Outcome, Process
from deedrl.rewards.vetoes import RequiredEvidence

__all__ = [
    "Efficiency",
    "Format",
    "FunctionTerm",
    "Gate",
    "LintFinding",
    "Outcome",
    "Process",
    "RequiredEvidence",
    "RewardTerm",
    "Rubric",
    "Veto",
    "WeightedTerm",
    "by_progress",
    "default_rubric",
    "lint_rubric",
    "rescore",
    "term",
    "ungated",
]
