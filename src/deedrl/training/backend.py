"""Log-probabilities of action tokens, with the shared prefix computed once and logits formed only where they count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deedrl.policies.local.attention import attend_many, causal_own_mask, install
from deedrl.policies.local.engine import decoder_of
from deedrl.training.packing import Batch

LOGITS_CHUNK = 512
"""Action tokens whose logits exist at one time."""


class _PrefixLayout:
    """Keeps the prefix's keys and values with their graph, so that every row's gradient flows into them."""

    def __init__(self, tokens: int) -> None:
        self.prefix: dict[int, tuple[Tensor, Tensor]] = {}
        self._mask = causal_own_mask(torch.zeros(1, dtype=torch.long), tokens, tokens)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.prefix[layer] = (key, value)
        return attend_many(query, key, value, None, self._mask, scaling)


class _RowsLayout:
    """Rows attend to the prefix and causally to themselves; right padding is never seen by a real token."""

    def __init__(self, prefix: dict[int, tuple[Tensor, Tensor]], prefix_length: int, rows: int, tokens: int) -> None:
        self._prefix = prefix
        own = causal_own_mask(torch.zeros(1, dtype=torch.long), tokens, tokens)
        self._mask = torch.cat([own.new_ones(1, 1, tokens, prefix_length), own], dim=-1)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        return attend_many(query, key, value, self._prefix.get(layer), self._mask, scaling)


class LogprobModel(nn.Module):
    """A causal model seen as a function from a `Batch` to the log-probabilities [N] of its action tokens."""

    def __init__(self, model: Any, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature

    def forward(self, batch: Batch, with_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities [N] float32 under softmax(logits / temperature), and the entropies [N] (no gradient)."""
        install(self.model)
        hidden = self._hidden(batch)[batch.rows, batch.columns]
        head = self.model.get_output_embeddings()
        logprobs, entropies = [], []
        for start in range(0, len(hidden), LOGITS_CHUNK):
            part, targets = hidden[start : start + LOGITS_CHUNK], batch.targets[start : start + LOGITS_CHUNK]
            if torch.is_grad_enabled():
                values = checkpoint(_chunk_logprobs, head, part, targets, self._temperature, use_reentrant=False)
            else:
                values = _chunk_logprobs(head, part, targets, self._temperature)
            logprobs.append(values)
            if with_entropy:
                entropies.append(_chunk_entropy(head, part, self._temperature))
        return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None

    def _hidden(self, batch: Batch) -> Tensor:
        body = decoder_of(self.model)
        rows, tokens = batch.ids.shape
        prefix_length = batch.prefix_ids.numel()
        prefix: dict[int, tuple[Tensor, Tensor]] = {}
        if prefix_length:
            layout = _PrefixLayout(prefix_length)
            positions = torch.arange(prefix_length)[None]
            body(input_ids=batch.prefix_ids[None], position_ids=positions, use_cache=False, layout=layout)
            prefix = layout.prefix
        positions = (prefix_length + torch.arange(tokens))[None].expand(rows, -1)
        own = _RowsLayout(prefix, prefix_length, rows, tokens)
        output = body(input_ids=batch.ids, position_ids=positions, use_cache=False, layout=own)
        hidden: Tensor = output.last_hidden_state
        return hidden


def _chunk_logprobs(head: Any, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
    logits = head(hidden).float() / temperature
    chosen: Tensor = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen


@torch.no_grad()
def _chunk_entropy(head: Any, hidden: Tensor, temperature: float) -> Tensor:
    logprobs = (head(hidden).float() / temperature).log_softmax(-1)
    entropy: Tensor = -(logprobs.exp() * logprobs).sum(-1)
    return entropy


@contextmanager
def frozen_at(parameters: list[nn.Parameter], snapshot: list[Tensor]) -> Iterator[None]:
    """Inside the block the parameters hold `snapshot`: the reference policy, whatever it was trained from."""
    current = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for parameter, value in zip(parameters, snapshot, strict=True):
            parameter.copy_(value)
        try:
            yield
        finally:
            for parameter, value in zip(parameters, current, strict=True):
                parameter.copy_(value)
