"""A pretended accelerator: real numbers, computed on the processor, in tensors that say they are on `cuda:0`.

It lets a whole run go its way over an accelerator where there is none. What it is strict about is what CUDA is strict
about: an operation takes tensors of one device, but for numbers (no dimension), copies, and indices on the processor.
It knows nothing of kernels: what they compute on a real device, and how fast, is for `make test-gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from deedrl.pipeline import session, stages

DEVICE = torch.device("cuda", 0)
_aten = torch.ops.aten
_ACROSS = {_aten.copy_.default, _aten._to_copy.default}
_BY_INDEX = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
}


class OnDevice(Tensor):
    """`inner`, said to be on the device. C++ sees a tensor on the processor, and Python one on `DEVICE`."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.inner.detach()})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        if id(self) not in memo:
            memo[id(self)] = OnDevice(self.inner.clone()).requires_grad_(self.requires_grad)
        found: OnDevice = memo[id(self)]
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.tolist, Tensor.data_ptr, Tensor.untyped_storage):
            return func(args[0].inner.detach(), *args[1:])
        if func is Tensor.numpy:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check_devices(func, args, kwargs)
        inner = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
        # What an operation changes in place it returns, and it is to be the same object again.
        given = {id(_inner(arg)): arg for arg in tree_flatten((args, kwargs))[0] if isinstance(arg, Tensor)}
        return tree_map(lambda one: given.get(id(one)) if id(one) in given else _outer(one), inner)


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, OnDevice) else value


def _outer(value: Any) -> Any:
    return OnDevice(value) if isinstance(value, Tensor) and not isinstance(value, OnDevice) else value


def _check_devices(func: Any, args: Any, kwargs: Any) -> None:
    if func in _ACROSS:
        return
    if func in _BY_INDEX:
        if not isinstance(args[0], OnDevice) and any(isinstance(a, OnDevice) for a in tree_flatten(args[1])[0]):
            raise RuntimeError(f"{func}: indices should be either on cpu or on the same device as the indexed tensor")
        args = (args[0], *args[2:])
    tensors = [arg for arg in tree_flatten((args, kwargs))[0] if isinstance(arg, Tensor)]
    kinds = {isinstance(tensor, OnDevice) for tensor in tensors if tensor.dim()}
    numbers_there = any(isinstance(tensor, OnDevice) and not tensor.dim() for tensor in tensors)
    if len(kinds) > 1 or (kinds == {False} and numbers_there):
        raise RuntimeError(f"{func}: expected all tensors on the same device, found cuda:0 and cpu")


class _ToDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return OnDevice(value.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        found: Tensor = gradient.inner if isinstance(gradient, OnDevice) else gradient
        return found


class _ToProcessor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: OnDevice) -> Tensor:
        return value.inner.detach().clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient if isinstance(gradient, OnDevice) else OnDevice(gradient)


def moved(value: Tensor, to: torch.device | None) -> Tensor:
    """`value` on the device named, differentiably; itself where it is there, or none is named."""
    if to is None or to.type == value.device.type:
        return value
    crossing: Any = _ToDevice if to.type == DEVICE.type else _ToProcessor
    found: Tensor = crossing.apply(value)
    return found


class _Calls(TorchFunctionMode):
    """Sends what is to be made on, or moved to, the device there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.cpu, Tensor.cuda):
            return moved(args[0], torch.device("cpu") if func is Tensor.cpu else DEVICE)
        if func is Tensor.to:
            to, args, kwargs = _target(args, kwargs)
            found = moved(args[0], to)
            copy = kwargs.get("copy", False) and found is args[0]
            return func(found, *args[1:], **kwargs) if args[1:] or kwargs.keys() - {"copy"} or copy else found
        if kwargs.get("device") is None or torch.device(kwargs["device"]).type != DEVICE.type:
            return func(*args, **kwargs)
        if any(isinstance(arg, OnDevice) for arg in args):
            kwargs.pop("device")
            return func(*args, **kwargs)
        with torch.no_grad():
            return OnDevice(func(*args, **kwargs | {"device": "cpu"}))


def _target(args: Any, kwargs: Any) -> tuple[torch.device | None, Any, Any]:
    """What device the arguments of `Tensor.to` name, and the arguments without it."""
    named = kwargs.pop("device", None)
    rest = [args[0]]
    for arg in args[1:]:
        if isinstance(arg, (str, torch.device)):
            named = arg
        elif isinstance(arg, Tensor):
            named = arg.device
            kwargs["dtype"] = arg.dtype
        elif arg is not None:
            rest.append(arg)
    return None if named is None else torch.device(named), rest, kwargs


def put_on_device(model: nn.Module) -> nn.Module:
    """Moves parameters and buffers."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, OnDevice):
                module._parameters[name] = nn.Parameter(OnDevice(parameter.detach()), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and not isinstance(buffer, OnDevice):
                module._buffers[name] = OnDevice(buffer)
    return model


@contextmanager
def pretended_device(patch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Inside the block there is one accelerator, `cuda:0`."""
    import peft.peft_model
    import transformers

    load, weights = transformers.AutoModelForCausalLM.from_pretrained, peft.peft_model.load_peft_weights

    def from_pretrained(*args: Any, device_map: Any = None, **options: Any) -> Any:
        model, *found = load(*args, **options)
        if device_map is not None:
            assert {torch.device(one) for one in device_map.values()} == {DEVICE}
            put_on_device(model)
        return (model, *found)

    def load_peft_weights(folder: str, device: str, **options: Any) -> Any:
        loaded = weights(folder, device="cpu", **options)
        return {name: moved(value, torch.device(device)) for name, value in loaded.items()}

    move = nn.Module.to

    def to(module: nn.Module, *args: Any, **options: Any) -> nn.Module:
        device, rest, options = _target((module, *args), options)
        if device is not None and device.type == DEVICE.type:
            put_on_device(module)
        return move(*rest, **options) if rest[1:] or options else module

    patched: list[tuple[Any, str, Callable[..., Any]]] = [
        (transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained),
        (peft.peft_model, "load_peft_weights", load_peft_weights),
        (nn.Module, "to", to),
        (session, "chosen_device", lambda name: DEVICE),
        (stages, "chosen_device", lambda name: DEVICE),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: False),
        (torch.cuda, "get_rng_state", lambda device: torch.get_rng_state()),
        (torch.cuda, "set_rng_state", lambda state, device: torch.set_rng_state(state)),
    ]
    for owner, name, value in patched:
        patch.setattr(owner, name, value)
    with _Calls():
        yield DEVICE
