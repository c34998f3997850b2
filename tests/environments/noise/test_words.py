"""Other words for the same answer: nothing that a model must copy may change."""

from __future__ import annotations

import json
import random
import re

from hypothesis import given
from hypothesis import strategies as st

from deedrl.environments.noise import asks_again
from deedrl.environments.noise.words import LEADS, SYNONYMS, halved, reworded, words_of
from deedrl.types import Task

PIECES = [*SYNONYMS, "A-17", "order_9", "3.50", "anna@post.example", "Lima", "need-7", "only.txt", "x=only", "(only)"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)


def without_lead(text: str) -> str:
    return next((text.removeprefix(lead) for lead in LEADS if text.startswith(lead)), text)


@given(TEXTS, st.integers(0, 99))
def test_names_numbers_and_ids_are_never_touched(text, seed):
    def kept(words: str) -> list[str]:
        return [word for word in words.split() if re.search(r"[^a-z()]", word)]

    assert kept(without_lead(reworded(text, random.Random(seed), ()))) == kept(text)


@given(TEXTS, st.integers(0, 99))
def test_words_of_the_task_are_kept(text, seed):
    assert without_lead(reworded(text, random.Random(seed), words_of(dict(SYNONYMS)))) == text


VALUES = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.lists(st.integers(), max_size=3))


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4), st.integers(0, 99))
def test_json_keeps_its_value(value, seed):
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(reworded(text, random.Random(seed), ())) == value


def test_json_with_a_number_that_python_writes_otherwise_stays_as_it_is():
    text = '{"price": 1.50}'
    assert {without_lead(reworded(text, random.Random(seed), ())) for seed in range(20)} == {text}


def test_words_are_changed_at_all():
    texts = {without_lead(reworded("the clerk needs each form", random.Random(seed), ())) for seed in range(40)}
    assert "the clerk requires every form" in texts


def test_quotations_are_not_changed():
    text = 'the note says "only each"'
    assert without_lead(reworded(text, random.Random(0), ())) == text


def test_words_of_records_are_those_of_their_texts():
    task = Task.create(prompt="Find\nneed", goal_state={"only": ["Each"]})
    assert {"find", "need", "only", "each"} <= words_of(task)


def test_lists_lose_entries_texts_lines_and_lines_words():
    assert halved('["a", "b", "c", "d"]') == '["a", "b"]\n[partial answer: call again for the whole]'
    assert halved("one\ntwo\nthree") == "one\n[partial answer: call again for the whole]"
    assert halved("a b c d e f") == "a b c\n[partial answer: call again for the whole]"
    assert halved("too short") is None


def test_an_ordinary_answer_does_not_ask_for_the_call_again():
    assert not asks_again("Error: no order 7; try again with another number")
