"""People's labels: a refresh of a reward model learns from them, and they say how far it agrees."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from reward_models import data_of, label, model_folder, opened, pairs_to_label, stored
from watching import Watching

from deedrl.cli.main import main
from deedrl.errors import DeedRLError, StoreError
from deedrl.pipeline.reward_model_folder import open_version
from deedrl.pipeline.reward_model_scoring import reward_model_of, session_of
from deedrl.pipeline.reward_model_stage import refresh
from deedrl.store.labels import PairLabel, append_label
from deedrl.tracking.jsonl import read_metrics


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


def test_a_refresh_goes_on_from_the_old_model_and_keeps_its_calibration_set(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = label(copied_run, "left")
    assert count > 4
    with pytest.raises(SystemExit) as end:
        main(["reward-model", "refresh", "--run", str(copied_run), "--quiet"])
    assert not end.value.code
    before, after = (open_version(model_folder(copied_run) / f"v000{n}") for n in (1, 2))
    assert after.calibration[0] == before.calibration[0]
    assert len(after.calibration) == 2
    assert data_of(copied_run, 2).labelled == count
    shown = capsys.readouterr().out
    assert f"calibration set 1 ({before.info.calibration[0].hash[:12]}):" in shown
    assert "not there yet ->" in shown
    one, two = (set(map(str, data_of(copied_run, n).learnt_from)) for n in (1, 2))
    assert one.isdisjoint(two)


def test_labels_that_contradict_the_old_ones_are_an_alarm_and_the_weights_that_agreed_are_kept(
    copied_run: Path,
) -> None:
    """The planted drift: what people say now is the opposite of what the calibration set says."""
    label(copied_run, "right")
    progress = Watching()
    with session_of(copied_run, progress) as session:
        stage = msgspec.structs.replace(
            reward_model_of(session, None), steps=60, calibrate_every=3, held_out_share=0.0, learning_rate=1e-2
        )
        before, after = refresh(session, stage, [])
    assert any("pairwise accuracy on the calibration set fell" in text for text in progress.warnings)
    assert any("agreement fell 3 times in a row; stopping here" in text for text in progress.said)
    assert max(read_metrics(copied_run)["reward_model-v2/loss"]) < 60
    # Of weights that agree alike those of any step may be kept.
    assert after.info.calibration[0].agreement.agreeing == before.info.calibration[0].agreement.agreeing


def test_nothing_new_to_learn_from_is_an_error_that_says_what_to_do(copied_run: Path) -> None:
    with (
        opened(copied_run) as (session, stage),
        pytest.raises(DeedRLError, match=r"label some \(deedrl label RUN\)"),
    ):
        refresh(session, stage, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"left":"nobody","right":"RIGHT","choice":"left"}',
            "line 1: .* this run's training, got 'nobody'",
        ),
        ('{"left":"LEFT","right":"OTHER","choice":"left"}', "line 1: expected two episodes of one task"),
        ('{"left":"LEFT"}', "line 1: expected one label as a JSON object"),
    ],
)
def test_labels_that_cannot_be_used_are_named_by_their_line(copied_run: Path, line: str, message: str) -> None:
    [(left, right), *_] = pairs_to_label(copied_run)
    other = next(t.episode_id for t in stored(copied_run).values() if t.task_id != stored(copied_run)[left].task_id)
    path = copied_run / "labels.jsonl"
    path.write_text(line.replace("LEFT", left).replace("RIGHT", right).replace("OTHER", other) + "\n")
    with opened(copied_run) as (session, stage), pytest.raises(StoreError, match=message):
        refresh(session, stage, [])


def test_most_raters_decide_and_an_even_split_is_a_tie(copied_run: Path) -> None:
    from deedrl.pipeline.reward_model_data import labelled_comparisons

    [(good, bad), (other, worse), *_] = pairs_to_label(copied_run)
    path = copied_run / "labels.jsonl"
    for rater, choice in (("anna", "left"), ("ben", "right"), ("cleo", "right"), ("dan", "skip")):
        append_label(path, PairLabel(left=good, right=bad, choice=choice, rater=rater))  # type: ignore[arg-type]
    for rater, choice in (("anna", "left"), ("ben", "right")):
        append_label(path, PairLabel(left=other, right=worse, choice=choice, rater=rater))  # type: ignore[arg-type]
    with opened(copied_run) as (session, stage):
        found = {one.better.episode_id: one for one in labelled_comparisons(session, stage, [path])}
    assert (found[bad].worse.episode_id, found[bad].tie) == (good, False)
    assert [one.tie for name, one in found.items() if name in (other, worse)] == [True]


def test_the_command_scores_episodes_and_says_how_far_labels_agree(
    copied_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["reward-model", "score", "--run", str(copied_run), "--quiet"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["episode_id"] for row in rows} == stored(copied_run).keys()
    count = label(copied_run, "left")
    with pytest.raises(SystemExit):
        main(
            [
                "reward-model",
                "score",
                "--run",
                str(copied_run),
                "--labels",
                str(copied_run / "labels.jsonl"),
                "--quiet",
            ]
        )
    assert f"of {count} comparisons, Kendall's tau" in capsys.readouterr().out
