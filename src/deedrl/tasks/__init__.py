"""Tasks in numbers: pools, quotas, what happened to each task so far, and which to try next."""
