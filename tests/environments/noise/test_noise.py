"""What noise does to a step, and what it leaves alone."""

from __future__ import annotations

import gymnasium
import pytest
from shelf import FINISH, LOOK, TASK, Shelf, put, started

from deedrl import Environment, tool
from deedrl.environments.noise import KINDS, Noise, NoisyEnvironment, asks_again, with_noise
from deedrl.environments.noise.tools import DISTRACTORS
from deedrl.environments.noise.wrapper import MOST_HICCUPS
from deedrl.types import Task


def test_no_noise_is_the_environment_itself():
    shelf = Shelf()
    assert with_noise(shelf, Noise()) is shelf
    assert with_noise(shelf, Noise.at(0.0)) is shelf


def test_a_level_out_of_range_is_refused():
    with pytest.raises(ValueError, match="<= 1"):
        Noise.at(1.1)


def test_levels_are_told_without_those_at_zero():
    assert Noise(failures=0.5).levels() == {"failures": 0.5}
    assert Noise.from_levels({"failures": 0.5, "of_a_later_version": 1.0}) == Noise(failures=0.5)
    assert Noise(delays=0.1).levels() == {"delays": 0.1, "delay_s": 0.2}


@pytest.mark.usefixtures("always")
def test_a_failure_runs_nothing_and_the_same_call_again_runs():
    noisy = started(failures=1.0)
    first, reward, terminated, truncated, info = noisy.step(put("bowl"))
    assert first.startswith("put ")
    assert asks_again(f"Error: {first}\nNote: hm")
    assert (reward, terminated, truncated, info["ok"], info["by_noise"]) == (0.0, False, False, False, True)
    assert "bowl" not in noisy.unwrapped.things
    second, *_, info = noisy.step(put("bowl"))
    assert (second, info["ok"], info["by_noise"]) == ("bowl is on the shelf", True, False)


@pytest.mark.usefixtures("always")
def test_a_failing_tool_cannot_keep_a_job_from_its_end():
    noisy = started(failures=1.0)
    noisy.step(put("bowl"))
    noisy.step(put("bowl"))
    assert noisy.step(FINISH)[2] is False
    _, reward, terminated, _, info = noisy.step(FINISH)
    assert (reward, terminated, info["verdict"].solved) == (1.0, True, True)


@pytest.mark.usefixtures("always")
def test_steps_of_noise_are_few_and_not_counted():
    noisy = started(failures=1.0)
    answers = [noisy.step(put("cup")) for _ in range(Shelf.max_steps + MOST_HICCUPS)]
    assert [info["by_noise"] for *_, info in answers] == [True, False] * MOST_HICCUPS + [False] * 2
    assert [truncated for *_, truncated, _ in answers] == [False] * 9 + [True]
    with pytest.raises(gymnasium.error.ResetNeeded):
        noisy.step(LOOK)


@pytest.mark.usefixtures("always")
def test_half_an_answer_is_marked_and_the_same_call_gives_the_whole_without_running_again():
    noisy = started(partial=1.0)
    half, *_, info = noisy.step(LOOK)
    assert half == "cup 1\njug 2\n[partial answer: call again for the whole]"
    assert asks_again(half)
    assert info["by_noise"] is False
    whole, *_, info = noisy.step(LOOK)
    assert whole == "cup 1\njug 2\npot 3\npan 4"
    assert (info["by_noise"], noisy.unwrapped.looks) == (True, 1)


@pytest.mark.usefixtures("always")
def test_what_was_left_out_is_not_given_after_a_change():
    noisy = started(partial=1.0)
    noisy.step(LOOK)
    noisy.step(put("bowl"))
    *_, info = noisy.step(LOOK)
    assert info["by_noise"] is False
    assert noisy.unwrapped.looks == 2
    assert noisy.step(LOOK)[0].endswith("bowl")


@pytest.mark.usefixtures("always")
def test_only_tools_that_change_nothing_answer_by_half_or_from_before():
    noisy = started(partial=1.0, stale=1.0)
    thing = "a bowl of many words that could be halved"
    assert [noisy.step(put(thing))[0] for _ in range(2)] == [f"{thing} is on the shelf"] * 2


@pytest.mark.usefixtures("always")
def test_an_answer_from_before_a_change_is_marked_and_the_same_call_is_current():
    noisy = started(stale=1.0)
    before = noisy.step(LOOK)[0]
    assert noisy.step(LOOK)[0] == before  # nothing has changed
    noisy.step(put("bowl"))
    stale, *_, info = noisy.step(LOOK)
    assert stale == f"{before}\n[answer of an earlier call: call again for the current one]"
    assert info["by_noise"] is True
    assert noisy.step(LOOK)[0] == f"{before}\nbowl"


@pytest.mark.usefixtures("always")
def test_distracting_tools_are_listed_work_and_cost_a_step():
    noisy = started(distractors=1.0)
    assert list(noisy.toolbox) == ["look", "put", "finish", *DISTRACTORS]
    answer, *_, info = noisy.step({"tool_name": "get_weather", "parameters": {"place": "Bergen"}})
    assert (answer, info["ok"]) == ("No weather report is stored for this place.", True)
    answer, *_, info = noisy.step({"tool_name": "get_weather", "parameters": {}})
    assert (answer, info["ok"]) == ("get_weather: missing parameter 'place' (string)", False)
    news = {"tool_name": "list_announcements", "parameters": {}}
    assert [noisy.step(news)[3] for _ in range(4)] == [False, False, False, True]


@pytest.mark.usefixtures("always")
def test_a_distracting_tool_gives_way_to_a_real_one():
    class Weather(Shelf):
        @tool
        def get_weather(self) -> str:
            return "mild"

    noisy = NoisyEnvironment(Weather(), Noise(distractors=1.0))
    noisy.reset(seed=1, options={"task": TASK})
    assert noisy.step({"tool_name": "get_weather", "parameters": {}})[0] == "mild"


@pytest.mark.usefixtures("always")
def test_the_tools_of_a_task_are_the_same_under_every_seed():
    orders = {tuple(started(seed, distractors=0.5, tool_order=1.0).toolbox) for seed in range(8)}
    assert len(orders) == 1
    assert orders.pop()[:3] != ("look", "put", "finish")


@pytest.mark.usefixtures("always")
def test_a_tool_that_takes_plain_text_stays_alone_and_is_always_there():
    class Answer(Environment):
        @tool(plain_text=True, ends_episode=True)
        def answer(self, text: str) -> str:
            return "thanks"

        def verify(self, task: Task) -> bool:
            return True

    noisy = NoisyEnvironment(Answer(), Noise(failures=1.0, distractors=1.0, tool_order=1.0))
    noisy.reset(seed=1, options={"task": TASK})
    assert list(noisy.toolbox) == ["answer"]
    assert noisy.step("hello")[2] is True


@pytest.mark.usefixtures("always")
def test_delays_stay_below_a_quarter_of_the_tools_limit():
    slept: list[float] = []
    for seed in range(20):
        started(seed, slept.append, delays=1.0, delay_s=5.0).step(FINISH)
    assert len(slept) == 20
    assert min(slept) > 0.0
    assert max(slept) <= 0.1  # finish has 0.4 s


def transcript(seed, **kinds):
    noisy = started(seed, **kinds)
    return [noisy.step(action) for action in (LOOK, put("cup"), LOOK, LOOK, put("jug"), LOOK)]


def test_equal_seeds_give_equal_noise_and_other_seeds_other_noise():
    kinds = dict.fromkeys(KINDS, 1.0)
    assert transcript(3, **kinds) == transcript(3, **kinds)
    assert len({str(transcript(seed, **kinds)) for seed in range(10)}) > 5


def test_a_kind_does_not_move_the_noise_of_another():
    for seed in range(10):
        alone = [answer[4]["by_noise"] for answer in transcript(seed, failures=1.0)]
        beside = [answer[4]["by_noise"] for answer in transcript(seed, failures=1.0, wording=1.0, delays=1.0)]
        assert alone == beside


def test_without_a_seed_each_episode_has_other_noise():
    noisy = started(failures=1.0)
    seen = set()
    for _ in range(20):
        noisy.reset(options={"task": TASK})
        seen.add(tuple(noisy.step(put("cup"))[4]["by_noise"] for _ in range(4)))
    assert len(seen) > 2


def test_what_is_no_action_is_answered_as_without_noise():
    noisy, bare = started(**dict.fromkeys(KINDS, 1.0)), Shelf()
    bare.reset(seed=1, options={"task": TASK})
    for wrong in ({"tool_name": "lok", "parameters": {}}, {"tool_name": 3}):
        assert noisy.step(wrong)[1:4] == bare.step(wrong)[1:4]
