import msgspec

from deedrl.tracking.tables import MAX_CELL_CHARS, MAX_ROWS, bounded_rows, trajectory_row
from deedrl.types import Action, Completion, RewardBreakdown, Step, Trajectory, Verdict


def test_the_same_table_and_step_give_the_same_rows():
    rows = [{"id": index} for index in range(100)]
    first = bounded_rows(rows, name="grpo/samples", step=4)
    assert bounded_rows(rows, name="grpo/samples", step=4) == first
    assert bounded_rows(rows, name="grpo/samples", step=5) != first


def test_few_rows_all_stay_in_order():
    rows = [{"id": index} for index in range(MAX_ROWS)]
    assert bounded_rows(rows, name="t", step=0) == rows
    assert bounded_rows([], name="t", step=0) == []


def test_columns_are_made_equal():
    assert bounded_rows([{"a": 1}, {"b": 2}], name="t", step=0) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_H14_keys_are_masked():
    rows = bounded_rows([{"text": "see hf_0123456789abcdefABCD"}], name="t", step=0)
    assert rows == [{"text": "see [redacted]"}]


def test_H14_half_a_key_at_the_cut_is_not_shown():
    text = "x" * (MAX_CELL_CHARS - 10) + " hf_0123456789abcdefABCD"
    [row] = bounded_rows([{"text": text}], name="t", step=0)
    assert "hf_" not in row["text"]


def test_E06_lone_surrogates_do_not_reach_a_sink():
    assert bounded_rows([{"text": "\ud800abc"}], name="t", step=0) == [{"text": "?abc"}]


def test_a_trajectory_as_a_row():
    step = Step(index=0, observation="Order 7?", completion=Completion(text='{"tool_name": "finish"}'), action=Action())
    trajectory = Trajectory(
        episode_id="e1",
        task_id="t1",
        steps=(step, msgspec.structs.replace(step, observation="")),
        verdict=Verdict(solved=True, progress=1.0),
        breakdown=RewardBreakdown(total=0.75),
    )
    assert trajectory_row(trajectory) == {
        "episode": "e1",
        "task": "t1",
        "family": "default",
        "reward": 0.75,
        "solved": 1,
        "termination": "tool_ended",
        "steps": 2,
        "transcript": '> Order 7?\n{"tool_name": "finish"}\n{"tool_name": "finish"}',
    }


def test_absent_stays_absent_in_a_row():
    row = trajectory_row(Trajectory(episode_id="e1", task_id="t1"))
    assert (row["reward"], row["solved"]) == (None, None)
