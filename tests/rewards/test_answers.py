from __future__ import annotations

import itertools
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.errors import TaskError
from deedrl.rewards.answers import (
    Expected,
    number_in_sentence,
    read_date,
    read_number,
    roundings,
    same_answer,
    same_date,
    same_nothing,
    same_number,
    same_ranking,
    same_set,
    same_text,
)
from deedrl.rewards.numerals import chinese_number

# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", "1234.5"),
        ("1234.5", "1234.5"),
        ("1,000", "1000"),
        ("\\boxed{8,000}", "8000"),
        ("9{,}500", "9500"),
        ("1000.00", "1000"),
        ("¥1,000", "1000"),
        ("1 000", "1000"),
        ("1\u00a0000\u202f000", "1000000"),
        ("1'234'567", "1234567"),
        ("1.234,50", "1234.5"),
        ("12,5", "12.5"),
        ("0,375", "0.375"),
        ("-7", "-7"),
        ("−7", "-7"),
        ("-$7.50", "-7.5"),
        ("$-7.50", "-7.5"),
        ("7.", "7"),
        (".5", "0.5"),
        ("The answer is 42.", "42"),
        ("72 clips", "72"),
    ],
)
def test_F04_a_number_in_its_usual_forms(text: str, value: str) -> None:
    assert read_number(text) == Fraction(value)


def test_F04_a_number_in_a_sentence_is_read_where_sentences_are_allowed() -> None:
    text = "The total is 72 clips, altogether."
    assert (read_number(text), number_in_sentence(text)) == (None, 72)


@pytest.mark.parametrize("text", ["42", "42.0", "４２", "四十二", "4.2e1", "+42", "42.", "042"])
def test_F05_forms_of_42(text: str) -> None:
    assert same_number(text, 42)


@pytest.mark.parametrize(
    ("percent", "right"),
    [("refuse", set()), ("points", {"42%", "42 %", "42 percent"}), ("fraction", {"4200%"})],
)
def test_F05_percent_follows_the_rule_of_the_task(
    percent: Literal["refuse", "points", "fraction"], right: set[str]
) -> None:
    forms = ("42%", "42 %", "42 percent", "0.42%", "4200%")
    expected = Expected(kind="number", value=42, percent=percent)
    assert {form for form in forms if same_answer(form, expected)} == right


def test_F05_a_fraction_may_be_given_in_percent() -> None:
    rule = Expected(kind="number", value="0.42", percent="fraction")
    assert [same_answer(text, rule) for text in ("0.42", "42%", "42")] == [True, True, False]


def test_F05_units_are_converted_or_refused() -> None:
    rule = Expected(kind="number", value=42, units={"km": 1, "m": 0.001})
    answers = ("42 km", "42km", "42", "42,000 m", "42 miles", "42 m", "$42")
    assert [same_answer(text, rule) for text in answers] == [True, True, True, True, False, False, False]


def test_F05_the_unit_does_not_matter_where_the_task_names_none() -> None:
    assert same_number("42 km", 42)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "NaN",
        "inf",
        "None",
        "forty",
        "3 or 4",
        "3, 4",
        "not 3",
        "about 3",
        "more than 3",
        "3-4",
        "1/3",
        "2+1",
        "10^3",
        "3:4",
        "1.2.3",
        "2024-03-03",
        "A3",
        "1,23,45",
        "--3",
        "0x3",
        "3 unless it rains",
        "3\n4",
        "9" * 5000,
    ],
)
def test_F02_what_is_no_single_number(text: str) -> None:
    assert (read_number(text), number_in_sentence(text)) == (None, None)


def test_F02_a_sentence_with_two_numbers_has_none_and_one_with_a_number_twice_has_one() -> None:
    assert number_in_sentence("There are 3 boxes, so the answer: 4 boxes") is None
    assert number_in_sentence("Three: 3, I mean 3 boxes") == 3


@pytest.mark.parametrize("answer", ["21", "1.5", "10", "1 1", "11", "-1", "A1"])
def test_F01_a_part_of_a_number_is_not_the_number(answer: str) -> None:
    assert not same_number(answer, 1)


def test_both_zeros_are_zero() -> None:
    assert same_number("-0", 0)
    assert same_number("0", -0.0)
    assert same_number("-0.00", "0")


def test_a_float_is_compared_as_it_is_written() -> None:
    assert same_number("0.3", 0.3)
    assert not same_number("0.30000000000000004", 0.3)


def test_tolerance_is_absolute_and_includes_its_edge() -> None:
    assert [same_number(text, 10, tolerance=0.1) for text in ("10.1", "9.9", "10.11")] == [True, True, False]


def test_at_a_half_both_neighbours_are_right_and_nothing_between() -> None:
    answers = ("2.345", "2.35", "2.34", "2.3", "2.344", "2.36")
    assert [same_number(text, "2.345", decimals=2) for text in answers] == [True, True, True, False, False, False]


def test_a_number_is_rounded_away_from_a_half_to_its_nearest_neighbour_only() -> None:
    assert roundings(Fraction("2.3451"), 2) == {Fraction("2.35")}
    assert roundings(Fraction("-2.5"), 0) == {Fraction(-2), Fraction(-3)}


@pytest.mark.parametrize("wanted", [float("nan"), float("inf"), "many"])
def test_a_gold_answer_that_is_no_number_is_the_authors_error(wanted: float | str) -> None:
    with pytest.raises(TaskError, match="finite number"):
        same_number("1", wanted)


def test_F07_the_last_box_counts_and_its_wrapping_is_taken_off() -> None:
    text = "First I thought \\boxed{C}, but it is \\boxed{\\text{E}}"
    assert same_text(text, "E")
    assert not same_text(text, "C")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("十", 10),
        ("十五", 15),
        ("二百零三", 203),
        ("一千零一", 1001),
        ("三万五千", 35000),
        ("两亿", 2 * 10**8),
        ("零", 0),
    ],
)
def test_F05_chinese_numerals(text: str, value: int) -> None:
    assert chinese_number(text) == value


@pytest.mark.parametrize("text", ["", "四二", "万", "十十", "四十二个", "百"])
def test_F05_what_is_no_chinese_numeral(text: str) -> None:
    assert chinese_number(text) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3))
def test_every_way_to_write_a_number_is_read_as_that_number(number: Decimal) -> None:
    forms = [
        f"{number}",
        f"{number:,}",
        f"{number:,}".replace(",", " "),
        f"{number:.6e}",
        f"${number:,}",
        f"{number} km",
    ]
    exact = [form for form in forms if "e" not in form or Decimal(form) == number]
    assert {read_number(form) for form in exact} == {Fraction(number)}


def slow_number(text: str) -> Fraction | None:
    """Reads plain digits with commas, one character at a time."""
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text)
    whole, dot, rest = body.partition(".")
    groups = whole.split(",")
    grouped = len(groups) > 1 and 1 <= len(groups[0]) <= 3 and groups[0][0] != "0"
    if not whole or (len(groups) > 1 and not (grouped and all(len(group) == 3 for group in groups[1:]))):
        return None
    value = Fraction(0)
    for character in "".join(groups):
        value = value * 10 + "0123456789".index(character)
    for place, character in enumerate(rest if dot else "", 1):
        value += Fraction("0123456789".index(character), 10**place)
    return sign * value


@given(st.from_regex(r"-?[0-9]{1,4}(,[0-9]{3,4}){0,3}(\.[0-9]{1,3})?", fullmatch=True))
def test_numbers_agree_with_a_slow_reader(text: str) -> None:
    if text.lstrip("-").startswith("0,"):
        return  # a decimal comma: 0,375
    assert read_number(text) == slow_number(text)


@given(st.text(max_size=60))
def test_no_text_breaks_a_comparison(text: str) -> None:
    for expected in (
        Expected(kind="number", value=1, in_sentence=True),
        Expected(kind="text", value="a"),
        Expected(kind="date", value="2024-01-02"),
        Expected(kind="set", value=["a"]),
        Expected(kind="ranking", value=[["a"]]),
        Expected(kind="nothing"),
    ):
        assert same_answer(text, expected) in (True, False)


# ---------------------------------------------------------------- texts, dates, nothing


def test_F01_a_text_must_be_the_whole_answer() -> None:
    assert not same_text("I do not know", "no")
    assert not same_text("Bonn and Kiel", "Bonn")


def test_F02_a_list_of_all_options_is_no_answer() -> None:
    assert not same_text("A or B or C", "A")
    assert not same_set("A or B or C", ["A"])


@pytest.mark.parametrize(
    "answer", ["Bonn", "bonn", " 'Bonn' ", "Bonn.", "Ｂｏｎｎ", "The answer is Bonn.", "Answer: Bonn"]
)
def test_case_width_quotes_and_the_full_stop_do_not_matter(answer: str) -> None:
    assert same_text(answer, "Bonn")


def test_none_may_be_a_name_or_say_that_there_is_nothing() -> None:
    assert same_text("None", "None")
    assert same_nothing("None.")
    assert same_nothing("N/A")
    assert not same_nothing("")
    assert not same_nothing("None of these")
    assert not same_number("None", 0)


@pytest.mark.parametrize(
    "answer",
    ["2024-03-05", "2024/3/5", "5.3.2024", "05.03.2024", "5 March 2024", "March 5, 2024", "5th of Mar 2024",
     "2024-03-05T00:00:00", "2024-03-05 00:00"],
)  # fmt: skip
def test_F05_forms_of_a_date(answer: str) -> None:
    assert same_date(answer, "2024-03-05")


@pytest.mark.parametrize(
    "answer", ["03/05/2024", "5 March", "2024-3", "2024-03-05 or 2024-03-06", "2024-13-05", "30 Feb 2024"]
)
def test_a_date_that_is_none_or_could_be_two(answer: str) -> None:
    assert read_date(answer) is None


def test_a_date_with_slashes_is_read_where_it_can_be_one_day_only() -> None:
    assert read_date("13/3/2024") == read_date("3/13/2024") == date(2024, 3, 13)
    assert read_date("4/4/2024") == date(2024, 4, 4)


# ---------------------------------------------------------------- sets and rankings


@pytest.mark.parametrize(
    "answer",
    [
        "Kiel, Bonn",
        "bonn; kiel",
        "Bonn and Kiel",
        '["Kiel", "Bonn"]',
        "- Bonn\n- Kiel",
        "Bonn, Kiel, Bonn",
        "[Bonn, Kiel]",
    ],
)
def test_a_set_in_any_order_and_form(answer: str) -> None:
    assert same_set(answer, ["Bonn", "Kiel"])


@pytest.mark.parametrize("answer", ["Bonn", "Bonn, Kiel, Ulm", "Bonn or Kiel", "Bonn Kiel", "", "none"])
def test_a_set_with_a_member_too_few_or_too_many(answer: str) -> None:
    assert not same_set(answer, ["Bonn", "Kiel"])


def test_members_with_separators_in_their_names() -> None:
    assert same_set("salt and pepper, oil", ["oil", "salt and pepper"])
    assert same_set("Berlin, Germany; Paris, France", ["Paris, France", "Berlin, Germany"])
    assert same_set("Berlin, Germany", ["Berlin, Germany"])


def test_an_empty_set_is_said_in_words() -> None:
    assert same_set("none", [])
    assert same_set("[]", [])
    assert not same_set("", [])
    assert not same_set("Bonn", [])


def test_a_ranking_keeps_its_order_but_for_ties() -> None:
    ranking = [["Ulm"], ["Bonn", "Kiel"], ["Jena"]]
    assert same_ranking("Ulm, Bonn, Kiel, Jena", ranking)
    assert same_ranking("Ulm, Kiel, Bonn and Jena", ranking)
    assert not same_ranking("Bonn, Ulm, Kiel, Jena", ranking)
    assert not same_ranking("Ulm, Bonn, Bonn, Jena", ranking)
    assert not same_ranking("Ulm, Bonn, Kiel", ranking)


WORDS = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(WORDS, min_size=1, max_size=4))
def test_sets_agree_with_a_slow_reference(said: list[str], wanted: list[str]) -> None:
    slow = all(any(x == y for y in wanted) for x in said) and all(any(x == y for x in said) for y in wanted)
    assert same_set(", ".join(said), wanted) == slow


@given(
    st.lists(WORDS, min_size=1, max_size=4), st.lists(st.lists(WORDS, min_size=1, max_size=2), min_size=1, max_size=3)
)
def test_rankings_agree_with_all_permutations(said: list[str], wanted: list[list[str]]) -> None:
    orders = [
        list(itertools.chain(*order)) for order in itertools.product(*(itertools.permutations(g) for g in wanted))
    ]
    assert same_ranking(", ".join(said), wanted) == (said in orders)


@pytest.mark.parametrize(
    "expected",
    [
        Expected(kind="set", value=[["a"]]),
        Expected(kind="ranking", value=["a"]),
        Expected(kind="text", value=1),
        Expected(kind="number"),
        Expected(kind="number", value=True),
        Expected(kind="date", value="yesterday"),
    ],
)
def test_an_answer_that_does_not_fit_its_kind_is_the_authors_error(expected: Expected) -> None:
    with pytest.raises(TaskError):
        same_answer("a", expected)
