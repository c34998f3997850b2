"""What DeedRL's parts cost: one file a benchmark, each a pure function from settings to a result."""
