"""The comparison with peers: its arithmetic and its processes, with engines that only pretend to work."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from deedrl.environments.suite.support.demonstrations import demonstrate
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.policies.policy import action_text
from deedrl.rewards.rubric import default_rubric
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.rollouts.slot import EnvironmentSlot, EnvironmentSource

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"

FAKE = """
import json, os, sys
from pathlib import Path
from serving import Requests, read_work
work = read_work()
name = "NAME"
requests = Requests(lambda folder: folder.mkdir(), version="1")
step = 0
while True:
    request = requests.wait()
    step += 1
    with open(work["order"], "a") as order:
        order.write(f"{name} {json.dumps(request)}\\n")
    BODY
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, ModuleType]:
    """The modules, with a folder of their own for engines; nothing has to be installed."""
    monkeypatch.syspath_prepend(str(PEERS / "engines"))
    monkeypatch.syspath_prepend(str(PEERS))
    import compare
    import learn
    import processes

    engines = tmp_path / "engines"
    engines.mkdir()
    shutil.copy(PEERS / "engines" / "serving.py", engines)
    monkeypatch.setattr(processes, "ENGINES", engines)
    monkeypatch.setattr(processes, "INSTALLED", ("vllm",))
    monkeypatch.chdir(tmp_path)
    return {"compare": compare, "learn": learn, "processes": processes}


def fake(tmp_path: Path, name: str, kind: str, body: str = "requests.answer(8)") -> None:
    script = FAKE.replace("NAME", name).replace("BODY", body)
    (tmp_path / "engines" / f"{name}_{kind}.py").write_text(script, encoding="utf-8")


def workload(tmp_path: Path, kind: str = "rollouts") -> Path:
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps({"kind": kind, "order": str(tmp_path / "order")}), encoding="utf-8")
    return path


def order(tmp_path: Path) -> list[str]:
    return [line.split()[0] for line in (tmp_path / "order").read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------- compare.py


def test_ratios_are_taken_within_pairs(peers: dict[str, ModuleType]) -> None:
    ours, theirs = [(1.0, 2.0), (10.0, 2.0), (4.0, 3.0)], [(3.0, 4.0), (10.0, 5.0), (20.0, 9.0)]
    answers = [
        tuple({"seconds": seconds, "tokens": 6, "peak_gb": gb} for seconds, gb in pair)
        for pair in zip(ours, theirs, strict=True)
    ]
    found = peers["compare"].figures(answers)
    # The ratios are 3, 1 and 5; that of the medians would be 10 / 4.
    assert found["seconds"] == {"ours": 4.0, "peer": 10.0, "ratio": 3.0, "ratio_low": 1.0, "ratio_high": 5.0}
    assert found["tokens a second"]["ratio"] == pytest.approx(1 / 3)
    assert found["peak memory, GB"] == {"ours": 2.0, "peer": 5.0, "ratio": 2.5, "ratio_low": 2.0, "ratio_high": 3.0}


def test_engines_take_turns_after_a_repetition_that_does_not_count(
    peers: dict[str, ModuleType], tmp_path: Path
) -> None:
    fake(tmp_path, "deedrl", "rollouts")
    fake(tmp_path, "trl", "rollouts")
    result = peers["compare"].compare(workload(tmp_path), "rollouts", "trl", pairs=2, warm_up=True)
    assert order(tmp_path) == ["deedrl", "trl"] * 3
    assert [len(answers) for answers in result["answers"].values()] == [2, 2]
    assert result["facts"] == {"deedrl": {"version": "1"}, "trl": {"version": "1"}}


def test_peers_that_fail_are_reported_beside_the_others_results(
    peers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(tmp_path, "deedrl", "rollouts")
    fake(tmp_path, "generate", "rollouts", "raise ValueError('no room for this')")
    fake(tmp_path, "trl", "rollouts", "requests.answer(7)")
    fake(tmp_path, "vllm", "rollouts")
    fake(tmp_path, "llamacpp", "rollouts")
    arguments = [str(workload(tmp_path)), str(workload(tmp_path, "update")), "--pairs", "1", "--json", "out.json"]
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    assert peers["compare"].main() == 1
    shown = capsys.readouterr().out
    assert (
        "FAILED rollouts, generate: generate ended with code 1, its last words: ValueError: no room for this" in shown
    )
    assert "FAILED rollouts, trl: trl did 7 tokens, deedrl 8: not the same work" in shown
    assert "FAILED rollouts, vllm: vllm is not installed in .peers/vllm; run: " in shown
    assert shown.count("| rollouts | llamacpp |") == len(peers["compare"].FIGURES)
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [(one["peer"], "failed" in one) for one in written["comparisons"]] == [
        ("generate", True),
        ("trl", True),
        ("vllm", True),
        ("llamacpp", False),
    ]
    assert written["machine"]["cores"] >= 1


def test_an_engine_that_is_silent_is_ended(
    peers: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "trl", "rollouts", "__import__('time').sleep(60)")
    processes = peers["processes"]
    with processes.Engine("trl", workload(tmp_path), "rollouts") as engine:
        monkeypatch.setattr(processes, "ANSWER_LIMIT_S", 0.2)
        with pytest.raises(processes.EngineFailed, match=r"ended with code -9, its last words: nothing"):
            engine.ask("run")


# ---------------------------------------------------------------- learn.py


def learning(tmp_path: Path, completions: list[float]) -> None:
    fake(tmp_path, "trl", "learning", "requests.answer(5, sampling_s=0.0, episodes=4, solved=2)")
    body = f"requests.answer(0, completion={completions}[request['step']], episodes=10, solved={{'a': 0.25}})"
    fake(tmp_path, "deedrl", "evaluation", body)


def learn_options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"steps": 9, "every": 2, "budget": 1e9, "target": 0.9} | changes)


@pytest.mark.parametrize(
    ("changes", "why", "steps", "validated"),
    [
        ({}, "target", 4, [2, 4]),
        ({"target": 0.99, "steps": 5}, "steps", 5, [2, 4, 5]),
        ({"budget": 0.0}, "budget", 1, [1]),
        ({"every": 3, "target": 0.8}, "target", 3, [3]),
    ],
)
def test_learning_ends_at_the_target_the_budget_or_the_last_step(
    peers: dict[str, ModuleType],
    tmp_path: Path,
    changes: dict[str, Any],
    why: str,
    steps: int,
    validated: list[int],
) -> None:
    learning(tmp_path, [0.5, 0.5, 0.7, 0.8, 0.9, 0.9])
    lines: list[dict[str, Any]] = []
    work = workload(tmp_path, "learning")
    first = {"solved": {"a": 1.0}}
    assert peers["learn"].learn("trl", work, first, learn_options(**changes), lines.append) == why
    assert [line["step"] for line in lines if line["event"] == "step"] == list(range(1, steps + 1))
    assert [line["step"] for line in lines if line["event"] == "validation"] == validated
    spent = [line["seconds"] for line in lines if line["event"] == "step"]
    assert lines[-1]["spent_s"] == pytest.approx(sum(spent))


def test_an_engine_is_told_what_the_last_validation_solved(peers: dict[str, ModuleType], tmp_path: Path) -> None:
    learning(tmp_path, [0.5, 0.6, 0.7, 0.8])
    options = learn_options(steps=2, every=1)
    peers["learn"].learn("trl", workload(tmp_path, "learning"), {"solved": {"a": 1.0}}, options, lambda line: None)
    asked = [line.partition(" ") for line in (tmp_path / "order").read_text(encoding="utf-8").splitlines()]
    assert [json.loads(request)["solved"] for name, _, request in asked if name == "trl"] == [{"a": 1.0}, {"a": 0.25}]


def test_the_summary_says_when_the_target_was_not_reached(peers: dict[str, ModuleType]) -> None:
    step = {"event": "step", "sampling_s": 30.0, "update_s": 20.0, "seconds": 50.0, "peak_gb": 3.21}
    lines = [
        {"engine": "deedrl", "event": "validation", "completion": 0.738},
        {"engine": "deedrl", "spent_s": 50.0} | step,
        {"engine": "deedrl", "event": "validation", "completion": 0.905},
        {"engine": "deedrl", "event": "end", "why": "target"},
        {"engine": "trl", "event": "validation", "completion": 0.738},
        {"engine": "trl", "spent_s": 700.0} | step,
        {"engine": "trl", "event": "end", "why": "budget"},
    ]
    *_, ours, theirs = peers["learn"].summary(lines, 0.9).splitlines()
    assert ours == "| deedrl | 50 s | 1 | 50 s | 30 s | 20 s | 90.5% | 3.2 GB | target |"
    assert theirs == "| trl | not in 700 s | 1 | 50 s | 30 s | 20 s | 73.8% | 3.2 GB | budget |"


# ---------------------------------------------------------------- the environment a peer learns in


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def test_turns_handed_in_from_outside_give_the_episode_the_runner_plays(
    peers: dict[str, ModuleType], loop: asyncio.AbstractEventLoop
) -> None:
    from stepped import SteppedEpisode

    tasks = SupportDesk.generate_tasks("train", 12, seed=3)
    specs = [EpisodeSpec(task=task, episode_id=f"e{index}", seed=index) for index, task in enumerate(tasks)]
    played = run_episodes_sync(
        specs, environment=SupportDesk, policy=demonstration_policy(specs, SupportDesk), rubric=default_rubric()
    )
    for spec, expected in zip(specs, played, strict=True):
        slot = EnvironmentSlot(EnvironmentSource(SupportDesk))
        stepped = SteppedEpisode(loop, spec, slot=slot, rubric=default_rubric(), limits=Limits())
        told = [stepped.task, *(stepped.turn(action_text(action), False) for action in demonstrate(spec.task))]
        assert told == [*(step.observation for step in expected.steps), None]
        assert stepped.trajectory is not None
        assert (stepped.trajectory.solved, stepped.trajectory.reward) == (True, expected.reward)
        with pytest.raises(RuntimeError, match="the episode is over"):
            stepped.turn("more", False)
        asyncio.run_coroutine_threadsafe(slot.close(1.0), loop).result()


def test_an_episode_from_outside_ends_at_its_limits(
    peers: dict[str, ModuleType], loop: asyncio.AbstractEventLoop
) -> None:
    from stepped import SteppedEpisode

    (task,) = SupportDesk.generate_tasks("train", 1, seed=0)
    slot = EnvironmentSlot(EnvironmentSource(SupportDesk))
    spec = EpisodeSpec(task=task, episode_id="e")
    stepped = SteppedEpisode(loop, spec, slot=slot, rubric=default_rubric(), limits=Limits(max_parse_failures=2))
    first = stepped.turn("not an action", True)
    assert first is not None
    assert first.startswith("Error: ")
    assert stepped.turn("nor this", False) is None
    assert stepped.trajectory is not None
    assert not stepped.trajectory.solved
    asyncio.run_coroutine_threadsafe(slot.close(1.0), loop).result()


# ---------------------------------------------------------------- losses.py


def test_gradients_of_other_values_are_over_the_tolerance_unless_a_reason_is_given(
    peers: dict[str, ModuleType],
) -> None:
    import losses

    ours, near = (0.5, {"w": torch.tensor([3.0, 4.0])}), (0.5, {"w": torch.tensor([3.0, 4.00002])})
    far = (0.5, {"w": torch.tensor([3.0, 4.001])})
    case = losses.Case("name", "sft")
    assert losses.line(case, ours, near) == ("| name | 0.500000 | 0.500000 | 0.0e+00 | 5.0000 | 4.0e-06 |  |", True)
    text, fine = losses.line(case, ours, far)
    assert not fine
    assert "2.0e-04 | **over the tolerance**" in text
    assert losses.line(losses.Case("name", "sft", differs="a reason"), ours, far)[1]
    assert not losses.line(case, ours, (0.50002, ours[1]))[1]


def test_our_side_of_the_losses_answers_with_the_gradient_of_a_plain_loop(
    peers: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import losses
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(peers["processes"], "ENGINES", PEERS / "engines")
    work = losses.workload(tmp_path)
    (tmp_path / "losses.json").write_text(json.dumps(work), encoding="utf-8")
    [case] = [case for case in losses.CASES if case.name == "SFT, 2 pieces"]
    found, gradients = losses.answers("deedrl", tmp_path / "losses.json", tmp_path, [case])[case.name]
    model = AutoModelForCausalLM.from_pretrained(work["model"], dtype=torch.float32)
    total, actions = torch.zeros(()), 0
    for row in work["rows"]:
        logprobs = model(torch.tensor([row["ids"]])).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(row["ids"])[1:, None])[:, 0]
        mask = torch.tensor(row["action_mask"])[1:]
        total, actions = total - chosen[mask].sum(), actions + int(mask.sum())
    (total / actions).backward()
    assert found == pytest.approx(float(total.detach()) / actions, abs=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-4)
