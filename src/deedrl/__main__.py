"""``python -m deedrl``: the command line, for launchers that start a module."""

from deedrl.cli.main import main

if __name__ == "__main__":
    main()
