"""What is looked at before transformers and PEFT open a model: is it there, whole, safe to read, and fit to train."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deedrl.errors import ModelError, suggest

HUB_LIMIT_S = 5.0
"""How long the hub may take to say that it has a model; transformers alone would retry for a minute in silence."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CHOICES = "set model.path to a folder with config.json, or to 'embedded'"


def cache_folder() -> Path:
    """Where converted models and compiled kernels are kept: ``DEEDRL_CACHE`` or the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("DEEDRL_CACHE") or platformdirs.user_cache_dir("deedrl"))


def hub_is_offline(name: str) -> bool:
    """Whether the hub model `name` must come from the cache because the hub does not answer.

    Raises `ModelError` if it is neither on the hub nor, where the hub does not answer, in the cache.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        HfApi().model_info(name, timeout=HUB_LIMIT_S)
    except HFValidationError as error:
        raise ModelError(f"no model '{name}': not a hub id 'owner/name' ({error}); {_CHOICES}") from error
    except GatedRepoError as error:
        raise ModelError(
            f"the model '{name}' is gated: accept its terms on the hub and log in with 'hf auth login', or {_CHOICES}"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model '{name}' on the hub, and no such folder here; check the name, or {_CHOICES}"
        ) from error
    except Exception as error:
        # The HTTP library's classes change from version to version of the hub's client.
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return True
        raise ModelError(
            f"cannot load the model '{name}': the hub is out of reach ({in_short(error)}) and it is not in the "
            f"cache; connect to the network and run again, or {_CHOICES}"
        ) from error
    return False


def check_weights(folder: Path, remedy: str = "copy it anew") -> None:
    """Raises `ModelError` naming the file if weights of a local model are pickled, missing or torn."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"cannot load the model '{folder}': expected a folder with config.json and model.safetensors, found no "
            f"config.json; {remedy}"
        )
    found = sorted(folder.glob("*.safetensors"))
    pickled = [path for path in sorted(folder.iterdir()) if path.suffix in _PICKLED]
    if not found and pickled:
        raise _refused(pickled[0], "model.safetensors")
    if not found:
        raise ModelError(f"{folder}: expected weights in model.safetensors, found none; {remedy}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = read_object(index).get("weight_map", {})
        for name in sorted(set(named.values())) if isinstance(named, dict) else ():
            if Path(str(name)).suffix != ".safetensors":
                raise _refused(index, f"safetensors files alone, not '{name}'")
    for path in found:
        check_tensors(path, remedy)


def check_tensors(path: Path, remedy: str = "copy it anew") -> list[str]:
    """Names of the tensors in a safetensors file; one that is not whole is a `ModelError` naming it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path}: expected a whole safetensors file, got {path.stat().st_size} bytes that are not one ({error}); "
            f"{remedy}"
        ) from error


def check_adapter(folder: Path) -> None:
    """Raises `ModelError` naming the file if `folder` is not a LoRA adapter in PEFT's format that can be read."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ModelError(f"no adapter at '{folder}': expected a PEFT folder with {ADAPTER_CONFIG}")
    kind = read_object(folder / ADAPTER_CONFIG).get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder / ADAPTER_CONFIG}: expected peft_type 'LORA', got {kind!r}; take a LoRA adapter")
    if not (folder / ADAPTER_WEIGHTS).is_file():
        pickled = [path for path in sorted(folder.iterdir()) if path.suffix in _PICKLED]
        if pickled:
            raise _refused(pickled[0], ADAPTER_WEIGHTS)
        raise ModelError(f"{folder}: expected the adapter's weights in {ADAPTER_WEIGHTS}, found none; copy it anew")
    check_tensors(folder / ADAPTER_WEIGHTS)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; anything else is a `ModelError` naming it."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: expected a JSON object, cannot read one ({error}); copy it anew") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(data).__name__}; copy it anew")
    return data


def check_lora(model: Any, rank: int, target: str | Sequence[str]) -> str | list[str]:
    """`target` as PEFT takes it; raises `ModelError` if a name or the rank does not fit `model`.

    A name means every linear layer whose path ends in it. Ranks above the hidden size add nothing but memory.
    """
    hidden = int(model.config.get_text_config().hidden_size)
    if rank > hidden:
        raise ModelError(f"model.adapter.rank: expected at most the model's hidden size of {hidden}, got {rank}")
    if target == ALL_LINEAR:
        return ALL_LINEAR
    names = [target] if isinstance(target, str) else list(target)
    if not names:
        raise ModelError(f"model.adapter.target: expected names of layers or '{ALL_LINEAR}', got an empty list")
    paths = list(_linear_paths(model))
    for name in names:
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            known = {path.rpartition(".")[2] for path in paths}
            raise ModelError(
                f"model.adapter.target: the model has no linear layer '{name}'{suggest(name, known)}; name layers of "
                f"the model, or '{ALL_LINEAR}'"
            )
    return names


def in_short(error: BaseException) -> str:
    """Kind and text of a library's exception in one line of a length that can be read."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def _linear_paths(model: Any) -> Iterator[str]:
    import torch
    from transformers.pytorch_utils import Conv1D  # what GPT-2 calls its linear layers

    return (name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D))


def _refused(path: Path, expected: str) -> ModelError:
    return ModelError(
        f"{path}: refused; expected {expected}: pickled weights can run code when they are read; convert them to "
        "safetensors first, e.g. from_pretrained(...) and save_pretrained(...) of transformers or PEFT, where you "
        "trust their origin"
    )
