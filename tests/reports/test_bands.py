from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run, StageResult
from deedrl.reports.bands import MAX_ROWS, band_histories
from deedrl.reports.data import report_data
from deedrl.reports.report import write_report


def step_event(step: int, hard: int, easy: int, **fallback: int) -> dict[str, Any]:
    pool = {"hard": hard, "easy": easy}
    return {"event": "curriculum", "stage": "grpo", "step": step, "pool": pool, "fallback": fallback}


def test_a_step_said_again_after_a_resume_is_one_row() -> None:
    events = [step_event(1, 3, 1), step_event(2, 2, 2, unknown=2), step_event(2, 2, 2, unknown=2)]
    [history] = band_histories(events, {})
    assert [row.title for row in history.rows] == ["step 1", "step 2"]
    assert history.rows[0].shares == (("hard", 0.75), ("easy", 0.25))
    assert [row.stood_in for row in history.rows] == [0, 2]


def test_of_many_steps_some_are_shown_with_the_first_and_the_last() -> None:
    [history] = band_histories([step_event(n, n, 0) for n in range(1, 101)], {})
    assert len(history.rows) == MAX_ROWS
    assert (history.rows[0].title, history.rows[-1].title) == ("step 1", "step 100")


def test_profiles_come_first_and_other_stages_have_none() -> None:
    results = {
        "profile": StageResult(name="profile", seconds=1.0, metrics={"bands": {"hard": 1}}),
        "sft": StageResult(name="sft", seconds=1.0, metrics={"steps": 2}),
    }
    histories = band_histories([step_event(1, 1, 1)], results)
    assert [(history.stage, history.rows[0].title) for history in histories] == [
        ("profile", "as profiled"),
        ("grpo", "step 1"),
    ]


def test_the_page_shows_a_bar_for_every_step_and_none_without_a_curriculum(tmp_path: Path) -> None:
    recipe = recipe_from({"name": "r", "stages": [{"stage": "grpo"}]})
    with Run.open(tmp_path / "run", recipe) as run:
        assert report_data(run.folder).bands == ()
        assert "Measured difficulty" not in write_report(run.folder).read_text()
        for event in (step_event(1, 3, 1), step_event(2, 1, 3, **{"hard from easy": 1})):
            run.record(event.pop("event"), **event)
        page = write_report(run.folder).read_text()
    assert re.findall(r'band-(\w+)" style="width:([\d.]+)%', page) == [
        ("hard", "75.00"),
        ("easy", "25.00"),
        ("hard", "25.00"),
        ("easy", "75.00"),
    ]
    assert '1 · 3<span class="quiet"> (1)</span>' in page
