"""Attention over a shared prefix and each row's own tokens, plugged into a model's own modules.

Rows of a batch that begin with the same tokens (system prompt, tools) attend to keys and values that exist once.
transformers lets a model's attention be swapped by name; ours hands query, key and value to the `AttentionLayout`
passed to ``forward(..., layout=…)``. Rotary embedding, projections, norms and MLP stay the model's own, so every
decoder that goes through transformers' attention interface works (Llama, SmolLM, Qwen2/3, Mistral, Gemma, …).

Shapes: B rows, H query heads, K key/value heads, G = H / K, T new tokens a row, P prefix tokens, S own slots,
D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from deedrl.errors import ModelError

ATTENTION_NAME = "deedrl_layout"
_FUSED = "_scaled_dot_product_flash_attention_for_cpu"
"""What `scaled_dot_product_attention` runs on a processor, by name because only this returns the sums of weights."""
_UNSUPPORTED_OPTIONS = ("softcap", "s_aux")
_UNSUPPORTED_SETTINGS = ("attn_logit_softcapping", "final_logit_softcapping", "logits_scaling", "logit_scale")
_NOT_COMPUTED = "sampling and training do not compute; take a model without it (Llama, SmolLM, Qwen2/3, Mistral)"


class AttentionLayout(Protocol):
    """Where a forward pass keeps keys and values, and who may attend to whom."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Takes query [B, H, T, D], new key and value [B, K, T, D]; returns the attention output [B, H, T, D]."""
        ...


def layout_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    layout: AttentionLayout,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in place of its own attention; returns [B, T, H, D]."""
    for name in _UNSUPPORTED_OPTIONS:
        if options.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses '{name}', which {_NOT_COMPUTED}")
    return layout.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


def folded_mask(mask: Tensor, model: Any) -> Tensor:
    """Mask [B, 1, T, S] (True = see) as `attend_many` takes it for `model`; made once for all layers."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    groups = heads // int(getattr(config, "num_key_value_heads", None) or heads)
    return torch.where(mask, 0.0, -torch.inf).to(model.dtype).repeat(1, 1, groups, 1)


def causal_own_mask(starts: Tensor, tokens: int, slots: int) -> Tensor:
    """Mask [B, 1, T, S], True where new token t of a row whose own part held `starts` tokens may see own slot s."""
    positions = starts[:, None] + torch.arange(tokens, device=starts.device)[None, :]
    return (torch.arange(slots, device=starts.device)[None, None, :] <= positions[:, :, None])[:, None]


def attend_many(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Fused attention for many new tokens a row (prefill, training); differentiable.

    query [B, H, T, D]; keys, values [B, K, S, D]; mask [1 or B, 1, G T, S] from `folded_mask`. The G heads that share
    keys are laid along the tokens, so that keys and values need not be repeated for each of them.
    """
    rows, heads, tokens, size = query.shape
    kv_heads = keys.shape[1]
    folded = query.reshape(rows, kv_heads, heads // kv_heads * tokens, size)
    output = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    return output.reshape(rows, heads, tokens, size)


class Part(NamedTuple):
    """Attention of some queries to a part of what each may see; two parts are put together with `merged`."""

    output: Tensor
    """Attention if this part were all there is, [..., D]."""
    logsum: Tensor
    """Logarithm of the sum of exp(score), [..., 1] float32."""


def attend_few(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, scaling: float) -> Part:
    """Attention of few new tokens a row (decoding), whose cost is that of reading keys and values.

    query [B, K, N, D]; keys, values [B, K, S, D]; bias [B, 1, N, S] float32 (0 or -inf), no line of it all -inf.
    """
    # Rounded to bf16, as a product under autocast is too, scores would be further from those of fused attention than
    # sampling may be from training.
    with torch.autocast(query.device.type, enabled=False):
        scores = ((query.float() * scaling) @ keys.float().transpose(-1, -2)).add_(bias)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    return Part((weights.to(values.dtype) @ values).float().div_(total), total.log_().add_(top))


def attend_part(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scaling: float) -> Part:
    """Attention of many new tokens a row, fused where torch can; as `attend_few`, but bias of the type of query."""
    if query.device.type != "cpu" or not hasattr(torch.ops.aten, _FUSED):
        seen = query.new_zeros(1) if bias is None else bias
        return attend_few(query, keys, values, seen.float(), scaling)
    fused = getattr(torch.ops.aten, _FUSED)
    output, logsum = fused(query, keys, values, 0.0, False, attn_mask=bias, scale=scaling)
    return Part(output, logsum[..., None])


def attend_shared(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Part:
    """Attention of N tokens to what they all see, as one long row.

    query [N, K, G, D]; keys, values [1, K, P, D]; the part's output is [N, K, G, D].
    """
    tokens, kv_heads, groups, size = query.shape
    by_head = query.transpose(0, 1).reshape(1, kv_heads, tokens * groups, size)
    part = attend_part(by_head, keys, values, None, scaling)
    return Part(*(tensor[0].reshape(kv_heads, tokens, groups, -1).transpose(0, 1) for tensor in part))


def merged(first: Part, second: Part) -> Tensor:
    """Attention to both parts under one softmax, [..., D] float32."""
    return torch.lerp(second.output.float(), first.output.float(), torch.sigmoid(first.logsum - second.logsum))


def install(model: Any) -> None:
    """Registers the attention with transformers and switches `model` to it (weights untouched).

    Raises ModelError for a model that changes attention scores or logits in a way that would be left out here.
    """
    from transformers import AttentionInterface

    config = model.config.get_text_config()
    for name in _UNSUPPORTED_SETTINGS:
        if getattr(config, name, None) not in (None, 1.0):
            raise ModelError(f"{type(model).__name__} has '{name}' set, which {_NOT_COMPUTED}")
    AttentionInterface.register(ATTENTION_NAME, layout_attention)
    model.config._attn_implementation = ATTENTION_NAME


def context_limit(model: Any) -> int:
    """Tokens a sequence may hold: the model's positions, or its sliding window, beyond which attention would differ."""
    config = model.config.get_text_config()
    positions = int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if window is None or (layer_types is not None and "sliding_attention" not in layer_types):
        return positions
    return min(positions, int(window))
