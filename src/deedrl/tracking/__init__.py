"""Metrics and sampled trajectories to consoles, files and tracking services."""

from deedrl.tracking.tables import trajectory_row
from deedrl.tracking.tracker import Tracker, open_tracker

__all__ = ["Tracker", "open_tracker", "trajectory_row"]
