"""Repairs of small Python programs, checked by pytest in a sandbox and by tests that the agent does not see."""
