"""Reward models: what is read, losses and gradients against plain passes, learning, exact state, saved weights."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from deedrl.errors import ModelError
from deedrl.policies.local.model import add_adapter
from deedrl.training import packing, reward_model
from deedrl.training.headed import HeadedTrunk, put_adapter_beside
from deedrl.training.learner import Learner
from deedrl.training.packing import pack
from deedrl.training.preferences import Candidate
from deedrl.training.rank_agreement import Comparison, Place
from deedrl.training.reward_labels import calibration_set, compared_turns, sibling_labels
from deedrl.training.reward_model import Reading, RewardModel, StepLabel, pairs_lesson, readings, steps_lesson
from deedrl.training.samples import samples_from


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def adapted(kit):
    return add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)


def full(kit, micro_batch_tokens=100_000):
    """A model on all weights of a tiny trunk, with a head that already says something."""
    loaded = kit.load()
    trunk = HeadedTrunk(loaded.model, {n: p for n, p in loaded.model.named_parameters() if p.requires_grad})
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        trunk.head.linear.weight.copy_(torch.randn(trunk.head.linear.weight.shape, generator=generator) / 5)
        trunk.head.linear.bias.fill_(0.25)
    return RewardModel(trunk, micro_batch_tokens=micro_batch_tokens)


def beside(loaded, micro_batch_tokens=100_000):
    adapter = put_adapter_beside(loaded.model, "reward", "a reward model")
    return RewardModel(
        HeadedTrunk(loaded.model, adapter.trained, adapter.active), micro_batch_tokens=micro_batch_tokens
    )


@pytest.fixture
def trajectories(kit):
    """Four episodes of one prompt with tool tokens between turns; "split" was rendered anew before its third turn."""
    head = kit.ids(900, 7)
    turns = {
        "a": [(head, kit.ids(1, 3)), (kit.ids(2, 2), kit.ids(3, 2)), (kit.ids(4, 4), kit.ids(5, 3))],
        "b": [(head, kit.ids(1, 3)), (kit.ids(2, 2), kit.ids(6, 5))],
        "c": [(head, kit.ids(7, 1))],
        "split": [(head, kit.ids(1, 3)), (kit.ids(8, 2), kit.ids(9, 2)), (kit.ids(10, 9), kit.ids(11, 4))],
    }
    return {name: kit.trajectory(name, 1.0, of, breaks=(2,) if name == "split" else ()) for name, of in turns.items()}


@pytest.fixture
def episodes(trajectories):
    return {name: readings(samples_from(trajectory)) for name, trajectory in trajectories.items()}


LAST = [Place(name) for name in ("a", "b", "c", "split")]
TURNS = [Place("a", 0), Place("a", 1), Place("a", 2), Place("b", 1), Place("split", 1), Place("split", 2)]
PAIRS = [
    Comparison(task_id="t", better=Place("a"), worse=Place("b")),
    Comparison(task_id="t", better=Place("a"), worse=Place("c")),
    Comparison(task_id="t", better=Place("split"), worse=Place("c")),
    Comparison(task_id="t", better=Place("b"), worse=Place("split"), tie=True),
]
LABELS = [StepLabel(task_id="t", place=p, label=v) for p, v in zip(TURNS, [1, 0.25, 0, 1, 0.5, 0], strict=True)]


def plain_score(plain, head, trajectory, step):
    """By a plain pass over all tokens that came before the end of this turn, in its own conversation."""
    ids: list[int] = []
    for each in trajectory.steps[: step + 1]:
        if not each.completion.extends_previous:
            ids = []
        ids += [*each.completion.prompt_ids, *each.completion.token_ids]
    return head(plain.model(torch.tensor([ids])).last_hidden_state[0, -1])


def plain_at(plain, model, trajectories, place):
    trajectory = trajectories[place.episode_id]
    step = len(trajectory.steps) - 1 if place.step is None else place.step
    return plain_score(plain, model.trunk.head, trajectory, step)


# ---------------------------------------------------------------- what is read


def test_a_reading_ends_with_the_last_sampled_token_and_knows_its_turns(trajectories):
    a, b, _, split = (readings(samples_from(trajectories[place.episode_id])) for place in LAST)
    [whole] = a
    assert (whole.ends, whole.steps, len(whole.ids)) == ((9, 13, 20), (0, 1, 2), 21)
    assert [reading.ends for reading in b] == [(9, 16)]
    assert [(reading.ends, reading.steps) for reading in split] == [((9, 13), (0, 1)), ((12,), (2,))]


@pytest.mark.parametrize("micro_batch_tokens", [1, 25, 100_000])
@pytest.mark.parametrize("together", [1, 64])
def test_scores_are_those_of_a_plain_pass_at_the_last_action_token(
    kit, trajectories, episodes, monkeypatch, micro_batch_tokens, together
):
    monkeypatch.setattr(reward_model, "READ_TOGETHER", together)
    model, plain = full(kit, micro_batch_tokens), kit.plain()
    found = model.scores(episodes, LAST) | model.scores(episodes, TURNS)
    for place, score in found.items():
        expected = plain_at(plain, model, trajectories, place)
        assert score == pytest.approx(float(expected.detach()), abs=1e-5), place


def test_what_follows_the_last_action_is_not_read_and_what_a_tool_said_before_it_is(kit, episodes):
    model = full(kit)
    [reading] = episodes["a"]
    before = model.scores(episodes, [Place("a")])[Place("a")]
    longer = {"a": (msgspec.structs.replace(reading, ids=(*reading.ids, 7, 7)),)}
    assert model.scores(longer, [Place("a")])[Place("a")] == before
    # Position 11 is a tool's: no place is there, and later ones read it as context.
    assert 11 not in reading.ends
    changed = {"a": (msgspec.structs.replace(reading, ids=(*reading.ids[:11], 3, *reading.ids[12:])),)}
    scores, others = model.scores(episodes, TURNS[:3]), model.scores(changed, TURNS[:3])
    assert others[Place("a", 0)] == pytest.approx(scores[Place("a", 0)], abs=1e-6)
    assert abs(others[Place("a", 1)] - scores[Place("a", 1)]) > 1e-3


def test_a_turn_that_was_not_sampled_is_refused_by_name(kit, episodes):
    with pytest.raises(ValueError, match="step of episode b that was sampled, got 5"):
        full(kit).scores(episodes, [Place("b", 5)])


# ---------------------------------------------------------------- losses and gradients


def test_losses_by_hand():
    lesson = pairs_lesson(PAIRS[:1], smoothing=0.1, centre=0.5)
    scores = torch.tensor([1.0, -2.0], dtype=torch.float64)
    expected = -(0.9 * math.log(1 / (1 + math.exp(-3))) + 0.1 * math.log(1 / (1 + math.exp(3)))) + 0.5 * 1.0
    assert float(lesson.loss(scores)) == pytest.approx(expected)
    tie = pairs_lesson(PAIRS[3:], smoothing=0.0, centre=0.0)
    assert float(tie.loss(torch.zeros(2).double())) == pytest.approx(math.log(2))
    assert float(tie.loss(torch.tensor([3.0, 0.0]).double())) > math.log(2)
    assert tie.figures(torch.zeros(2).double()) == {}
    steps = steps_lesson([StepLabel(task_id="t", place=Place("a", 0), label=0.25)])
    assert float(steps.loss(torch.zeros(1).double())) == pytest.approx(math.log(2))
    assert float(steps.loss(torch.tensor([-math.log(3)]).double())) == pytest.approx(
        -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    )


def test_overconfident_scores_lose_nothing_to_overflow():
    loss = pairs_lesson(PAIRS[:1], smoothing=0.0, centre=0.0).loss
    assert float(loss(torch.tensor([-1e4, 1e4]).double())) == pytest.approx(2e4)
    assert float(loss(torch.tensor([1e4, -1e4]).double())) == 0.0


def gradient_of(model, episodes, lesson, monkeypatch):
    seen = {}

    def look(optimisers, limit):
        seen.update({n: p.grad.clone() for o, _ in optimisers for n, p in o.parameters.items() if p.grad is not None})
        return [0.0], True

    monkeypatch.setattr("deedrl.training.headed.step_together", look)
    figures = model.update(episodes, lesson, rate=0.0, max_grad_norm=1e9)
    return figures["loss"], seen


@pytest.mark.parametrize("micro_batch_tokens", [1, 25, 100_000])
@pytest.mark.parametrize("kind", ["pairs", "steps"])
def test_C09_loss_and_gradient_equal_plain_rows_under_any_micro_batch(
    kit, trajectories, episodes, monkeypatch, kind, micro_batch_tokens
):
    model, plain = full(kit, micro_batch_tokens), kit.plain()
    lesson = pairs_lesson(PAIRS, smoothing=0.1, centre=0.2) if kind == "pairs" else steps_lesson(LABELS)
    loss, found = gradient_of(model, episodes, lesson, monkeypatch)
    scores = {place: plain_at(plain, model, trajectories, place) for place in lesson.places}
    if kind == "pairs":
        terms = []
        for one in PAIRS:
            better, worse = scores[one.better], scores[one.worse]
            win = 0.5 if one.tie else 0.9
            likelihood = win * logsigmoid(better - worse) + (1 - win) * logsigmoid(worse - better)
            terms.append(0.2 * (better + worse) ** 2 - likelihood)
        expected = torch.stack(terms).mean()
    else:
        labels = torch.tensor([one.label for one in LABELS])
        expected = binary_cross_entropy_with_logits(torch.stack([scores[one.place] for one in LABELS]), labels)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    expected.backward()
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None and not name.startswith("lm_head"):
            assert torch.allclose(found[name], parameter.grad, atol=1e-5, rtol=1e-3), name


def test_an_update_that_is_not_finite_changes_nothing(kit, episodes):
    model = full(kit)
    before = {name: value.clone() for name, value in model.tensors().items()}
    lesson = pairs_lesson(PAIRS, smoothing=0.0, centre=0.0)
    nan = reward_model.Lesson(lesson.places, lambda scores: lesson.loss(scores) * math.nan, lesson.figures)
    assert model.update(episodes, nan, rate=1e-2, max_grad_norm=1.0)["skipped_update"] == 1.0
    assert all(torch.equal(value, before[name]) for name, value in model.tensors().items())


# ---------------------------------------------------------------- an adapter of its own


def test_it_learns_beside_a_policy_that_notices_nothing(kit, episodes):
    loaded = adapted(kit)
    policy = Learner(loaded)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(0.05)
    samples = kit.family()
    batches = pack(samples, micro_batch_tokens=1000)
    before = policy.logprobs(batches)
    model = beside(loaded)
    for _ in range(3):
        model.update(episodes, pairs_lesson(PAIRS, smoothing=0.0, centre=0.0), rate=1e-2, max_grad_norm=1.0)
    assert loaded.model.active_adapters == ["default"]
    assert all(parameter.requires_grad for parameter in policy.parameters.values())
    assert sorted(Learner(loaded).parameters) == sorted(policy.parameters), "a later stage trains the policy alone"
    for one, other in zip(before, policy.logprobs(batches), strict=True):
        assert torch.equal(one, other)
    scores = model.scores(episodes, LAST)
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(0.3)
    assert model.scores(episodes, LAST) == scores, "the policy's adapter is no part of the reward model"


def test_without_an_adapter_there_is_nothing_to_put_another_beside(kit):
    with pytest.raises(ModelError, match="a reward model on an adapter of its own needs a policy with one"):
        put_adapter_beside(kit.load().model, "reward", "a reward model")


# ---------------------------------------------------------------- learning


def planted(kit, count, start=0):
    """Episodes of as many tasks; the better one of each has token 251 in its last turn, wherever tools have it too."""
    comparisons, episodes = [], {}
    for task in range(start, start + count):
        prompt = kit.ids(5000 + task, 6)
        for side, token in (("good", 251), ("bad", 17)):
            name = f"{side}-{task}"
            turns = [
                (prompt, kit.ids(6000 + 2 * task + (side == "good"), 3)),
                ([251, *kit.ids(7000 + task, 2)], [*kit.ids(8000 + task, 2), token, 3]),
            ]
            episodes[name] = readings(samples_from(kit.trajectory(name, 1.0, turns, task=f"t{task}")))
        comparisons.append(Comparison(task_id=f"t{task}", better=Place(f"good-{task}"), worse=Place(f"bad-{task}")))
    return comparisons, episodes


def test_planted_preferences_are_ranked_on_tasks_that_were_not_learnt_from(kit):
    learnt, episodes = planted(kit, 12)
    held, others = planted(kit, 12, start=100)
    model, calibration = beside(adapted(kit)), calibration_set(held, others)
    start = calibration.agreement(model.scores(calibration.episodes, calibration.places))
    assert start.accuracy == 0.5, "a fresh head says the same of all"
    for _ in range(25):
        figures = model.update(episodes, pairs_lesson(learnt, smoothing=0.0, centre=0.01), rate=1e-2, max_grad_norm=1.0)
    end = calibration.agreement(model.scores(calibration.episodes, calibration.places))
    assert figures["pair_accuracy"] == 1.0
    assert (end.accuracy or 0) > 0.9
    assert (end.tau or 0) > 0.8


def test_a_process_model_learns_which_turns_were_right(kit):
    comparisons, episodes = planted(kit, 10)
    labels = [
        StepLabel(task_id=one.task_id, place=Place(place.episode_id, 1), label=label)
        for one in comparisons
        for place, label in ((one.better, 1.0), (one.worse, 0.0))
    ]
    model = beside(adapted(kit))
    for _ in range(25):
        figures = model.update(episodes, steps_lesson(labels), rate=1e-2, max_grad_norm=1.0)
    assert figures["step_accuracy"] == 1.0
    _, others = planted(kit, 6, start=100)
    scores = model.scores(others, [Place(name, 1) for name in others])
    right = [(score > 0) == place.episode_id.startswith("good") for place, score in scores.items()]
    assert sum(right) >= 11


def test_C17_steps_saved_loaded_and_more_equal_all_at_once(kit, episodes):
    def run(model, steps):
        for _ in range(steps):
            model.update(episodes, pairs_lesson(PAIRS, smoothing=0.0, centre=0.1), rate=1e-2, max_grad_norm=1.0)
        return model

    straight, first = run(beside(adapted(kit)), 6), run(beside(adapted(kit)), 3)
    second = beside(adapted(kit))
    second.load_tensors(first.tensors())
    run(second, 3)
    one, other = straight.tensors(), second.tensors()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------- labels


def candidate(trajectory, solved):
    samples = tuple(samples_from(trajectory))
    return Candidate(
        episode_id=trajectory.episode_id,
        task_id="t",
        role="agent",
        samples=samples,
        solved=solved,
        reward=float(solved),
        steps=len(trajectory.steps),
        action_tokens=sum(sample.action_tokens for sample in samples),
    )


def test_turns_are_labelled_by_what_became_of_siblings_that_went_the_same_way(trajectories):
    outcomes = {"a": True, "b": False, "c": False, "split": True}
    found = {
        one.place: one.label for one in sibling_labels([candidate(trajectories[n], v) for n, v in outcomes.items()])
    }
    assert found[Place("a", 0)] == found[Place("b", 0)] == found[Place("split", 0)] == pytest.approx(2 / 3)
    assert found[Place("c", 0)] == 0.0
    assert (found[Place("a", 1)], found[Place("b", 1)], found[Place("split", 2)]) == (1.0, 0.0, 1.0)
    assert len(found) == 3 + 2 + 1 + 3


def test_turns_of_different_labels_are_compared_within_their_task():
    labels = [*LABELS, StepLabel(task_id="u", place=Place("x", 0), label=0.0)]
    found = compared_turns(labels, seed=1)
    values = {one.place: one.label for one in labels}
    assert all(values[one.better] > values[one.worse] and one.task_id == "t" for one in found)
    assert len(found) == 13  # of 15 pairs two have equal labels
    assert compared_turns(labels, seed=1) == found


def test_a_calibration_set_keeps_its_tokens_and_its_hash(episodes):
    first = calibration_set(PAIRS[:1], episodes)
    assert set(first.episodes) == {"a", "b"}
    again = msgspec.json.decode(msgspec.json.encode(first), type=type(first))
    assert again == first
    assert again.hash == first.hash
    other = Reading(ids=(1, 2), ends=(1,), steps=(0,))
    assert calibration_set(PAIRS[:1], episodes | {"b": (other,)}).hash != first.hash
