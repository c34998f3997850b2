import msgspec
import pytest

from deedrl.errors import ConfigError
from deedrl.store.query import (
    any_of,
    family,
    negated,
    reward_between,
    scored,
    select,
    solved,
    source,
    status,
    status_of,
    termination,
    tier,
    worst_tier,
)
from deedrl.types import Action, Failure, Provenance, TerminationReason, Verdict


@pytest.fixture
def episodes(make):
    step = make().steps[0]
    repaired = msgspec.structs.replace(step, action=Action(tool_name="t", tier="repair"))
    return [
        make("good", family="refund", provenance=Provenance(source="demonstration")),
        make("bad", reward=0.0, verdict=Verdict(solved=False), steps=(step, repaired)),
        make("unjudged", verdict=None, breakdown=None, termination=TerminationReason.STEP_LIMIT),
        make("broken", verdict=None, breakdown=None, failure=Failure(kind="E", phase="reset", message=""), steps=()),
    ]


def kept(episodes, *filters):
    return [trajectory.episode_id for trajectory in select(episodes, *filters)]


def test_status_of_each_kind(episodes):
    assert [status_of(t) for t in episodes] == ["solved", "failed", "unjudged", "errored"]


def test_no_filter_keeps_all(episodes):
    assert len(kept(episodes)) == 4


def test_status_filter_takes_several(episodes):
    assert kept(episodes, status("solved", "errored")) == ["good", "broken"]


def test_an_unknown_status_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'solved'"):
        status("sovled")


def test_filters_combine_with_and(episodes):
    assert kept(episodes, solved, family("refund", "other")) == ["good"]
    assert kept(episodes, solved, family("other")) == []


def test_source_filter(episodes):
    assert kept(episodes, source("demonstration", "guided")) == ["good"]


def test_an_unscored_episode_is_in_no_reward_range(episodes):
    assert kept(episodes, reward_between(0.0, 1.0)) == ["good", "bad"]
    assert kept(episodes, reward_between(0.25, 1.0)) == ["good"]
    assert kept(episodes, scored) == ["good", "bad"]


def test_an_empty_range_is_an_error():
    with pytest.raises(ConfigError, match="low <= high"):
        reward_between(1.0, 0.0)


def test_tier_is_the_worst_of_all_steps(episodes):
    assert [worst_tier(t) for t in episodes] == ["strict", "repair", "strict", None]
    assert kept(episodes, tier("repair")) == ["bad"]


def test_termination_filter(episodes):
    assert kept(episodes, termination(TerminationReason.STEP_LIMIT)) == ["unjudged"]


def test_any_of_and_negated(episodes):
    assert kept(episodes, any_of(solved, status("errored"))) == ["good", "broken"]
    assert kept(episodes, negated(solved)) == ["bad", "unjudged", "broken"]


def test_a_lambda_is_a_filter(episodes):
    assert kept(episodes, lambda t: t.episode_id == "bad") == ["bad"]


def test_selecting_is_lazy(episodes):
    stream = select(iter(episodes), solved)
    assert next(stream).episode_id == "good"
