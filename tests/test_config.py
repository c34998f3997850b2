from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.config import (
    Settings,
    apply_override,
    convert,
    differences,
    dump_yaml,
    fingerprint,
    parse_override,
    parse_yaml,
    read_yaml,
    to_plain,
)
from deedrl.errors import ConfigError


class Inner(Settings, frozen=True, kw_only=True):
    rate: float = 0.1
    words: tuple[str, ...] = ()


class Outer(Settings, frozen=True, kw_only=True):
    inner: Inner = Inner()
    count: int = 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("5E-6", 5e-6),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("-3", -3),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("010", "010"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("[1, 2e0]", [1, 2.0]),
    ],
)
def test_yaml_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    read = parse_yaml(text, "x")
    assert read == value
    assert type(read) is type(value)


def test_a_key_given_twice_is_an_error_with_its_line() -> None:
    with pytest.raises(ConfigError, match="line 3: key 'a' is given twice"):
        parse_yaml("a: 1\nb: 2\na: 3\n", "x")


def test_yaml_that_would_make_objects_is_refused() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml("!!python/object/apply:os.system ['true']", "x")


@pytest.mark.parametrize("text", ["seed: " + "9" * 6000, "a: " + "[" * 5000], ids=["digits", "nesting"])
def test_yaml_beyond_the_limits_of_its_reader_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^r\.yaml: a number is too long or the nesting too deep"):
        parse_yaml(text, "r.yaml")


@pytest.mark.parametrize("text", ["a: !!bool maybe", "a: !!timestamp soon", "a: !!int five", "a: !!float x"])
def test_a_value_that_does_not_fit_its_tag_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^r\.yaml: .*a value is not what its tag says"):
        parse_yaml(text, "r.yaml")


def test_merge_keys_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"^r\.yaml: line 2: expected a plain key, got '<<'.*write the keys out"):
        parse_yaml("a: &a {k: 1}\nb: {<<: *a}\n", "r.yaml")


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["1e5", "no", "null", "010", "=", "<<", "1_0"])
)


@given(st.dictionaries(st.text(max_size=8), scalars | st.lists(scalars, max_size=3), max_size=4))
def test_dumped_yaml_reads_back_equal(data: dict[str, object]) -> None:
    assert parse_yaml(dump_yaml(data), "x") == data


def test_unknown_key_names_path_and_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'inner\.rat'; did you mean 'rate'"):
        convert({"inner": {"rat": 1}}, Outer)


def test_wrong_type_names_path_expected_and_got() -> None:
    with pytest.raises(ConfigError, match=r"inner\.rate: expected float, got 'fast' \(str\)"):
        convert({"inner": {"rate": "fast"}}, Outer)


def test_wrong_element_names_its_index() -> None:
    with pytest.raises(ConfigError, match=r"inner\.words\.1: expected str, got 3 \(int\)"):
        convert({"inner": {"words": ["a", 3]}}, Outer)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inner": []}, r"inner: expected mapping, got \[\] \(list\)"),
        ({"inner": {"words": "a"}}, r"inner\.words: expected list, got 'a' \(str\)"),
        ({}, "expected a key 'needed', got none"),
        ({"needed": {1: 2}}, "needed: expected words as keys; write numbers and the like in quotes"),
    ],
)
def test_messages_speak_of_yaml_not_of_json(data: dict[str, object], message: str) -> None:
    class Strict(Outer, frozen=True, kw_only=True):
        needed: dict[str, int]

    with pytest.raises(ConfigError, match=message):
        convert(data, Strict)


def test_override_takes_1e_4_as_a_number() -> None:
    assert parse_override("inner.rate=1e-4") == ("inner.rate", 1e-4)


def test_override_keeps_later_equal_signs_in_the_value() -> None:
    assert parse_override("a='b=c'") == ("a", "b=c")


@pytest.mark.parametrize("text", ["inner.rate", "=3", ""])
def test_override_without_a_path_or_value_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected path\.to\.key=value"):
        parse_override(text)


def test_override_makes_missing_mappings_and_leaves_its_input_alone() -> None:
    data: dict[str, object] = {"count": 2}
    assert apply_override(data, "inner.rate", 0.5) == {"count": 2, "inner": {"rate": 0.5}}
    assert data == {"count": 2}


def test_override_addresses_list_elements_by_name_stage_or_index() -> None:
    data = {"stages": [{"stage": "sft"}, {"stage": "grpo", "name": "again"}]}
    assert apply_override(data, "stages.sft.x", 1)["stages"][0] == {"stage": "sft", "x": 1}
    assert apply_override(data, "stages.again.x", 1)["stages"][1]["x"] == 1
    assert apply_override(data, "stages.1.x", 1)["stages"][1]["x"] == 1


def test_override_of_an_unknown_element_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no element 'stf'; did you mean 'sft'"):
        apply_override({"stages": [{"stage": "sft"}]}, "stages.stf.x", 1)


def test_override_below_a_scalar_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'count' is int and has no keys"):
        apply_override({"count": 1}, "count.x", 1)


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "none.yaml")


def test_a_file_that_is_a_list_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected a mapping of settings, got list"):
        read_yaml(tmp_path / "list.yaml")


def test_fingerprint_ignores_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_settings_do_not_differ_from_what_was_written_of_them() -> None:
    plain = to_plain(Outer(inner=Inner(words=("a", "b"))))
    assert differences(parse_yaml(dump_yaml(plain), "x"), plain) == []


def test_differences_name_the_leaves() -> None:
    old, new = {"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": 1, "c": 3}, "d": [1, 5]}
    assert differences(old, new) == ["a.c: 2 (int) → 3 (int)", "d.1: 2 (int) → 5 (int)"]
