"""The learning table in small: the job by hand, every method learns it, and the noise is what it is said to be."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "learning_table.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("learning_table", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["learning_table"] = module
    spec.loader.exec_module(module)
    return module


def test_the_policy_is_what_it_is_said_to_be_and_so_is_its_completion(script):
    job = script.Corridor(3)
    logits = job.logits(0.25, 0.7)
    assert logits.softmax(-1)[:, 0].tolist() == pytest.approx([0.25, 0.7, 0.7])
    assert job.completion(logits) == pytest.approx(0.25 * 0.85 * 0.85)
    values = job.values(logits)
    assert float(values[1]) == pytest.approx(0.85 * 0.85), "the right key, before two ways"
    assert float(values[9]) == pytest.approx(0.85), "before one"
    assert float(values.sum()) == pytest.approx(0.25 * 0.85**2 + 0.85**2 + 0.85), (
        "other keys and harm are worth nothing"
    )


def test_episodes_succeed_as_often_as_is_computed_and_their_states_tell_why_not(script):
    job = script.Corridor(3)
    logits = job.logits(0.6, 0.7)
    generator = torch.Generator().manual_seed(0)
    played = [episode for _ in range(250) for episode in job.play(logits, generator)]
    rate = sum(episode.reward for episode in played) / len(played)
    assert rate == pytest.approx(job.completion(logits), abs=0.03)
    values = job.values(logits)
    for episode in played:
        if episode.reward:
            assert all(values[int(step.state_hash)] > 0 for step in episode.steps)
            assert episode.steps[0].completion.token_ids == (2,)
    lucky = [e for e in played if e.reward and any(s.completion.token_ids != (2,) for s in e.steps)]
    assert lucky, "successes hold slips"


@pytest.mark.parametrize("seed", [0, 1])
def test_every_method_learns_four_turns(script, one_thread, seed):
    for method in script.METHODS:
        updates = script.updates_needed(method, 4, 0.4, seed, most=40)
        assert updates is not None, method
        assert updates > 2, method


def test_anchors_take_noise_off_the_routine_where_keys_differ(script, one_thread):
    scales = {name: script.noise_scale(name, 6, 0.25, 0.7, groups=120) for name in ("rloo", "rloo + anchors")}
    assert scales["rloo + anchors"] < 0.9 * scales["rloo"]


def test_the_command_prints_a_row_for_each_method_and_writes_its_figures(script, one_thread, tmp_path, capsys):
    file = tmp_path / "table.json"
    given = ["--horizons", "2", "--seeds", "2", "--rates", "0.4", "--methods", "rloo", "rloo + anchors"]
    script.main([*given, "--json", str(file)])
    assert capsys.readouterr().out.count("\n| ") + 1 == 3
    assert [cell["method"] for cell in json.loads(file.read_text())] == ["rloo", "rloo + anchors"]
    script.main([*given, "--noise", "--groups", "5", "--json", str(file)])
    assert len(json.loads(file.read_text())) == 3 * 2
