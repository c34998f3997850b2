"""Weights in shards: each process holds a piece of every large parameter, and makes a layer whole while it computes.

Stage 3 of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054). In an update a layer's weights are whole during its forward
pass, and again while its gradients are computed; what autograd would keep of them is put down as a note and read from
newly gathered weights. A gradient is summed over processes layer by layer, and each process keeps its piece of the sum.
Sampling needs all weights at once, for its passes are no two processes' the same: `ShardedWeights.gather`.

Gathering and summing need all processes, in the same order. So all make equally many passes (`processes.rounds`) of the
same form (`Batch.siblings_share`); the rest follows from autograd's order, which is that of the passes backwards
(docs/decisions/0041).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from deedrl.errors import ModelError
from deedrl.policies.local.merged import decoder_of
from deedrl.training import processes

_NAME = "weights_in_shards"


class Piece(nn.Parameter):
    """What this process holds of a parameter: as many elements of it as each other process, flat; zeros at its end."""

    whole_shape: torch.Size

    @classmethod
    def of(cls, parameter: nn.Parameter) -> Piece:
        piece = cls(processes.padded_piece(parameter.detach()), requires_grad=parameter.requires_grad)
        piece.whole_shape = parameter.shape
        return piece


def whole_value(value: Tensor, parameter: Tensor) -> Tensor:
    """`value`, which is as `parameter` is, of the whole parameter; on the processor where that is in pieces.

    To be called in all processes alike.
    """
    if not isinstance(parameter, Piece):
        return value
    # They meet in main memory: a device may have no room for whole moments.
    [whole] = processes.gathered([value.detach().cpu()], [parameter.whole_shape])
    return whole


def own_value(whole: Tensor, parameter: Tensor) -> Tensor:
    """What this process holds of a `whole_value`."""
    return processes.padded_piece(whole) if isinstance(parameter, Piece) else whole


def shard_weights(model: Any) -> None:
    """Cuts the weights of a causal model into a piece for each process: all of them, or those below its adapter.

    What lies outside its layers, embeddings and head stays whole (the last norm), and so does the adapter. Raises
    ModelError where the model has another form.
    """
    setattr(decoder_of(model), _NAME, ShardedWeights(model))


def sharded(model: Any) -> ShardedWeights | None:
    """The weights of `model` if they are in shards."""
    found: ShardedWeights | None = getattr(decoder_of(model), _NAME, None)
    return found


def gather(model: Any) -> None:
    """Makes the weights of `model` whole, if they are in shards; to be called in all processes alike."""
    if (weights := sharded(model)) is not None:
        weights.gather()


def release(model: Any) -> None:
    """Gives whole weights of `model` up, if they are in shards."""
    if (weights := sharded(model)) is not None:
        weights.release()


def trained_parameters(model: Any) -> dict[str, nn.Parameter]:
    """What is trained of `model`, by name; pieces where its weights are in shards."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    weights = sharded(model)
    return named if weights is None else {name: weights.held(parameter) for name, parameter in named.items()}


class _Unit(NamedTuple):
    """Parameters that are whole at the same time, with the places in modules where they are found."""

    places: list[tuple[nn.Module, str, nn.Parameter]]
    pieces: list[Piece]

    def whole(self) -> tuple[Tensor, ...]:
        """Their values; differentiable in the pieces."""
        values: tuple[Tensor, ...] = _Whole.apply(*self.pieces) if self.pieces else ()  # type: ignore[no-untyped-call]
        return values


class _Note(NamedTuple):
    """In place of what autograd would have kept: a view of the whole weight number `place` of `unit`."""

    unit: _Unit
    place: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class ShardedWeights:
    """The weights of one model in shards, which is how they are at first."""

    def __init__(self, model: Any) -> None:
        decoder, head = decoder_of(model), model.get_output_embeddings()
        layers = list(getattr(decoder, "layers", []))
        if not layers or type(head) is not nn.Linear or head.bias is not None:
            raise ModelError(
                "expected a decoder with a list of layers and a linear output head without bias, to cut its weights "
                f"layer by layer, got {type(decoder).__name__} and {type(head).__name__}; set processes.shard to "
                "optimiser or none"
            )
        self._all_trained: bool = all(parameter.requires_grad for parameter in model.parameters())
        self._pieces: dict[int, Piece] = {}
        modules = [decoder.get_input_embeddings(), *layers, head]
        self._units: dict[int, _Unit] = {id(module): self._cut(module) for module in modules}
        self._whole: bool = True
        """All weights are there, for sampling."""
        self._present: dict[int, tuple[_Unit, int]] = {}
        """Which weight begins at an address in memory, of those that are whole for a forward pass."""
        self._again: tuple[_Unit, tuple[Tensor, ...]] | None = None
        """The unit through which gradients were computed last."""
        for module in modules[:-1]:  # the head is not called but read
            self._follow(module)
        self.release()

    def __deepcopy__(self, memo: Any) -> ShardedWeights:
        """A twin of the decoder, as sampling has one, has the decoder's own weights."""
        return self

    def held(self, parameter: nn.Parameter) -> nn.Parameter:
        """What this process holds of a parameter of the model: its piece, or all of it."""
        return self._pieces.get(id(parameter), parameter)

    def gather(self) -> None:
        """Makes all weights whole, until `release`; to be called in all processes alike."""
        if self._whole:
            return
        with torch.no_grad():
            for unit in self._units.values():
                if all(parameter.numel() for _, _, parameter in unit.places):
                    continue  # tied to one that is whole
                for (_, _, parameter), piece, value in zip(unit.places, unit.pieces, unit.whole(), strict=True):
                    parameter.data = value
                    piece.data = processes.piece_inside(value, piece.numel())  # nothing is held twice
        self._whole = True

    def release(self) -> None:
        """Gives whole weights up; what the pieces are now is what counts."""
        self._again = None
        if self._whole:
            for unit in self._units.values():
                for (_, _, parameter), piece in zip(unit.places, unit.pieces, strict=True):
                    piece.data = piece.data.clone()
                    parameter.data = parameter.data.new_empty(0)
        self._whole = False

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Inside the block passes of the model gather its weights layer by layer, and nothing whole is kept."""
        self.release()
        with saved_tensors_hooks(self._noted, self._read):
            yield

    @contextmanager
    def whole(self, module: nn.Module) -> Iterator[None]:
        """Inside the block the weights of the output head, of a layer or of the embeddings are whole."""
        self._enter(self._units[id(module)])
        try:
            yield
        finally:
            self._leave(self._units[id(module)])

    def rest(self) -> None:
        """Gives up what the last backward pass left whole; a step is about to change it."""
        self._again = None

    # ------------------------------------------------------------ units

    def _cut(self, module: nn.Module) -> _Unit:
        """The unit of a module, each of whose parameters gets a piece; weights that are tied have one together."""
        places = [
            (part, name, parameter)
            for part in module.modules()
            for name, parameter in part.named_parameters(recurse=False)
            if parameter.requires_grad == self._all_trained
        ]
        for _, _, parameter in places:
            if id(parameter) not in self._pieces:
                self._pieces[id(parameter)] = Piece.of(parameter)
        return _Unit(places, [self._pieces[id(parameter)] for _, _, parameter in places])

    def _follow(self, module: nn.Module) -> None:
        """Makes the module's weights whole while it is called."""
        unit = self._units[id(module)]

        # Functions, for a twin of the module would copy the object of a method.
        def enter(*_: Any) -> None:
            self._enter(unit)

        def leave(*_: Any) -> None:
            self._leave(unit)

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)

    def _enter(self, unit: _Unit) -> None:
        if self._whole:
            return
        for index, ((part, name, _), value) in enumerate(zip(unit.places, unit.whole(), strict=True)):
            part._parameters[name] = value  # type: ignore[assignment]  # no Parameter can be a result
            self._present[value.untyped_storage().data_ptr()] = unit, index

    def _leave(self, unit: _Unit) -> None:
        for part, name, parameter in unit.places:
            part._parameters[name] = parameter
        self._present.clear()

    # ------------------------------------------------------------ what autograd keeps

    def _noted(self, kept: Tensor) -> Tensor | _Note:
        found = self._present.get(kept.untyped_storage().data_ptr())
        if found is None:
            return kept
        return _Note(*found, kept.size(), kept.stride(), int(kept.storage_offset()))

    def _read(self, kept: Tensor | _Note) -> Tensor:
        if not isinstance(kept, _Note):
            return kept
        if self._again is None or self._again[0] is not kept.unit:
            self._again = None  # before the next is made: one at a time
            with torch.no_grad():
                self._again = kept.unit, kept.unit.whole()
        return self._again[1][kept.place].as_strided(kept.size, kept.stride, kept.offset)


class _Whole(torch.autograd.Function):
    """Pieces to whole parameters; gradients to each process's piece of their sum over processes."""

    @staticmethod
    def forward(ctx: Any, *pieces: Piece) -> tuple[Tensor, ...]:
        return tuple(processes.gathered(pieces, [piece.whole_shape for piece in pieces]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(processes.summed_pieces(gradients))
