"""Recipes, runs, checkpoints and the stages that turn a model into an agent."""
