"""Several processes that train one policy: who does which share, and how the shares become one whole.

Every process runs the same program on the same data and takes the same decisions. Two kinds of work are shared out:
groups of episodes, and micro-batches. What comes of them is brought together at once, so that everything between is
computed alike everywhere, from the same numbers. Loss weights are those of the whole update (`losses.sample_weights`),
so gradients are summed, never averaged. Only the first process writes (docs/decisions/0029).

Outside `joined` there is one process, and nothing here does anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from deedrl.errors import ConfigError, DeedRLError

if TYPE_CHECKING:
    from torch import Tensor, nn

Item = TypeVar("Item")
Shard = Literal["none", "optimiser", "weights"]
"""What is cut into one piece for each process: nothing; optimiser states; these, gradients and weights."""

REMEDY = "start it with: torchrun --nproc_per_node N -m deedrl …"
BUCKET = 2**22
"""Elements of gradients that are summed in one message."""
_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_SHARDING = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_MEGATRON_LM")


class PeerLost(DeedRLError):
    """Another process ended, or was silent for too long, while this one waited for it."""


@dataclass(frozen=True)
class _Place:
    """This process among the others."""

    rank: int = 0
    count: int = 1
    tensors: Any = None
    """The group that tensors travel in: updates may run on a thread beside sampling, which has the default group."""
    shard: Shard = "none"
    """What each process holds of its own pieces of the parameters only."""


_place = _Place()


def count() -> int:
    """How many processes there are."""
    return _place.count


def is_first() -> bool:
    """Whether this is the one that writes."""
    return _place.rank == 0


def shards_optimiser() -> bool:
    """Whether optimiser states are cut into one piece for each process."""
    return _place.shard != "none"


def shards_weights() -> bool:
    """Whether weights and gradients are cut as well."""
    return _place.shard == "weights"


def name(environ: Mapping[str, str] = os.environ) -> str:
    """``process 2 of 4``, as the launcher says; empty where there is one."""
    rank, size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    return f"process {int(rank) + 1} of {size}" if rank.isdigit() and size.isdigit() and int(size) > 1 else ""


@contextmanager
def joined(
    expected: int | None = None, environ: Mapping[str, str] = os.environ, *, shard: Shard = "none"
) -> Iterator[None]:
    """Inside the block this process is one of those that a launcher started, which meet here.

    `expected` is how many there have to be; None takes what the launcher says. Raises ConfigError where it says
    something else, or did not start them. With `shard` optimisers, or models too, that are made inside are cut.
    """
    global _place
    launched = launched_processes(environ)
    if expected is not None and launched != expected:
        raise ConfigError(f"expected {expected} processes, and the launcher started {launched}; {REMEDY}")
    if launched == 1:
        yield
        return
    import torch.distributed as dist
    from accelerate import PartialState

    from deedrl.policies.local.device import message_backend

    found = PartialState(cpu=True).num_processes
    if found != launched:
        raise ConfigError(
            f"expected {launched} processes, as the launcher says, and {found} found each other; {REMEDY}"
        )
    _place = _Place(dist.get_rank(), found, dist.new_group(backend=message_backend()), shard)
    try:
        yield
    finally:
        _place = _Place()
        dist.destroy_process_group()


def launched_processes(environ: Mapping[str, str]) -> int:
    """How many processes the launcher says there are.

    Raises ConfigError where it says that there are several and started one, or asks for sharded weights.
    """
    sizes = [int(environ[key]) for key in _SIZES if environ.get(key, "").isdigit()]
    # `accelerate launch --cpu --num_processes 2` starts one process, and only this trace of the other one is left.
    if not sizes and "MASTER_PORT" in environ and "ACCELERATE_USE_CPU" in environ:
        raise ConfigError(
            "accelerate was asked for several processes and started one, which would train alone; " + REMEDY
        )
    if sharding := [key for key in _SHARDING if environ.get(key, "").lower() in ("true", "1")]:
        raise ConfigError(
            f"{sharding[0]} asks for weights or optimiser states in shards, which the launcher does not decide here: "
            "set processes.shard=optimiser in the recipe for optimiser states in shards (ZeRO stage 1), or "
            f"processes.shard=weights for weights and gradients too (ZeRO stage 3, FSDP); {REMEDY}"
        )
    return sizes[0] if sizes else 1


# ---------------------------------------------------------------- sharing out


def share(items: Sequence[Item]) -> Sequence[Item]:
    """What this process is to do of `items`: every `count`-th of them."""
    return items[_place.rank :: _place.count]


def rounds(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """This process's `share` of `items`, for passes of a model, and whether each is its own.

    Where weights are in shards all processes make equally many passes, so that some get one more, to no effect.
    """
    own = share(items)
    for item in own:
        yield item, True
    if shards_weights() and len(own) * _place.count < len(items):
        yield items[0], False


def wait() -> None:
    """Returns when all processes are here."""
    if _place.count > 1:
        import torch.distributed as dist

        _together(dist.barrier)


def from_first(make: Callable[[], Item]) -> Item:
    """What `make` returns in the first process, in all of them; the others do not call it."""
    if _place.count == 1:
        return make()
    import torch.distributed as dist

    held: list[Any] = [make() if is_first() else None]
    _together(lambda: dist.broadcast_object_list(held, src=0))
    found: Item = held[0]
    return found


def everyones(own: Sequence[Item]) -> list[Item]:
    """The items of all processes, one process after the other."""
    if _place.count == 1:
        return list(own)
    import torch.distributed as dist

    held: list[Any] = [None] * _place.count
    _together(lambda: dist.all_gather_object(held, list(own)))
    return [item for items in held for item in items]


def summed(values: Sequence[float]) -> list[float]:
    """The sums over processes of as many numbers as each of them gives."""
    if _place.count == 1:
        return list(values)
    import torch

    total = torch.tensor(values, dtype=torch.float64)
    _sum(total)
    sums: list[float] = total.tolist()
    return sums


def whole(own: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """The values of all items, of `sizes`, from those of each process's `share` of them; float32 vectors."""
    if _place.count == 1:
        return list(own)
    import torch

    flat = torch.zeros(sum(sizes))
    parts = list(torch.split(flat, list(sizes)))
    for part, values in zip(share(parts), own, strict=True):
        part.copy_(values)
    _sum(flat)
    return parts


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Adds up what each process has as gradients of `parameters`, in all of them.

    A parameter that has a gradient nowhere gets none; one that has it somewhere, has it everywhere.
    """
    if _place.count == 1:
        return
    import torch

    present = torch.tensor([float(parameter.grad is not None) for parameter in parameters])
    _sum(present)
    gradients = []
    for parameter, held in zip(parameters, present.tolist(), strict=True):
        if held:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(parameter.grad)
    for bucket in _buckets(gradients):
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        _sum(flat)
        for gradient, part in zip(bucket, torch.split(flat, [g.numel() for g in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


def piece(tensor: Tensor) -> Tensor:
    """The elements of `tensor` (contiguous) that are this process's, flat, in the same memory; none of a tiny one."""
    total = tensor.numel()
    return tensor.view(-1)[total * _place.rank // _place.count : total * (_place.rank + 1) // _place.count]


def share_pieces(tensors: Sequence[Tensor]) -> None:
    """Fills each of `tensors` with every process's own `piece` of it, in all processes, bit for bit."""
    import torch

    for bucket in _buckets(tensors):
        sizes = [tensor.numel() for tensor in bucket]
        flat = bucket[0].new_zeros(sum(sizes))  # what each process has is added to the zeros of the others
        parts = torch.split(flat, sizes)
        for tensor, part in zip(bucket, parts, strict=True):
            piece(part).copy_(piece(tensor))
        _sum(flat)
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def padded_piece(tensor: Tensor) -> Tensor:
    """A copy of this process's elements of `tensor`, flat: equally many in all processes, filled up with zeros."""
    import torch

    size = -(-tensor.numel() // _place.count)
    own = tensor.reshape(-1)[size * _place.rank : size * (_place.rank + 1)]
    return torch.nn.functional.pad(own, (0, size - own.numel())).clone()


def piece_inside(whole: Tensor, size: int) -> Tensor:
    """This process's `padded_piece`, of `size` elements, in the memory of a tensor that is one of `gathered`."""
    return whole.as_strided((size,), (1,), size * _place.rank)


def gathered(pieces: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The whole tensors, of `shapes`, that everyone's `pieces` (`padded_piece`) make up; each in memory of its own,
    with the pieces' zeros after it."""
    import torch
    import torch.distributed as dist

    wholes: dict[int, Tensor] = {}
    for places in _of_one_type(pieces):
        own = torch.cat([pieces[place] for place in places])
        all_pieces = own.new_empty(_place.count, own.numel())
        _together(partial(dist.all_gather_into_tensor, all_pieces.view(-1), own, group=_place.tensors))
        for place, part in zip(
            places, torch.split(all_pieces, [pieces[p].numel() for p in places], dim=1), strict=True
        ):
            whole = part.clone(memory_format=torch.contiguous_format).view(-1)
            wholes[place] = whole[: math.prod(shapes[place])].view(shapes[place])
    return [wholes[place] for place in range(len(pieces))]


def summed_pieces(tensors: Sequence[Tensor]) -> list[Tensor]:
    """This process's `padded_piece` of the sum over processes of each of `tensors`."""
    import torch
    import torch.distributed as dist

    sums: dict[int, Tensor] = {}
    for places in _of_one_type(tensors):
        sizes = [-(-tensors[place].numel() // _place.count) for place in places]
        all_pieces = tensors[places[0]].new_zeros(_place.count, sum(sizes))
        for place, part in zip(places, torch.split(all_pieces, sizes, dim=1), strict=True):
            flat = tensors[place].reshape(-1)
            part.copy_(torch.nn.functional.pad(flat, (0, part.numel() - flat.numel())).view_as(part))
        own = all_pieces.new_empty(sum(sizes))
        _together(partial(dist.reduce_scatter_tensor, own, all_pieces.view(-1), group=_place.tensors))
        sums.update(zip(places, torch.split(own, sizes), strict=True))
    return [sums[place] for place in range(len(tensors))]


def _of_one_type(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places in `tensors` of those of one type of number: they travel together."""
    kinds: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        kinds.setdefault(tensor.dtype, []).append(place)
    return list(kinds.values())


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(held.numel() for held in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _sum(tensor: Tensor) -> None:
    """In place; tensors are of one size in all processes."""
    import torch.distributed as dist

    if tensor.numel():
        _together(lambda: dist.all_reduce(tensor, group=_place.tensors))


def _together(exchange: Callable[[], object]) -> None:
    try:
        exchange()
    except RuntimeError as error:  # what gloo raises when a connection closes or is silent
        raise PeerLost(
            "another process ended or was silent for too long, so this one stops too; what it said comes before or "
            f"after this message ({str(error).splitlines()[0][:200]})"
        ) from error
