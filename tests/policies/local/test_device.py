"""Which device a process computes on."""

from __future__ import annotations

import pytest
import torch

from deedrl.errors import ConfigError
from deedrl.policies.local.attention import attend_few
from deedrl.policies.local.device import (
    chosen_device,
    device_peak_gb,
    message_backend,
    multiplies_bf16,
    own_random_streams,
)


@pytest.fixture
def two_cards(monkeypatch):
    """Torch as it answers where it sees two CUDA devices; returns the indices that were made current."""
    current: list[int] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    return current


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_without_an_accelerator_auto_is_the_processor(no_card):
    assert chosen_device("auto", {}) == torch.device("cpu")
    assert chosen_device("cpu", {"LOCAL_RANK": "1"}) == torch.device("cpu")
    assert message_backend() is None


@pytest.mark.parametrize(
    ("name", "environ", "index"),
    [
        ("auto", {}, 0),
        ("cuda", {}, 0),
        ("cuda:1", {}, 1),
        ("cuda:1", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 1),
        ("auto", {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 1),
        ("cuda", {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 1),
    ],
)
def test_each_process_has_the_device_of_its_number(two_cards, name, environ, index):
    assert chosen_device(name, environ) == torch.device("cuda", index)
    assert two_cards == [index]


def test_the_processor_can_be_chosen_beside_an_accelerator(two_cards):
    assert chosen_device("cpu", {}) == torch.device("cpu")
    assert two_cards == []


@pytest.mark.parametrize(
    ("name", "environ", "message"),
    [
        ("cuda:2", {}, "wants cuda:2, and torch sees 2"),
        ("auto", {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}, "process 3 on this machine wants cuda:2"),
        ("cuda:0", {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "2 processes were started"),
        ("gpu", {}, "got 'gpu'"),
        ("meta", {}, "torch sees no 'meta' here"),
    ],
)
def test_what_is_not_there_is_refused(two_cards, name, environ, message):
    with pytest.raises(ConfigError, match=message):
        chosen_device(name, environ)


def test_an_accelerator_that_torch_does_not_see_is_refused(no_card):
    with pytest.raises(ConfigError, match="torch sees no 'cuda' here"):
        chosen_device("cuda", {})


def test_a_mac_keeps_to_its_processor_unless_told(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    assert chosen_device("auto", {}) == torch.device("cpu")
    assert message_backend() is None


def test_messages_of_devices_go_their_own_way_and_others_over_gloo(two_cards):
    assert message_backend() == "cpu:gloo,cuda:nccl"


def test_what_a_block_draws_leaves_no_trace():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with own_random_streams(torch.device("cpu")):
        torch.manual_seed(7)
        torch.rand(5)
    assert torch.equal(torch.rand(3), expected)


def test_a_processor_has_no_memory_of_its_own():
    assert device_peak_gb(torch.device("cpu")) is None
    assert isinstance(multiplies_bf16(torch.device("cpu")), bool)


def test_scores_of_attention_are_float32_whatever_surrounds_them():
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (8 * torch.randn(2, 3, 5, 16, generator=generator) for _ in range(3))
    query, keys, values = (tensor.to(torch.bfloat16) for tensor in (query, keys, values))
    bias = torch.zeros(1)
    alone = attend_few(query, keys, values, bias, 0.25)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = attend_few(query, keys, values, bias, 0.25)
    expected = (0.25 * query.double() @ keys.double().transpose(-1, -2)).logsumexp(-1, keepdim=True)
    for part in (alone, inside):
        torch.testing.assert_close(part.logsum.double(), expected, rtol=0, atol=1e-4)
