from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from deedrl.reports.progress import (
    BarProgress,
    JsonProgress,
    PlainProgress,
    QuietProgress,
    duration_text,
    figures_text,
    make_progress,
)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (725, "12 min 05 s"), (12000, "3 h 20 min")])
def test_durations_read_like_speech(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_rates_are_percentages_and_absent_is_a_dash() -> None:
    text = figures_text({"completion": 0.625, "learning_rate": 0.0003, "loss": None, "kept": 12, "state": "warm"})
    assert text == "completion 62.5 %  learning rate 0.0003  loss –  kept 12  state warm"


def test_plain_lines_at_start_and_end() -> None:
    stream = io.StringIO()
    with PlainProgress(stream).bar("baseline", total=3, unit="episodes", done=1) as bar:
        bar.advance(1, completion=0.5)
        bar.advance(1)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "baseline: 3 episodes, 1 done before"
    assert lines[1].startswith("baseline: 3/3 episodes, in 0 s  completion 50.0 %")


def test_plain_lines_between_show_rate_and_rest() -> None:
    stream = io.StringIO()
    with PlainProgress(stream, interval_s=0.0).bar("sft", total=3, unit="steps") as bar:
        bar.advance()
    assert "1/3 steps," in stream.getvalue().splitlines()[1]
    assert " left" in stream.getvalue().splitlines()[1]


def test_json_lines_carry_the_figures() -> None:
    stream = io.StringIO()
    progress = JsonProgress(stream)
    with progress.bar("grpo", total=2, unit="steps") as bar:
        bar.advance(1, reward=0.5, kl=None)
    progress.warn("odd")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["started", "progress", "ended", "warning"]
    assert lines[1]["figures"] == {"reward": 0.5, "kl": None}
    assert lines[1]["done"] == 1


@pytest.mark.parametrize("kind", [PlainProgress, JsonProgress])
def test_every_line_is_in_the_file_as_soon_as_it_is_said(
    kind: type[PlainProgress | JsonProgress], tmp_path: Path
) -> None:
    log = tmp_path / "nohup.out"
    with log.open("w") as stream:  # buffered in blocks, as every file is that output is redirected to
        progress = kind(stream)
        progress.say("resuming")
        assert "resuming" in log.read_text()
        with progress.bar("baseline", total=3, unit="episodes") as bar:
            assert "baseline" in log.read_text().splitlines()[1]
            bar.advance(3)
        assert "3" in log.read_text().splitlines()[-1]
        progress.warn("odd")
        assert "odd" in log.read_text().splitlines()[-1]


def test_quiet_shows_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    progress = QuietProgress()
    with progress.bar("grpo", total=2, unit="steps") as bar:
        bar.advance()
    progress.say("nothing")
    progress.warn("careful")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "warning: careful\n")


def test_bars_show_figures_and_nest() -> None:
    stream = io.StringIO()
    progress = BarProgress(Console(file=stream, force_terminal=True, width=120))
    with progress.bar("grpo", total=2, unit="steps") as outer:
        outer.advance(1, reward=0.25)
        with progress.bar("validation", total=1, unit="episodes") as inner:
            inner.advance(1)
        progress.say("half way")
        outer.advance(1)
    shown = stream.getvalue()
    assert "grpo" in shown
    assert "2/2" in shown
    assert "reward 0.25" in shown
    assert "half way" in shown


def test_H11_terminal_escapes_and_markup_in_model_text_do_nothing() -> None:
    stream = io.StringIO()
    progress = BarProgress(Console(file=stream, width=120))
    progress.say("\x1b]0;owned\x07[bold]hello[/bold]\x1b[2J")
    assert stream.getvalue().strip() == "[bold]hello[/bold]"


def test_H14_keys_are_not_shown() -> None:
    stream = io.StringIO()
    PlainProgress(stream).warn("cannot log in with hf_C4n4ryC4n4ryC4n4ryC4n4ry")
    assert "C4n4ry" not in stream.getvalue()


def test_a_bar_ends_when_its_work_raises() -> None:
    progress = BarProgress(Console(file=io.StringIO(), force_terminal=True))
    with pytest.raises(KeyboardInterrupt), progress.bar("sft", total=2, unit="steps"):
        raise KeyboardInterrupt
    with progress.bar("again", total=1, unit="steps") as bar:
        bar.advance()


def test_the_default_without_a_terminal_is_plain_lines() -> None:
    assert isinstance(make_progress(), PlainProgress)
    assert isinstance(make_progress("bar"), BarProgress)
