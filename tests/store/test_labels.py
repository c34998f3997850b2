"""Files of labels: nothing is lost, bad lines are named, what was taken back does not count."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.errors import StoreError
from deedrl.store.labels import PairLabel, TurnLabel, append_label, ratings, read_labels, standing

CHOICES = ("left", "right", "tie", "skip")


def label(choice="left", left="a", right="b", rater="anna"):
    return PairLabel(left=left, right=right, choice=choice, rater=rater, time="2026-11-30T21:00:00Z")


def numbered(*labels):
    return [(number, one) for number, one in enumerate(labels, start=1)]


@given(
    st.lists(
        st.builds(
            PairLabel,
            left=st.text(min_size=1).map(lambda text: "l" + text),
            right=st.text(min_size=1).map(lambda text: "r" + text),
            choice=st.sampled_from([*CHOICES, "undo"]),
            rater=st.text(),
            time=st.text(),
        ),
        max_size=8,
    )
)
def test_every_label_comes_back_as_it_was_written_with_its_line(labels):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl"
        for one in labels:
            append_label(path, one)
        found = read_labels(path, PairLabel) if labels else []
    assert [one for _, one in found] == labels
    assert [place.number for place, _ in found] == list(range(1, len(labels) + 1))


@given(st.integers(0, 4), st.binary(min_size=1, max_size=30).filter(lambda raw: raw.strip() and b"\n" not in raw))
def test_a_line_that_is_no_label_is_named_and_nothing_is_skipped(before, garbage):
    good = b'{"left":"a","right":"b","choice":"tie"}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl"
        path.write_bytes(good * before + garbage + b"\n" + good)
        with pytest.raises(StoreError, match=rf"labels\.jsonl, line {before + 1}: expected one label"):
            read_labels(path, PairLabel)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"left":"a","right":"b","choice":"better"}', "better"),
        ('{"left":"a","right":"b","choice":"left","who":"me"}', "who"),
        ('{"left":"a","choice":"left"}', "right"),
        ('{"left":"","right":"b","choice":"left"}', "length"),
        ('{"left":"a","right":"a","choice":"left"}', "two episodes to compare, got 'a' twice"),
        ('{"left":"a","right":"b","cho', "line 1"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(tmp_path, line, message):
    (tmp_path / "labels.jsonl").write_text(line)
    with pytest.raises(StoreError, match=message):
        read_labels(tmp_path / "labels.jsonl", PairLabel)


def test_turns_have_labels_of_their_own(tmp_path):
    path = tmp_path / "turns.jsonl"
    path.write_text('{"episode_id": "a", "step": 0, "label": 1}\n\n{"episode_id": "a", "step": 1, "label": 0.5}\n')
    assert [(place.number, one.step, one.label) for place, one in read_labels(path, TurnLabel)] == [
        (1, 0, 1),
        (3, 1, 0.5),
    ]
    path.write_text('{"episode_id": "a", "step": 0, "label": 2}')
    with pytest.raises(StoreError, match="line 1"):
        read_labels(path, TurnLabel)


def test_a_file_that_is_not_there_is_said():
    with pytest.raises(StoreError, match="cannot read the labels in nowhere"):
        read_labels(Path("nowhere.jsonl"), PairLabel)


def test_a_torn_line_is_never_glued_to_the_next_label(tmp_path):
    path = tmp_path / "labels.jsonl"
    path.write_text('{"left":"a","ri')
    append_label(path, label())
    assert path.read_text().count("\n") == 2
    with pytest.raises(StoreError, match="line 1"):
        read_labels(path, PairLabel)


def test_the_last_label_that_was_not_taken_back_counts():
    found = standing(
        numbered(label("left"), label("right"), label("undo"), label("tie", rater="ben"), label("undo", rater="ben"))
    )
    assert {rater: (line, one.choice) for rater, (line, one) in found["a", "b"].items()} == {"anna": (1, "left")}
    assert standing(numbered(label(), label("undo", left="b", right="a"))) == {}
    with pytest.raises(StoreError, match="1: expected a label of 'anna' of this pair before the undo"):
        standing(numbered(label("undo")))


def test_sides_are_told_apart_by_episode_and_not_by_where_they_were_shown():
    found = standing(
        numbered(
            label("left"),
            label("right", left="b", right="a", rater="ben"),
            label("left", left="b", right="a", rater="cleo"),
            label("skip", rater="dan"),
            label("tie", left="x", right="y"),
        )
    )
    assert ratings(found) == {
        ("a", "b"): {"anna": "first", "ben": "first", "cleo": "second"},
        ("x", "y"): {"anna": "tie"},
    }
