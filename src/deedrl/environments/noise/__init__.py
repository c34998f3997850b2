"""Noise: the hiccups of real tools (failures that a retry cures, partial answers, …) around any environment."""

from deedrl.environments.noise.levels import KINDS, Noise
from deedrl.environments.noise.tools import noisy_tools
from deedrl.environments.noise.words import asks_again
from deedrl.environments.noise.wrapper import NoisyEnvironment, with_noise

__all__ = ["KINDS", "Noise", "NoisyEnvironment", "asks_again", "noisy_tools", "with_noise"]
