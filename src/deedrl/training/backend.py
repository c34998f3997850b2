"""Log-probabilities of action tokens: what rows have in common computed once, logits formed only where they count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deedrl.policies.local.attention import install
from deedrl.policies.local.device import adapter_precision, own_random_streams
from deedrl.training.chosen_logprob import chosen_logprobs
from deedrl.training.fused import TrainingDecoder
from deedrl.training.layout import Earlier, KeysValues, TreeLayout
from deedrl.training.packing import Batch
from deedrl.training.sharding import sharded

LOGITS_CHUNK = 512
"""Action tokens whose logits exist at one time."""


class SharedPrefix:
    """Keys and values of the tokens that every row of an update begins with, computed once for all micro-batches.

    Micro-batches add their gradients up at these keys and values; `backward` then takes the sum through the prefix,
    which gives the same gradient as computing the prefix again in every micro-batch.
    """

    def __init__(self, ids: Tensor, computed: KeysValues) -> None:
        self.ids = ids
        self._computed = [tensor for layer in computed for tensor in layer]
        # Without an adapter on its key projection the first layer's keys have no gradient.
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in self._computed]
        self.layers: KeysValues = list(zip(leaves[::2], leaves[1::2], strict=True))
        self._leaves = leaves

    def backward(self) -> None:
        """Carries the micro-batches' gradients into the parameters; once, after the last of them."""
        pairs = [(c, leaf.grad) for c, leaf in zip(self._computed, self._leaves, strict=True) if leaf.grad is not None]
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])


class LogprobModel(nn.Module):
    """A causal model seen as a function from a `Batch` to the log-probabilities [N] of its action tokens.

    Batches and what is returned are on the processor, wherever the model is: losses of a few thousand numbers are
    computed there, and only this class and `headed.ValueHead` know of the model's device.
    """

    def __init__(self, model: Any, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._decoder = TrainingDecoder(model)
        self._shards = sharded(model)

    def forward(
        self, batch: Batch, prefix: SharedPrefix | None = None, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities [N] float32 under softmax(logits / temperature), and the entropies [N] (no gradient).

        `prefix` is as in `states`.
        """
        return self.logprobs(self.states(batch, prefix)[batch.slots], batch, with_entropy)

    def states(self, batch: Batch, prefix: SharedPrefix | None = None) -> Tensor:
        """The last hidden states of all slots of the batch [slots, hidden], on the model's device.

        `prefix` is `shared_prefix` of this very batch's prefix; None computes it here, as a part of the graph.
        """
        with self._passes():
            if prefix is None:
                layers = self._keys_values(batch.prefix_ids)
            elif prefix.ids is batch.prefix_ids:
                layers = prefix.layers
            else:
                raise ValueError("expected the shared prefix of the batch's own update, got that of another")
            return self._hidden(batch, layers)

    def logprobs(self, hidden: Tensor, batch: Batch, with_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """As `forward`, from the hidden states at the batch's slots [M, hidden]."""
        head = self.model.get_output_embeddings()
        with self._passes(head):
            logprobs, entropies = [], []
            all_targets = batch.targets.to(hidden.device)
            for start in range(0, len(hidden), LOGITS_CHUNK):
                part, targets = hidden[start : start + LOGITS_CHUNK], all_targets[start : start + LOGITS_CHUNK]
                logprobs.append(self._chunk_logprobs(head, part, targets))
                if with_entropy:
                    entropies.append(_chunk_entropy(head, part, self._temperature))
        spread = batch.predictions
        return torch.cat(logprobs).cpu()[spread], torch.cat(entropies).cpu()[spread] if with_entropy else None

    def rest(self) -> None:
        """Gives up what was made of the weights for passes; a step is about to change them."""
        self._decoder.rest()
        if self._shards is not None:
            self._shards.rest()

    def shared_prefix(self, ids: Tensor) -> SharedPrefix:
        """The prefix `ids` [P] of an update's batches (`Batch.prefix_ids`), for `forward`."""
        with self._passes():
            return SharedPrefix(ids, self._keys_values(ids))

    @contextmanager
    def _passes(self, head: nn.Module | None = None) -> Iterator[None]:
        """Where the model, or its output `head` by itself, computes."""
        with ExitStack() as stack:
            stack.enter_context(adapter_precision(self.model))
            if self._shards is not None:
                stack.enter_context(self._shards.passes())
                if head is not None:
                    stack.enter_context(self._shards.whole(head))
            yield

    def _hidden(self, batch: Batch, prefix: KeysValues) -> Tensor:
        """Last hidden states [slots, hidden] of shared beginnings and of the rows' own tokens."""
        earlier = [Earlier(prefix)] if prefix else []
        starts = torch.tensor(batch.prefix_ids.numel())
        if not batch.shared_ids.numel():
            of_others = self._pass_of_others(batch, starts, earlier)
            own, _ = self._run(batch.ids, starts.expand(len(batch.ids)), earlier)
            return (own if of_others is None else own + of_others).flatten(0, 1)
        shared, layers = self._run(batch.shared_ids, starts.expand(len(batch.shared_ids)), earlier)
        earlier = [*earlier, Earlier(layers, batch.shared_of, batch.shared_before)]
        own, _ = self._run(batch.ids, starts + batch.shared_before, earlier)
        return torch.cat([shared.flatten(0, 1), own.flatten(0, 1)])

    def _pass_of_others(self, batch: Batch, starts: Tensor, earlier: Sequence[Earlier]) -> Tensor | None:
        """0, by a pass of one token where weights are in shards and others may have a pass over shared beginnings."""
        if self._shards is None or not batch.siblings_share:
            return None
        with own_random_streams(self.model.device):  # dropout of the batch itself draws what it draws without this
            hidden, _ = self._run(torch.zeros(1, 1, dtype=torch.long), starts[None], earlier)
        return 0.0 * hidden.sum()

    def _keys_values(self, ids: Tensor) -> KeysValues:
        """Of ids [P], at the beginning of everything; none where P is 0."""
        return self._run(ids[None], torch.zeros(1, dtype=torch.long), [])[1] if ids.numel() else []

    def _run(self, ids: Tensor, starts: Tensor, earlier: Sequence[Earlier]) -> tuple[Tensor, KeysValues]:
        """One pass over ids [B, T] that begin at positions `starts` [B]: hidden states, and the new keys and values."""
        install(self.model)
        rows, tokens = ids.shape
        layout = TreeLayout(earlier, rows, tokens, self.model)
        positions = starts[:, None] + torch.arange(tokens)[None]
        ids, positions = ids.to(self.model.device), positions.to(self.model.device)
        return self._decoder.hidden(ids, positions, layout), layout.kept

    def _chunk_logprobs(self, head: Any, hidden: Tensor, targets: Tensor) -> Tensor:
        if type(head) is nn.Linear and head.bias is None:
            return chosen_logprobs(hidden, head.weight, targets, self._temperature)
        if torch.is_grad_enabled():
            values: Tensor = checkpoint(_plain_logprobs, head, hidden, targets, self._temperature, use_reentrant=False)
            return values
        return _plain_logprobs(head, hidden, targets, self._temperature)


# ---------------------------------------------------------------- logits


def _plain_logprobs(head: Any, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
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
