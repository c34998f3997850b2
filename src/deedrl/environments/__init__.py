"""Environments: a job's state, its tools and the check of the final state, as Gymnasium environments."""
