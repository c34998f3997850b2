"""The DPO update on a tiny model against a plain pass row by row, and its reference."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from torch.nn.functional import logsigmoid

from deedrl.policies.local.model import add_adapter
from deedrl.training import dpo, packing
from deedrl.training.dpo import (
    DpoUpdate,
    measure_preferences,
    recorded,
    recorded_logprobs,
    update_preferences,
    with_logprobs,
)
from deedrl.training.learner import Learner
from deedrl.training.preferences import PreferencePair

VARIANTS = ("sigmoid", "ipo", "length_normalised")


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def settings(**changes):
    chosen = {
        "learning_rate": 0.0,
        "max_grad_norm": 1e9,
        "micro_batch_tokens": 100_000,
        "loss": "sigmoid",
        "beta": 0.1,
        "label_smoothing": 0.0,
        "sft_coefficient": 0.0,
    }
    return DpoUpdate(**(chosen | changes))


def pair(chosen, rejected):
    return PreferencePair(
        kind="outcome", task_id="t", chosen=chosen, rejected=rejected, margin=1.0, chosen_tokens=0, rejected_tokens=0
    )


@pytest.fixture
def episodes(kit):
    """Five episodes of two tasks, with tool tokens between turns; "split" was rendered anew after its second turn."""
    head, one, two = kit.ids(900, 6), kit.ids(901, 3), kit.ids(902, 4)
    split = [
        kit.sample("split", [*head, *one], kit.ids(1, 3), kit.ids(2, 2), kit.ids(3, 2)),
        kit.sample("split", [*head, *kit.ids(4, 7)], kit.ids(5, 4)),
    ]
    rest = {
        "a": kit.sample("a", [*head, *one], kit.ids(6, 4), kit.ids(7, 3), kit.ids(8, 2)),
        "b": kit.sample("b", [*head, *one], [*kit.ids(6, 2), *kit.ids(9, 5)]),
        "c": kit.sample("c", [*head, *two], kit.ids(10, 3)),
        "d": kit.sample("d", [*head, *two], kit.ids(11, 8), kit.ids(12, 5), kit.ids(13, 1)),
    }
    return {"split": split} | {name: [sample] for name, sample in rest.items()}


# "a" is on both sides, and in several pairs.
PAIRS = [pair("a", "b"), pair("split", "a"), pair("a", "split"), pair("c", "d"), pair("b", "split")]


def far_reference(kit, episodes):
    """The episodes with log-probabilities of a policy that is not the model's, so that no slope is alike."""
    tokens = sum(sample.action_tokens for samples in episodes.values() for sample in samples)
    generator = torch.Generator().manual_seed(3)
    return with_logprobs(episodes, -5.5 + torch.rand(tokens, generator=generator))


def plain_gradient(kit, episodes, chosen):
    """The loss written out over whole rows, all of them in one graph of a model that nothing of ours has touched."""
    plain = kit.plain()

    def total(name):
        logprob, reference, count = 0.0, 0.0, 0
        for sample in episodes[name]:
            logits = plain(torch.tensor([sample.ids])).logits[0].float()
            for at, action in enumerate(sample.action_mask):
                if action:
                    logprob = logprob + logits[at - 1].log_softmax(-1)[sample.ids[at]]
                    reference += sample.logprobs[at]
                    count += 1
        return logprob, reference, count

    losses = []
    for each in PAIRS:
        (good, good_reference, n), (bad, bad_reference, m) = total(each.chosen), total(each.rejected)
        if chosen.loss != "sigmoid":
            good_ratio, bad_ratio = (good - good_reference) / n, (bad - bad_reference) / m
        else:
            good_ratio, bad_ratio = good - good_reference, bad - bad_reference
        margin, epsilon = good_ratio - bad_ratio, chosen.label_smoothing
        if chosen.loss == "ipo":
            goal = 1 / (2 * chosen.beta)
            loss = (1 - epsilon) * (margin - goal) ** 2 + epsilon * (margin + goal) ** 2
        else:
            loss = -(1 - epsilon) * logsigmoid(chosen.beta * margin) - epsilon * logsigmoid(-chosen.beta * margin)
        losses.append(loss - chosen.sft_coefficient * good / n)
    loss = torch.stack(losses).mean()
    return float(loss.detach()), kit.gradient(plain, loss)


def found_gradient(kit, episodes, chosen, monkeypatch):
    """Loss and gradient of one update, taken where the optimiser would step."""
    loaded, seen = kit.load(), []

    def look(optimisers, max_grad_norm):
        parameters = [p for p in loaded.model.parameters() if p.requires_grad]
        seen.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]))
        return [0.0], True

    monkeypatch.setattr("deedrl.training.learner.step_together", look)
    figures = update_preferences(Learner(loaded), PAIRS, episodes, chosen)
    return figures["loss"], seen[0]


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


# ---------------------------------------------------------------- gradient


@pytest.mark.parametrize("extra", [{}, {"label_smoothing": 0.1, "sft_coefficient": 0.3}], ids=["plain", "with_terms"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient_equal_plain_rows(kit, episodes, monkeypatch, variant, extra):
    chosen = settings(loss=variant, beta=0.4, **extra)
    episodes = far_reference(kit, episodes)
    loss, gradient = found_gradient(kit, episodes, chosen, monkeypatch)
    expected_loss, expected = plain_gradient(kit, episodes, chosen)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert relative(gradient, expected) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_C09_the_gradient_does_not_depend_on_the_micro_batches(kit, episodes, monkeypatch, variant):
    """In the smallest of them the two sides of a pair, and even the samples of an episode, lie in different batches."""
    episodes = far_reference(kit, episodes)
    _, whole = found_gradient(kit, episodes, settings(loss=variant), monkeypatch)
    for tokens in (1, 16, 40):
        _, cut = found_gradient(kit, episodes, settings(loss=variant, micro_batch_tokens=tokens), monkeypatch)
        assert relative(cut, whole) < 1e-5


def test_tool_tokens_have_no_part_in_the_sums(kit, episodes):
    """Other tokens after the last action, and other probabilities of what the tool said, change nothing."""
    learner = Learner(kit.load())
    known = recorded(learner, episodes, 1000)
    noisy = {
        name: [
            msgspec.structs.replace(
                sample,
                ids=(*sample.ids, 7, 7),
                action_mask=(*sample.action_mask, False, False),
                logprobs=(*(p if a else -99.0 for p, a in zip(sample.logprobs, sample.action_mask, strict=True)), 0, 0),
            )
            for sample in samples
        ]
        for name, samples in known.items()
    }
    figures, others = (update_preferences(learner, PAIRS, some, settings()) for some in (known, noisy))
    assert figures == pytest.approx(others, abs=1e-6)


# ---------------------------------------------------------------- reference


def with_dropout(kit):
    loaded = add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=0.5, target="all-linear", seed=0)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    return loaded


@pytest.mark.parametrize("variant", VARIANTS)
def test_C12_at_step_zero_the_margin_and_the_divergence_are_zero_and_the_reference_is_not_the_base(
    kit, episodes, variant
):
    """The adapter is what an earlier stage left, far from the base; its dropout plays no part."""
    loaded = with_dropout(kit)
    learner = Learner(loaded)
    known = recorded(learner, episodes, 1000)
    figures = update_preferences(learner, PAIRS, known, settings(loss=variant, micro_batch_tokens=20))
    for name in ("reward_margin", "chosen_reward", "rejected_reward", "chosen_change", "rejected_change", "kl"):
        assert figures[name] == pytest.approx(0, abs=1e-4), name
    with loaded.model.disable_adapter():
        base = recorded(learner, episodes, 1000)
    assert abs(recorded_logprobs(base) - recorded_logprobs(known)).mean() > 0.1


def test_the_reference_stays_as_it_was_while_the_policy_learns(kit, episodes):
    learner = Learner(kit.load())
    known = recorded(learner, episodes, 1000)
    first = recorded_logprobs(known).clone()
    for _ in range(3):
        figures = update_preferences(learner, PAIRS[:1], known, settings(learning_rate=1e-3))
    assert torch.equal(recorded_logprobs(known), first)
    assert figures["kl"] > 1e-6
    assert figures["reward_margin"] > 0
    again = with_logprobs(episodes, first)
    assert measure_preferences(learner, PAIRS, again, settings()) == measure_preferences(
        learner, PAIRS, known, settings()
    )


def test_recorded_logprobs_are_those_of_a_plain_pass_however_few_are_read_together(kit, episodes, monkeypatch):
    plain, expected = kit.plain(), []
    for samples in episodes.values():
        for sample in samples:
            logits = plain(torch.tensor([sample.ids])).logits[0].detach().log_softmax(-1)
            expected += [float(logits[i - 1, sample.ids[i]]) for i, act in enumerate(sample.action_mask) if act]
    for together in (2, 64):
        monkeypatch.setattr(dpo, "RECORDED_TOGETHER", together)
        found = recorded(Learner(kit.load()), episodes, 30)
        assert recorded_logprobs(found).tolist() == pytest.approx(expected, abs=1e-5)


# ---------------------------------------------------------------- figures and learning


def test_figures_by_hand(kit, episodes):
    learner = Learner(kit.load())
    known = recorded(learner, episodes, 1000)
    # As if at the start every token of "a" had been a nat likelier, and every one of "b" half a nat less likely.
    shifts = {"a": 1.0, "b": -0.5}
    moved = {
        name: [
            msgspec.structs.replace(
                sample,
                logprobs=tuple(
                    p + shifts.get(name, 0.0) * act for p, act in zip(sample.logprobs, sample.action_mask, strict=True)
                ),
            )
            for sample in samples
        ]
        for name, samples in known.items()
    }
    n, m = (episodes[name][0].action_tokens for name in "ab")
    figures = measure_preferences(learner, [pair("a", "b")], moved, settings(beta=0.2))
    assert figures["chosen_reward"] == pytest.approx(0.2 * -n, abs=1e-4)
    assert figures["rejected_reward"] == pytest.approx(0.2 * 0.5 * m, abs=1e-4)
    assert figures["reward_margin"] == pytest.approx(-0.2 * (n + 0.5 * m), abs=1e-4)
    assert (figures["chosen_change"], figures["rejected_change"]) == pytest.approx((-1.0, 0.5), abs=1e-5)
    assert figures["reward_accuracy"] == 0.0
    assert figures["loss"] == pytest.approx(math.log(1 + math.exp(0.2 * (n + 0.5 * m))), abs=1e-4)
    both = measure_preferences(learner, [pair("a", "b"), pair("b", "a")], moved, settings(beta=0.2))
    assert both["reward_accuracy"] == 0.5
    assert both["reward_margin"] == pytest.approx(0, abs=1e-4)
    assert measure_preferences(learner, [], moved, settings()) == {}


def test_held_out_pairs_give_the_same_figures_however_few_are_read_together(kit, episodes, monkeypatch):
    learner = Learner(kit.load())
    known = far_reference(kit, episodes)
    whole = measure_preferences(learner, PAIRS, known, settings())
    monkeypatch.setattr(dpo, "RECORDED_TOGETHER", 2)
    assert measure_preferences(learner, PAIRS, known, settings()) == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize(("variant", "beta"), [("sigmoid", 0.1), ("ipo", 1.0), ("length_normalised", 2.0)])
def test_every_variant_learns_to_tell_the_sides_apart(kit, episodes, variant, beta):
    learner = Learner(kit.load())
    known = recorded(learner, episodes, 1000)
    pairs = [pair("a", "b"), pair("split", "b"), pair("c", "d")]
    chosen = settings(loss=variant, beta=beta, learning_rate=1e-3, max_grad_norm=1.0)
    first = update_preferences(learner, pairs, known, chosen)
    for _ in range(12):
        last = update_preferences(learner, pairs, known, chosen)
    assert first["reward_accuracy"] < 1
    assert last["reward_accuracy"] == 1
    assert last["loss"] < first["loss"]


def test_the_likelihood_term_keeps_what_is_chosen_likely(kit, episodes):
    """Sides that begin alike: without the term both fall, the known fault of DPO."""

    def change(coefficient):
        learner = Learner(kit.load())
        known = recorded(learner, episodes, 1000)
        for _ in range(20):
            figures = update_preferences(
                learner, [pair("d", "c")], known, settings(learning_rate=2e-3, sft_coefficient=coefficient)
            )
        return figures["chosen_change"]

    assert change(1.0) > max(change(0.0), 0.0)
