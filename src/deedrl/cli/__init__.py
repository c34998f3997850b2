"""The `deedrl` command: one small file per subcommand, one error boundary in `main`."""
