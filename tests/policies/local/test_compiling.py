"""Kernels are compiled once for each compiler, model and processor; where they cannot be, sampling works without."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from deedrl.policies.local.compiled import loading
from deedrl.policies.local.compiled.loading import NotCompiled, library
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.fused import FusedLayer

ANY = (16, 1, torch.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no library from before."""
    monkeypatch.setenv("DEEDRL_CACHE", str(tmp_path / "cache"))
    library.cache_clear()
    yield tmp_path / "cache" / "kernels"
    library.cache_clear()


@pytest.fixture
def script(tmp_path, compiler):
    """Makes a program that does as the text says and then, unless it ended, compiles."""

    def make(name, text):
        path = tmp_path / name
        path.write_text(
            f'#!{sys.executable}\nimport os, sys, time\n{text}\nos.execv("{compiler}", ["cc", *sys.argv[1:]])\n'
        )
        path.chmod(0o755)
        return str(path)

    return make


def built(cache):
    return sorted(path.name for path in cache.iterdir())


# ------------------------------------------------------------ what is kept


def test_the_second_use_compiles_nothing(cache, script, tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("CC", script("logged", f'open({str(log)!r}, "a").write(sys.argv[1] + "\\n")'))
    library(*ANY)
    library.cache_clear()
    library(*ANY)
    assert log.read_text().split() == ["--version", "-O3", "--version"]
    [name] = built(cache)
    assert name.endswith(".so")


@pytest.mark.usefixtures("compiler")
def test_every_shape_and_type_of_a_model_has_a_file_of_its_own(cache):
    library(*ANY)
    library(32, 1, torch.float32)
    library(16, 2, torch.float32)
    library(16, 1, torch.bfloat16)
    assert len(built(cache)) == 4


def test_another_version_of_the_compiler_makes_another_file(cache, script, monkeypatch):
    for version in ("1", "2"):
        tells = f'if sys.argv[1] == "--version":\n    print("{version}")\n    sys.exit()'
        monkeypatch.setenv("CC", script("versioned", tells))
        library.cache_clear()
        library(*ANY)
    assert len(built(cache)) == 2


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("name", ["_FLAGS", "_MATHS"])
def test_other_flags_make_another_file(cache, monkeypatch, name):
    library(*ANY)
    monkeypatch.setattr(loading, name, (*getattr(loading, name), "-g"))
    library.cache_clear()
    library(*ANY)
    assert len(built(cache)) == 2


@pytest.mark.usefixtures("compiler")
def test_another_processor_makes_another_file(cache, monkeypatch):
    library(*ANY)
    monkeypatch.setattr(loading, "_processor", lambda: "another")
    library.cache_clear()
    library(*ANY)
    assert len(built(cache)) == 2


def test_two_processes_may_compile_at_the_same_time(cache, script, tmp_path):
    """Each waits in its compiler until the other is there, too; both have found no file then."""
    waits = f"""
if sys.argv[1] != "--version":
    open(os.path.join({str(tmp_path)!r}, f"here-{{os.getpid()}}"), "w").close()
    end = time.monotonic() + 60
    while sum(name.startswith("here-") for name in os.listdir({str(tmp_path)!r})) < 2 and time.monotonic() < end:
        time.sleep(0.01)
"""
    code = (
        "import torch; from deedrl.policies.local.compiled.kernels import Kernels; "
        "print(Kernels(1, 1, 16, torch.float32).gated(torch.tensor([[100.0, 0.5]])).item())"
    )
    environment = {**os.environ, "CC": script("waits", waits)}
    both = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, stdout=-1, stderr=-1)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120) for process in both]
    assert said == [("50.0\n", "")] * 2
    assert len(list(tmp_path.glob("here-*"))) == 2
    [name] = built(cache)
    assert name.endswith(".so")


# ------------------------------------------------------------ where there are none


@pytest.mark.parametrize("named", ["/nonexistent", "no-such-compiler"])
def test_a_named_compiler_that_is_not_there_is_named(monkeypatch, named):
    monkeypatch.setenv("CC", named)
    with pytest.raises(NotCompiled, match=rf"no C compiler \({named}\); install gcc, or name one in CC"):
        library(*ANY)


def test_without_any_compiler_the_text_says_what_to_install(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotCompiled, match=r"no C compiler \(cc, gcc or clang\); install gcc"):
        library(*ANY)


def test_a_compiler_that_fails_is_named_with_what_it_said(cache, script, monkeypatch):
    fails = 'if sys.argv[1] != "--version":\n    sys.exit("unknown option -march")'
    monkeypatch.setenv("CC", script("fails", fails))
    with pytest.raises(NotCompiled, match="fails failed: unknown option -march"):
        library(*ANY)
    assert built(cache) == []


def test_a_compiler_that_cannot_be_run_is_named(tmp_path, monkeypatch):
    path = tmp_path / "torn"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    with pytest.raises(NotCompiled, match=r"torn did not run: OSError.*; install gcc"):
        library(*ANY)


def test_a_compiler_that_never_ends_is_given_up(cache, script, monkeypatch):
    monkeypatch.setattr(loading, "_TIME_LIMIT_S", 1.0)
    monkeypatch.setenv("CC", script("hangs", 'if sys.argv[1] != "--version":\n    time.sleep(60)'))
    with pytest.raises(NotCompiled, match="hangs did not run: TimeoutExpired"):
        library(*ANY)
    assert built(cache) == []


@pytest.mark.usefixtures("compiler")
def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEDRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(NotCompiled, match=r"file/kernels"):
        library(*ANY)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("kept", [0, 100], ids=["empty", "torn"])
def test_a_torn_file_in_the_cache_is_named(cache, kept):
    """Another process compiled it, for a library that this one has loaded must not be cut."""
    subprocess.run([sys.executable, "-c", _COMPILE], check=True)
    [name] = built(cache)
    whole = (cache / name).read_bytes()
    (cache / name).unlink()
    (cache / name).write_bytes(whole[:kept])
    with pytest.raises(NotCompiled, match=rf"{name} cannot be loaded: OSError: .*delete it and run again"):
        library(*ANY)


_COMPILE = "import torch; from deedrl.policies.local.compiled.loading import library; library(16, 1, torch.float32)"


@pytest.mark.parametrize("size", [8, 24, 40, 100])
def test_heads_that_are_no_multiple_of_16_are_refused(size):
    with pytest.raises(NotCompiled, match=f"heads of a multiple of 16 numbers, the model's have {size}"):
        library(size, 1, torch.float32)


def test_types_without_kernels_are_refused():
    with pytest.raises(NotCompiled, match=r"bfloat16 and float32 only, the model in torch.float16"):
        library(16, 1, torch.float16)


# ------------------------------------------------------------ sampling without them


def played(kit, engine):
    prefix = kit.ids(9, 5)
    turns = [kit.turn(key, [*prefix, *kit.ids(ord(key), 6)], prefix=prefix, max_tokens=9) for key in "abc"]
    return {key: (turn.tokens, turn.logprobs) for key, turn in kit.play(engine, turns).items()}


@pytest.mark.usefixtures("compiler")
def test_without_a_compiler_the_same_is_sampled_with_one_warning(kit, monkeypatch):
    compiled = Engine(kit.load().model, stop_ids=[-1])
    expected = played(kit, compiled)
    assert all(isinstance(layer, FusedLayer) for layer in compiled._weights._decoder.layers)
    library.cache_clear()
    monkeypatch.setenv("CC", str(Path("/nonexistent")))
    slow = Engine(kit.load().model, stop_ids=[-1])
    with pytest.warns(UserWarning, match="slower: there is no C compiler.*; install gcc") as caught:
        found = played(kit, slow)
    assert len(caught) == 1
    assert not any(isinstance(layer, FusedLayer) for layer in slow._weights._decoder.layers)
    for key, (tokens, logprobs) in found.items():
        assert tokens == expected[key][0]
        assert logprobs == pytest.approx(expected[key][1], abs=1e-5)
        slow.release(key)
    slow.reset()
    with warnings.catch_warnings(action="error"):
        played(kit, slow)
