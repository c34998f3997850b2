import json
import math
import re
from types import MappingProxyType

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.errors import StoreError
from deedrl.store.codec import InvalidRecord, NewerSchema, TornRecord, decode, encode, find_nonfinite
from deedrl.types import (
    Action,
    Completion,
    Failure,
    Provenance,
    RewardBreakdown,
    Step,
    TerminationReason,
    TermScore,
    ToolOutput,
    Trajectory,
    Verdict,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
steps = st.builds(
    Step,
    index=st.integers(0, 9),
    observation=texts,
    completion=st.builds(
        Completion,
        text=texts,
        token_ids=st.lists(st.integers(0, 2**17), max_size=5).map(tuple),
        logprobs=st.lists(numbers, max_size=5).map(tuple),
        finish_reason=st.sampled_from(["stop", "length"]),
    ),
    action=st.builds(
        Action,
        tool_name=st.none() | texts,
        parameters=st.dictionaries(texts, values, max_size=3),
        tier=st.sampled_from(["strict", "repair", "reject"]),
        repairs=st.lists(texts, max_size=2).map(tuple),
    ),
    tool_output=st.none() | st.builds(ToolOutput, text=texts, ok=st.booleans(), duration_s=numbers),
    reward=st.none() | numbers,
)
trajectories = st.builds(
    Trajectory,
    episode_id=texts,
    task_id=texts,
    steps=st.lists(steps, max_size=3).map(tuple),
    termination=st.sampled_from(list(TerminationReason)),
    failure=st.none() | st.builds(Failure, kind=texts, phase=st.sampled_from(["reset", "step"]), message=texts),
    verdict=st.none() | st.builds(Verdict, solved=st.booleans(), milestones=st.dictionaries(texts, st.booleans())),
    breakdown=st.none()
    | st.builds(
        RewardBreakdown,
        total=st.none() | numbers,
        terms=st.dictionaries(texts, st.builds(TermScore, value=st.none() | numbers, weight=numbers), max_size=2),
    ),
    provenance=st.builds(Provenance, run_id=texts, seed=st.integers(0, 2**63), tool_versions=st.just({"a": "1"})),
    shortest_steps=st.none() | st.integers(0, 9),
)


@given(trajectories)
def test_round_trip(trajectory):
    line = encode(trajectory)
    assert decode(line) == trajectory
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@given(trajectories)
def test_lines_are_strict_json_for_other_readers(trajectory):
    def refuse(word):
        raise AssertionError(word)

    assert json.loads(encode(trajectory), parse_constant=refuse)["episode_id"] == trajectory.episode_id


@given(trajectories, st.data())
def test_E01_no_proper_prefix_of_a_line_decodes(trajectory, data):
    line = encode(trajectory).rstrip(b"\n")
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises((TornRecord, InvalidRecord)):
        decode(line[:cut])


def test_every_line_names_schema_version_and_provenance(make):
    line = json.loads(encode(make()))
    assert line["schema_version"] == 1
    assert line["provenance"]["run_id"] == "r1"
    assert line["provenance"]["config_hash"] == "c1"


def test_unknown_fields_are_ignored(make):
    line = json.loads(encode(make()))
    line["mood"] = "sunny"
    line["steps"][0]["colour"] = {"r": 1}
    assert decode(json.dumps(line).encode()) == make()


def test_newer_schema_says_what_to_do(make):
    line = encode(make(schema_version=2))
    with pytest.raises(NewerSchema, match=r"version 1 or older, got 2; upgrade"):
        decode(line)


def test_newer_schema_with_changed_types_is_not_called_invalid():
    with pytest.raises(NewerSchema):
        decode(b'{"schema_version": 2, "episode_id": "e1", "task_id": "t1", "steps": {"packed": true}}')


@pytest.mark.parametrize("line", [b'{"episode_id":"e1","reward":"high"}', b"[1, 2]", b"null", b'"text"'])
def test_E03_json_that_is_no_trajectory(line):
    with pytest.raises(InvalidRecord):
        decode(line)


def test_E03_wrong_type_names_the_field(make):
    line = json.loads(encode(make()))
    line["breakdown"]["total"] = "high"
    with pytest.raises(InvalidRecord, match=r"breakdown\.total"):
        decode(json.dumps(line).encode())


@pytest.mark.parametrize("line", [b'{"episode_id":"e1","ta', b"\x00\x00\x00", b"{} {}", b'{"a":"\xff"}', b"{'a': 1}"])
def test_E01_not_json(line):
    with pytest.raises(TornRecord):
        decode(line)


def test_E06_lone_surrogate_is_replaced_and_the_rest_is_kept(make):
    trajectory = make(observation="\ud800abc")
    copy = decode(encode(trajectory))
    assert copy.steps[0].observation == "�abc"
    assert copy.steps[0].completion == trajectory.steps[0].completion


def test_E06_two_halves_of_one_character_are_joined(make):
    assert decode(encode(make(observation="\ud83d\ude00 \udc00"))).steps[0].observation == "😀 �"


def test_E06_lone_surrogate_in_a_parameter_name(make):
    step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters={"k\udfff": "v\ud800"}))
    assert decode(encode(make(steps=(step,)))).steps[0].action.parameters == {"k�": "v�"}


def test_nul_characters_survive(make):
    trajectory = make(observation="a\x00b")
    assert decode(encode(trajectory)) == trajectory
    assert b"\x00" not in encode(trajectory)


def test_E06_H14_texts_between_numbers_are_cleaned_too(make):
    parameters = {"a": [1, "k\ud800", 2.5], "b": [1, "sk-canary0123456789abcdef", 2]}
    step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters=parameters))
    stored = decode(encode(make(steps=(step,)))).steps[0].action.parameters
    assert stored == {"a": [1, "k�", 2.5], "b": [1, "[redacted]", 2]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_E07_reward_that_is_no_number_is_refused(make, value):
    with pytest.raises(StoreError, match=r"episode 'e1'.*breakdown\.total"):
        encode(make(reward=value))


def test_E07_the_exact_logprob_is_named(make):
    step = make().steps[0]
    completion = msgspec.structs.replace(step.completion, logprobs=(-0.5, math.nan, -0.1))
    broken = make(steps=(step, msgspec.structs.replace(step, completion=completion)))
    with pytest.raises(StoreError, match=r"steps\[1\]\.completion\.logprobs\[1\]"):
        encode(broken)


def test_E07_found_inside_free_parameters(make):
    step = msgspec.structs.replace(
        make().steps[0], action=Action(tool_name="t", parameters={"a": [{"b": math.inf}, "x"]})
    )
    assert find_nonfinite(make(steps=(step,))) == "steps[0].action.parameters.a[0].b"


@given(trajectories, st.data())
def test_E07_one_bad_number_anywhere_is_found_and_named(trajectory, data):
    bad = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    extra = Action(tool_name="t", parameters=data.draw(hiding_places(bad)))
    step = Step(index=0, observation="", completion=Completion(text=""), action=extra)
    broken = msgspec.structs.replace(trajectory, steps=(*trajectory.steps, step))
    with pytest.raises(StoreError, match=re.escape(find_nonfinite(broken))):
        encode(broken)


def hiding_places(bad):
    """Parameters that hold `bad` somewhere, among other things."""
    around = st.lists(values, max_size=2)
    inside = st.recursive(
        st.just(bad),
        lambda inner: (
            st.tuples(around, inner, around).map(lambda parts: [*parts[0], parts[1], *parts[2]])
            | st.tuples(texts, inner).map(lambda parts: {parts[0]: parts[1]})
        ),
        max_leaves=3,
    )
    return inside.map(lambda value: {"a": 1, "b": value})


def test_E07_numbers_of_rarer_types_are_looked_at_too(make):
    class Exact(float):
        pass

    for bad in (numpy.float64("nan"), Exact("inf"), MappingProxyType({"x": math.nan})):
        step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters={"a": (1, bad)}))
        with pytest.raises(StoreError, match=r"parameters\.a\[1\]"):
            encode(make(steps=(step,)))


def test_H14_keys_in_enums_and_names_of_parameters_are_found(make):
    parameters = {"sk-canary0123456789abcdef": 1}
    step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters=parameters))
    assert b"canary" not in encode(make(steps=(step,)))


def test_huge_numbers_whose_sum_overflows_are_finite(make):
    step = make().steps[0]
    completion = msgspec.structs.replace(step.completion, logprobs=(-1e308, -1e308, -1e308))
    trajectory = make(steps=(msgspec.structs.replace(step, completion=completion),))
    assert decode(encode(trajectory)) == trajectory


def test_E07_reading_refuses_numbers_that_overflow(make):
    line = encode(make(reward=0.5)).replace(b'"total":0.5', b'"total":1e999')
    with pytest.raises((TornRecord, InvalidRecord)):
        decode(line)


def test_E07_reading_refuses_nan_literals(make):
    line = encode(make(reward=0.5)).replace(b'"total":0.5', b'"total":NaN')
    with pytest.raises(TornRecord):
        decode(line)


def test_values_json_cannot_hold_are_refused_by_name(make):
    step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters={"a": object()}))
    with pytest.raises(StoreError, match="episode 'e1'"):
        encode(make(steps=(step,)))


def test_H14_key_in_a_tool_result_is_not_stored(make):
    line = encode(make(observation="config:\nsk-canary0123456789abcdef"))
    assert b"canary" not in line
    assert decode(line).steps[0].observation == "config:\n[redacted]"


def test_H14_a_job_about_passwords_is_stored_as_it_is(make):
    trajectory = make(observation="password: hunter2secret, token: 12345678")
    assert decode(encode(trajectory)) == trajectory


@pytest.mark.parametrize("text", ["x", "\ud800"])
def test_parameters_that_contain_themselves_are_refused(make, text):
    parameters = {"text": text}
    parameters["self"] = parameters
    step = msgspec.structs.replace(make().steps[0], action=Action(tool_name="t", parameters=parameters))
    with pytest.raises(StoreError, match="expected values that JSON can hold"):
        encode(make(steps=(step,)))
