"""The reward terms that ship with DeedRL, one file each."""

from deedrl.rewards.terms.efficiency import Efficiency
from deedrl.rewards.terms.format import Format
from deedrl.rewards.terms.outcome import Outcome
from deedrl.rewards.terms.process import Process

__all__ = ["Efficiency", "Format", "Outcome", "Process"]
