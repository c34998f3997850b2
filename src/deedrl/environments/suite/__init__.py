"""The environments that come with DeedRL, one folder each."""

from __future__ import annotations


def register() -> None:
    """Registers the suite with Gymnasium; called through the package's entry point, imports no environment."""
    from gymnasium.envs.registration import register as register_environment

    register_environment(
        id="SupportDesk-v0",
        entry_point="deedrl.environments.suite.support.environment:SupportDesk",
        disable_env_checker=False,
    )
