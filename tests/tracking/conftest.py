import pytest


class ListSink:
    """Keeps what it is given."""

    name = "list"

    def __init__(self):
        self.logged, self.tables, self.closed = [], [], 0

    def log(self, metrics, *, step, stage):
        self.logged.append((dict(metrics), step, stage))

    def table(self, name, rows, *, step):
        self.tables.append((name, rows, step))

    def close(self):
        self.closed += 1


class BrokenSink(ListSink):
    """A service that is down."""

    name = "broken"

    def log(self, metrics, *, step, stage):
        super().log(metrics, step=step, stage=stage)
        raise ConnectionError("no network for api_key=canary-0123456789")


@pytest.fixture
def list_sink():
    return ListSink()


@pytest.fixture
def broken_sink():
    return BrokenSink()
