from __future__ import annotations

import pytest

from deedrl.errors import ConfigError
from deedrl.planning.machine import GIB, Machine, detect_machine, parse_gpus, span, used_by


@pytest.mark.parametrize(
    ("text", "count", "gigabytes"),
    [("2x24GB", 2, 24), ("24GB", 1, 24), ("8x80", 8, 80), ("1 x 16 gb", 1, 16), ("4x47.5GiB", 4, 47.5)],
)
def test_gpus_in_words(text: str, count: int, gigabytes: float) -> None:
    gpus = parse_gpus(text)
    assert [size for _, size in gpus] == [int(gigabytes * GIB)] * count


@pytest.mark.parametrize("text", ["cpu", "CPU", "none"])
def test_no_gpus(text: str) -> None:
    assert parse_gpus(text) == ()


@pytest.mark.parametrize(
    "text", ["", "two", "3xx4", "0x24GB", "2x0", "-1x24", "2x24TB", "x24", "2x", "1e3", "999999x24"]
)
def test_nonsense_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 2x24GB or 80GB, or cpu; got"):
        parse_gpus(text)


def test_this_machine_is_described() -> None:
    machine = detect_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0


@pytest.mark.parametrize(("seconds", "words"), [(3, "3 s"), (600, "10 min"), (9000, "2 h"), (10 * 86400, "10 days")])
def test_times_in_words(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("device", "names"),
    [("auto", ("a", "b")), ("cuda", ("a", "b")), ("cuda:1", ("b",)), ("cuda:7", ()), ("cpu", ()), ("mps", ())],
)
def test_what_a_recipe_computes_on(device: str, names: tuple[str, ...]) -> None:
    machine = Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False, gpus=(("a", 24 * GIB), ("b", 24 * GIB)))
    assert tuple(name for name, _ in used_by(device, machine).gpus) == names
