"""Questions about a database and log files: look at the data, compute, answer."""
