"""The local policy: what it records, and that one caller's end never harms another."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest
import torch

from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.policy import LocalPolicy
from deedrl.policies.policy import ContextFull
from deedrl.training.backend import LogprobModel
from deedrl.training.packing import pack
from deedrl.training.samples import samples_from
from deedrl.types import Action, Message, Step, Trajectory


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


@pytest.fixture(scope="module")
def plain(kit):
    return kit.plain()


def local(loaded, **options):
    return LocalPolicy(loaded.model, loaded.renderer, **options)


async def conversation(policy, kit, episode_id, turns, **options):
    """Completions of an episode in which every turn gets the result 'ok'."""
    messages = list(kit.request(episode_id).messages)
    completions = []
    for turn in range(turns):
        completion = await policy.complete(kit.request(episode_id, messages, seed=turn, **options))
        completions.append(completion)
        messages += [Message(role="assistant", content=completion.text), Message(role="tool", content="Result: ok")]
    return completions


def trajectory_of(completions):
    steps = [Step(index=i, observation="", completion=c, action=Action()) for i, c in enumerate(completions)]
    return Trajectory(episode_id="e", task_id="t", steps=tuple(steps))


# ------------------------------------------------------------ what is recorded


def test_B01_recorded_ids_and_logprobs_of_all_turns_are_those_of_one_plain_pass(kit, loaded, plain):
    completions = asyncio.run(conversation(local(loaded), kit, "e", 4))
    [sample] = samples_from(trajectory_of(completions))
    at = [i for i, action in enumerate(sample.action_mask) if action]
    with torch.no_grad():
        logprobs = plain(torch.tensor([sample.ids])).logits[0].log_softmax(-1)
    expected = [float(logprobs[i - 1, sample.ids[i]]) for i in at]
    assert [sample.logprobs[i] for i in at] == pytest.approx(expected, abs=1e-5)


def test_first_turn_records_the_whole_prompt_and_later_ones_the_extension(kit, loaded):
    completions = asyncio.run(conversation(local(loaded), kit, "e", 2))
    assert [c.extends_previous for c in completions] == [False, True]
    assert list(completions[0].prompt_ids) == loaded.renderer.prompt_ids(kit.request("e").messages)
    assert list(completions[1].prompt_ids) == loaded.renderer.extension_ids(
        completions[0].token_ids, [Message(role="tool", content="Result: ok")]
    )


def test_text_is_the_decoded_ids_without_the_turn_end(kit, loaded):
    [completion] = asyncio.run(conversation(local(loaded), kit, "e", 1, max_tokens=400))
    assert completion.finish_reason == "stop"
    assert completion.token_ids[-1] == loaded.renderer.turn_end_id
    assert completion.text == loaded.tokenizer.decode(list(completion.token_ids[:-1]))


def test_I09_a_turn_computes_what_the_conversation_gained_and_finds_the_rest(kit, loaded):
    completions = asyncio.run(conversation(local(loaded), kit, "e", 8))
    assert completions[0].cached_tokens == 0
    known = len(completions[0].prompt_ids)
    for before, after in pairwise(completions):
        assert after.extends_previous
        # The turn's last token was drawn, but nothing was drawn after it yet.
        assert after.cached_tokens == known + len(before.token_ids) - 1
        known += len(before.token_ids) + len(after.prompt_ids)


def test_I09_episodes_that_read_the_same_find_it_once_one_has_computed_it(kit, loaded):
    async def both():
        policy = local(loaded)
        return await asyncio.gather(*(policy.complete(kit.request(f"e{i}", seed=i)) for i in range(2)))

    first, second = asyncio.run(both())
    assert (first.cached_tokens, second.cached_tokens) == (0, len(second.prompt_ids))


def test_completion_cut_by_its_limit_says_length(kit, loaded):
    [completion] = asyncio.run(conversation(local(loaded), kit, "e", 1, max_tokens=3))
    assert (completion.finish_reason, len(completion.token_ids), len(completion.logprobs)) == ("length", 3, 3)


def check_same(first, second):
    """Guesses at a turn that was sampled before change the rounding of log-probabilities; its prefix is cached."""
    assert second.logprobs == pytest.approx(first.logprobs, abs=1e-5)
    assert msgspec.structs.replace(second, logprobs=first.logprobs, cached_tokens=first.cached_tokens) == first


def test_released_episode_begins_with_a_whole_prompt_again(kit, loaded):
    async def twice():
        policy = local(loaded)
        first = await policy.complete(kit.request("e"))
        await policy.release("e")
        return first, await policy.complete(kit.request("e"))

    first, second = asyncio.run(twice())
    check_same(first, second)
    assert not second.extends_previous


def test_equal_requests_give_equal_completions_alone_and_in_a_crowd(kit, loaded):
    async def crowd(count):
        policy = local(loaded, max_rows=4)
        return await asyncio.gather(*(policy.complete(kit.request(f"e{i}", seed=i)) for i in range(count)))

    assert asyncio.run(crowd(4))[2].token_ids == asyncio.run(crowd(3))[2].token_ids


def test_completions_carry_the_version_of_the_weights(kit, loaded):
    async def versions():
        policy = local(loaded, version="base")
        first = await policy.complete(kit.request("a"))
        await policy.release("a")
        policy.weights_changed("grpo:1")
        return first.policy_version, (await policy.complete(kit.request("b"))).policy_version, policy.version

    assert asyncio.run(versions()) == ("base", "grpo:1", "grpo:1")


# ------------------------------------------------------------ B14


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_B14_importance_ratio_is_one_at_the_sampling_temperature(kit, temperature):
    loaded = kit.load()
    completions = asyncio.run(conversation(local(loaded), kit, "e", 3, temperature=temperature))
    [batch] = pack(samples_from(trajectory_of(completions)), micro_batch_tokens=4096)
    logprobs, _ = LogprobModel(loaded.model, temperature=temperature)(batch)
    assert float(((logprobs - batch.logprobs).exp() - 1).abs().max()) < 1e-3


def test_B14_the_check_can_fail_another_temperature_gives_other_ratios(kit):
    loaded = kit.load()
    completions = asyncio.run(conversation(local(loaded), kit, "e", 1, temperature=0.6))
    [batch] = pack(samples_from(trajectory_of(completions)), micro_batch_tokens=4096)
    logprobs, _ = LogprobModel(loaded.model, temperature=1.0)(batch)
    assert float((logprobs - batch.logprobs).abs().max()) > 0.05


# ------------------------------------------------------------ limits, cancellation, errors


def test_conversation_that_no_longer_fits_raises_context_full(kit, loaded):
    with pytest.raises(ContextFull, match="no room in 2048"):
        asyncio.run(local(loaded).complete(kit.request("e", max_tokens=2040)))


def test_cancelled_turn_leaves_the_policy_usable_for_all(kit, loaded, plain):
    async def cancel_one():
        policy = local(loaded)
        gone = asyncio.create_task(policy.complete(kit.request("gone", max_tokens=300, temperature=3.0)))
        stays = asyncio.create_task(policy.complete(kit.request("stays", max_tokens=20)))
        for _ in range(8):
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await policy.release("gone")
        kept = await stays
        await policy.release("stays")
        policy.weights_changed("1")  # refuses if a turn were still in the engine
        return kept

    completion = asyncio.run(cancel_one())
    expected = kit.plain_logprobs(plain, completion.prompt_ids, completion.token_ids)
    assert list(completion.logprobs) == pytest.approx(expected, abs=1e-5)


def test_B05_episode_asked_again_after_a_cancelled_turn_has_its_context_once(kit, loaded):
    async def again():
        policy = local(loaded)
        gone = asyncio.create_task(policy.complete(kit.request("e", max_tokens=300)))
        for _ in range(4):
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        return await policy.complete(kit.request("e")), await local(loaded).complete(kit.request("e"))

    after, fresh = asyncio.run(again())
    assert (after.token_ids, after.prompt_ids) == (fresh.token_ids, fresh.prompt_ids)
    # The context is still stored but for its last token, so rounding differs.
    assert after.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_error_in_the_model_reaches_all_who_wait_and_the_policy_goes_on(kit):
    loaded = kit.load()

    async def fail_once():
        policy = local(loaded, max_rows=2)

        def fail(*_):
            raise RuntimeError("out of memory")

        failing = pytest.MonkeyPatch()
        failing.setattr(SamplingModel, "hidden", fail)
        waiting = (policy.complete(kit.request(f"e{i}")) for i in range(3))
        errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), timeout=10)
        failing.undo()
        completion = await asyncio.wait_for(policy.complete(kit.request("e0")), timeout=10)
        policy.weights_changed("1")
        return errors, completion

    errors, completion = asyncio.run(fail_once())
    assert [str(error) for error in errors] == ["out of memory"] * 3
    assert completion == asyncio.run(local(loaded).complete(kit.request("e0")))


def test_error_between_turns_of_decoding_reaches_the_waiting_too(kit):
    loaded = kit.load()

    async def fail_later():
        policy = local(loaded)
        calls = []

        hidden = SamplingModel.hidden

        def fail(*inputs):
            calls.append(1)
            if len(calls) > 3:
                raise RuntimeError("out of memory")
            return hidden(*inputs)

        failing = pytest.MonkeyPatch()
        failing.setattr(SamplingModel, "hidden", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            await asyncio.wait_for(policy.complete(kit.request("e")), timeout=10)
        failing.undo()
        return await asyncio.wait_for(policy.complete(kit.request("e")), timeout=10)

    after, fresh = asyncio.run(fail_later()), asyncio.run(local(loaded).complete(kit.request("e")))
    assert (after.token_ids, after.prompt_ids) == (fresh.token_ids, fresh.prompt_ids)
    # What was stored before the error is used again, so rounding differs.
    assert after.logprobs == pytest.approx(fresh.logprobs, abs=1e-5)


def test_weights_change_while_an_episode_samples_is_refused(kit, loaded):
    async def change():
        policy = local(loaded)
        task = asyncio.create_task(policy.complete(kit.request("e", max_tokens=50)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="wait for the running turns"):
            policy.weights_changed("1")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(change())


def test_policy_works_in_one_event_loop_after_another(kit, loaded):
    policy = local(loaded)
    first = asyncio.run(policy.complete(kit.request("a")))
    asyncio.run(policy.release("a"))
    second = asyncio.run(policy.complete(kit.request("a")))
    check_same(first, second)


def test_waiting_for_a_row_does_not_block_the_rows_owner(kit, loaded):
    """More episodes than rows: those without a row wait until an episode with one is over, then all end."""

    async def episode(policy, name):
        completions = await conversation(policy, kit, name, 2)
        await asyncio.sleep(0.005)
        await policy.release(name)
        return completions

    async def many():
        policy = local(loaded, max_rows=2)
        return await asyncio.wait_for(asyncio.gather(*(episode(policy, f"e{i}") for i in range(5))), timeout=30)

    assert [len(completions) for completions in asyncio.run(many())] == [2] * 5


# ------------------------------------------------------------ dropout


def test_B17_adapter_dropout_plays_no_part_in_sampling(kit):
    from deedrl.policies.local.model import add_adapter

    loaded = add_adapter(kit.load(), rank=4, alpha=8, dropout=0.5, target="all-linear", seed=0)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    completions = [asyncio.run(local(loaded).complete(kit.request("e", max_tokens=20))) for _ in range(2)]
    assert completions[0] == completions[1]
    assert not loaded.model.training


def test_rest_gives_memory_back_and_changes_nothing_that_is_sampled(kit, loaded):
    async def around_a_rest():
        policy = local(loaded)
        first = await policy.complete(kit.request("e"))
        await policy.release("e")
        policy.rest()
        assert policy._engine._store.slots == 0
        return first, await policy.complete(kit.request("e")), policy.version

    first, second, version = asyncio.run(around_a_rest())
    assert first == second
    assert version == "0"
