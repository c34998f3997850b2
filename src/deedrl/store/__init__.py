"""Trajectories on disk: one JSON line an episode, append-only."""

from deedrl.store.jsonl import BadLine, ScanReport, TrajectoryStore

__all__ = ["BadLine", "ScanReport", "TrajectoryStore"]
