"""What launchers say, and what one process among several does of it."""

from __future__ import annotations

import pytest
import torch

from deedrl.cli.main import main
from deedrl.errors import ConfigError
from deedrl.training import processes


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "1"}, 1),
        ({"WORLD_SIZE": "2", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"}, 2),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        # Containers and schedulers set an address without starting anything.
        ({"MASTER_PORT": "29500"}, 1),
        ({"ACCELERATE_USE_CPU": "true"}, 1),
    ],
)
def test_launchers_say_how_many_processes_there_are(environ: dict[str, str], count: int) -> None:
    assert processes.launched_processes(environ) == count


def test_a_launcher_that_started_one_of_several_is_refused() -> None:
    """What `accelerate launch --cpu --num_processes 2` leaves."""
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "ACCELERATE_USE_CPU": "True"}
    with pytest.raises(ConfigError, match="asked for several processes and started one"):
        processes.launched_processes(environ)


@pytest.mark.parametrize("key", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_sharded_weights_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} asks for .* in shards.*shard=optimiser in the recipe.*shard=weights"):
        processes.launched_processes({"WORLD_SIZE": "2", key: "true"})


def test_another_number_of_processes_than_was_asked_for_is_refused(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["run", "recipes/quickstart.yaml", "--out", f"{tmp_path}/run", "--processes", "2"])
    assert end.value.code == 2
    assert "expected 2 processes, and the launcher started 1; start it with: torchrun" in capsys.readouterr().err


def test_one_process_has_all_of_it() -> None:
    own = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    assert processes.is_first()
    assert list(processes.share([1, 2, 3])) == [1, 2, 3]
    assert processes.everyones("ab") == ["a", "b"]
    assert processes.from_first(lambda: 7) == 7
    assert processes.summed([0.1]) == [0.1]
    assert processes.whole(own, [2, 1]) == own
    with processes.joined(1, {}):
        assert list(processes.share([1, 2, 3])) == [1, 2, 3]


class Exchange:
    """Two processes in one: whatever is summed is added to what the other one had at this place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rank: int, others: list[torch.Tensor]) -> None:
        self._others = iter(others)
        monkeypatch.setattr(processes, "_place", processes._Place(rank, 2))
        monkeypatch.setattr(processes, "_sum", self._sum)

    def _sum(self, tensor: torch.Tensor) -> None:
        tensor += next(self._others)


def test_values_of_all_items_come_from_each_process_share(monkeypatch: pytest.MonkeyPatch) -> None:
    Exchange(monkeypatch, 1, [torch.tensor([1.0, 2.0, 0.0, 4.0, 5.0, 6.0])])
    found = processes.whole([torch.tensor([3.0])], [2, 1, 3])
    assert [part.tolist() for part in found] == [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]


@pytest.mark.parametrize("bucket", [1, 3, 100])
def test_gradients_are_summed_and_absent_everywhere_only_if_nobody_has_one(
    monkeypatch: pytest.MonkeyPatch, bucket: int
) -> None:
    monkeypatch.setattr(processes, "BUCKET", bucket)
    here, there, nowhere = (torch.nn.Parameter(torch.zeros(size)) for size in ((2, 1), (2,), (3,)))
    here.grad = torch.tensor([[1.0], [2.0]])
    sums = [torch.tensor([10.0, 20.0]), torch.tensor([5.0, 6.0])]
    others = sums if bucket < 4 else [torch.cat(sums)]
    Exchange(monkeypatch, 0, [torch.tensor([1.0, 1.0, 0.0]), *others])
    processes.sum_gradients([here, there, nowhere])
    assert here.grad.tolist() == [[11.0], [22.0]]
    assert there.grad is not None
    assert there.grad.tolist() == [5.0, 6.0]
    assert nowhere.grad is None


def test_a_message_says_which_process_it_is_of() -> None:
    assert processes.name({"RANK": "1", "WORLD_SIZE": "4"}) == "process 2 of 4"
    assert processes.name({"RANK": "0", "WORLD_SIZE": "1"}) == ""
    assert processes.name({}) == ""
