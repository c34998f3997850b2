"""A copy of a model's linear layers for sampling: LoRA adapters added in, weights packed for small products.

Unmerged, an adapter costs two more small products and two more passes over the activations in every linear layer, at
every token; and a product of few rows with a weight in its plain layout spends much of its time on rearranging the
weight. Sampling pays both thousands of times between two updates; the copy is made once after each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deedrl.policies.local.twin import can_pack, decoder_of, packed_product, packed_weight, twin


class SamplingModel:
    """Decoder and head of `model` for sampling. Everything but the linear layers is shared with the model.

    The model itself is never changed, so nothing has to be undone before an update. A layer whose adapter is more than
    plain LoRA on a plain linear layer is shared too, and runs as it is.
    """

    def __init__(self, model: Any) -> None:
        self._source = decoder_of(model)
        self._source_head = model.get_output_embeddings()
        self._decoder: Any = None
        self._head: Any = None

    def weights_changed(self) -> None:
        """The next call copies anew."""
        self._decoder = self._head = None

    def hidden(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        """Last hidden states [B, T, hidden] of ids [B, T] at `positions` [B, T]; attention is the layout's."""
        if self._decoder is None:
            self._copy()
        output = self._decoder(input_ids=ids, position_ids=positions, use_cache=False, layout=layout)
        last: Tensor = output.last_hidden_state
        return last

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, hidden], after `hidden` was called."""
        result: Tensor = self._head(hidden)
        return result

    @torch.no_grad()
    def _copy(self) -> None:
        self._decoder = twin(self._source, _packed).eval()
        self._head = _packed(self._source_head) if type(self._source_head) is nn.Linear else self._source_head


class _PackedLinear(nn.Module):
    """A linear layer whose weight lies as oneDNN's products read it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = packed_weight(weight)
        self._bias = bias

    def forward(self, inputs: Tensor) -> Tensor:
        return packed_product(inputs, self._weight, self._bias)


def _packed(module: Any) -> nn.Module:
    """The layer with its adapters added to its weight; packed where this build of torch can."""
    if type(module) is nn.Linear:
        weight, bias = module.weight.detach(), module.bias
    else:
        base = module.get_base_layer()
        total = base.weight.float()
        for adapter in module.active_adapters:
            total = total + module.get_delta_weight(adapter).float()
        weight, bias = total.to(base.weight.dtype), base.bias
    if can_pack(weight):
        return _PackedLinear(weight, None if bias is None else bias.detach())
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = bias
    return layer
