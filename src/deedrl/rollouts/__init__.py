"""Rollouts: the one episode loop, its limits and failures, prompts, and replay."""
