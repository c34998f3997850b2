"""What each stage of a recipe plays and computes: episodes, tokens and passes, before anything runs.

Counted are tokens that are really computed: what siblings have in common once, and no groups without a signal. How many
that leaves only a run can tell; the constants below are those of the runs they name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from deedrl.pipeline.pair_settings import PairSettings
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.recipe import AnyStage, Baseline, ColdStart, Dpo, Evaluate, Grpo, Mine, Profile, Recipe, Sft
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.planning.load import EpisodeLengths

SIGNAL = 0.5
"""Share of groups with a signal. The quickstart's GRPO on 2026-12-01, four runs: 0.41, 0.41, 0.42 and 0.55 in the mean
of 18 steps, which led from 70 % completion to above 90 %; more in the first steps, and with a smaller
`zero_variance_threshold`."""
SIBLINGS_EXPONENT = 0.55
"""What n siblings sample and are told, in multiples of one, is n to this: they agree for a while. In updates of those
runs six were 2.2 to 2.9 times one."""
PAIR = 1.7
"""The same of the two sides of a pair, which end otherwise. Updates of 16 pairs of docs/dpo.md, packed: 1.5 to 1.8."""
UNTAUGHT_TURN = 0.7
"""Tokens of a turn of a policy that nothing has been taught yet, as a share of `sampling.max_tokens`: it often writes
until it is cut. The embedded model: 0.70 to 0.76 on the support desk, 0.57 as single answers."""
GUIDED_PASSES = 1.5
"""What a pass of guided sampling takes, in multiples of a free one: a mask for each row, and no guesses. Cold starts of
the same runs, 16 s for 280 passes."""
STABLE_SHARE = 0.4
"""Share of its sampled episodes a cold start typically keeps; of the embedded model's, none."""
TELLING_PAIRS = 0.45
"""Pairs that are left of `pairs_per_task` for each task: 0.34 (docs/reward-model.md), 0.38 (docs/dpo.md) and 0.60
(docs/alignment.md)."""


class Play(NamedTuple):
    """Episodes that are sampled together."""

    episodes: float
    tasks: float
    """Distinct ones; episodes of one share what they have in common."""
    lengths: EpisodeLengths
    longest: float
    """Tokens sampled in the longest of them, which the others wait for."""
    times: float = 1
    """How often as many are played, with other weights."""
    slowness: float = 1
    """Of a pass."""

    @property
    def sampled(self) -> float:
        """Tokens that are sampled in separate rows, each time."""
        return self.tasks * differing(self.episodes / self.tasks) * self.lengths.sampled

    @property
    def read(self) -> float:
        """Tokens that are read, each time."""
        told = differing(self.episodes / self.tasks) * self.lengths.told
        return self.lengths.prefix + self.tasks * (self.lengths.task + told)

    def passes(self, concurrency: int) -> float:
        """Of all rows through the model, each time: all waves of episodes, and the longest to its end."""
        chain = self.lengths.sampled
        waves = max(self.episodes / concurrency, 1.0)
        return self.slowness * (chain * waves + max(self.longest - chain, 0.0))


class Learn(NamedTuple):
    """Passes over tokens that are computed together."""

    tokens: float
    operations: float
    """Floating-point operations per parameter and token, of all passes."""
    micro_batch_tokens: int
    times: float
    updates: float = 0
    """How many of the passes, each time, have gradients."""


class Work(NamedTuple):
    """Of one stage."""

    plays: tuple[Play, ...] = ()
    learns: tuple[Learn, ...] = ()


def differing(siblings: float) -> float:
    """What so many siblings sample and are told, in multiples of what one does."""
    return float(siblings**SIBLINGS_EXPONENT)


def work_of(recipe: Recipe, stage: AnyStage, lengths: EpisodeLengths) -> Work:
    """What `stage` takes where taught episodes have these lengths."""
    job = _Job(recipe, lengths)
    match stage:
        case Baseline() | Evaluate():
            return Work(tuple(_evaluations(job, stage)))
        case ColdStart():
            return Work(tuple(_cold_start(job, stage)))
        case Sft():
            return _sft(job, stage)
        case OnlineSettings():
            return _online(job, stage)
        case Mine():
            return _mine(job, stage)
        case Profile():
            return _profile(job, stage)
        case _:
            assert isinstance(stage, PairSettings)
            return _pairs(job, stage)


class _Job:
    """Ways in which policies play the recipe's tasks."""

    def __init__(self, recipe: Recipe, lengths: EpisodeLengths) -> None:
        self.recipe = recipe
        self._most = recipe.sampling.max_tokens
        self._room = max(recipe.limits.max_tokens_per_episode - lengths.prefix - lengths.task, 1.0)
        self.lengths = self._bounded(lengths, lengths.turns, lengths.turn)

    def _bounded(self, lengths: EpisodeLengths, turns: float, turn: float) -> EpisodeLengths:
        turn = min(turn, self._most)
        most = min(self.recipe.limits.max_steps, self._room / (turn + lengths.observation))
        return replace(lengths, turns=min(turns, max(most, 1.0)), turn=turn)

    def play(self, episodes: float, tasks: float, times: float = 1, *, taught: bool = True) -> Play:
        if not taught:
            lengths = self._bounded(self.lengths, self.lengths.turns, UNTAUGHT_TURN * self._most)
            return Play(episodes, tasks, lengths, lengths.turns * self._most, times)
        longest = self._bounded(self.lengths, self.recipe.limits.max_steps, self.lengths.turn)
        return Play(episodes, tasks, self.lengths, longest.sampled, times)

    def guided(self, episodes: float, tasks: float) -> Play:
        """Every turn is an action, and one follows the other."""
        lengths = self._bounded(self.lengths, self.recipe.limits.max_steps, UNTAUGHT_TURN * self._most)
        return Play(episodes, tasks, lengths, lengths.turns * self._most, slowness=GUIDED_PASSES)

    def group_tokens(self, siblings: float) -> float:
        """Of an update, for a task and what so many siblings make of it."""
        own = self.lengths.own - self.lengths.task
        return self.lengths.task + differing(siblings) * own

    @property
    def gradient(self) -> float:
        """Operations per parameter and token of a pass with gradients: 4 with frozen weights, 6 without (Kaplan et al.
        2020, section 2.1)."""
        return 6 if self.recipe.model.adapter is None else 4

    def taught(self, stage: AnyStage | PairSettings) -> bool:
        """Whether a stage before `stage` has taught the policy something."""
        before = self.recipe.stages[: self.recipe.stages.index(stage)]
        teach = any(isinstance(other, Sft | OnlineSettings | Dpo) for other in before)
        return teach or self.recipe.model.start_adapter is not None


# ---------------------------------------------------------------- stages


def _evaluations(job: _Job, stage: Baseline | Evaluate) -> Iterable[Play]:
    tasks = job.recipe.tasks
    taught = isinstance(stage, Evaluate) and job.taught(stage)
    for count in (getattr(tasks, stage.split), tasks.test_unseen if stage.also_unseen else 0):
        count = min(count, stage.tasks or count)
        if count:
            yield job.play(count * stage.repeats, count, taught=taught or job.recipe.model.start_adapter is not None)


def _cold_start(job: _Job, stage: ColdStart) -> Iterable[Play]:
    if not stage.tasks:
        return
    guided = round(stage.samples_per_task * stage.guided_share)
    # Under another prompt siblings have nothing in common.
    tasks = stage.tasks * min(stage.samples_per_task, len(stage.prompt_variants))
    if guided:
        yield job.guided(stage.tasks * guided, min(stage.tasks * guided, tasks))
    if free := stage.samples_per_task - guided:
        yield job.play(stage.tasks * free, min(stage.tasks * free, tasks), taught=False)
    again = stage.tasks * stable_share(job.recipe)
    if again and stage.stability_repeats:
        episodes = again * stage.stability_repeats
        yield job.guided(episodes, again) if guided else job.play(episodes, again, taught=False)


def stable_share(recipe: Recipe) -> float:
    """Share of a cold start's sampled episodes that it keeps."""
    return 0.0 if recipe.model.path == "embedded" else STABLE_SHARE


def _sft(job: _Job, stage: Sft) -> Work:
    starts = [other for other in job.recipe.stages if isinstance(other, ColdStart)]
    kept = sum(s.tasks * s.samples_per_task * stable_share(job.recipe) + s.demonstrations for s in starts)
    steps = stage.steps or max((stage.epochs or 0) * kept / stage.batch_size, 1)
    if stage.target_completion is not None:
        steps = (min(stage.validate_from, steps) + steps) / 2
    validations = sum(stage.validates(done) for done in range(1, int(steps) + 1))
    tokens = job.lengths.prefix + stage.batch_size * job.lengths.own
    learn = Learn(tokens, job.gradient, stage.micro_batch_tokens, steps, updates=1)
    return Work(_validations(job, stage.validation_tasks, validations), (learn,))


def _validations(job: _Job, tasks: int, times: int) -> tuple[Play, ...]:
    tasks = min(tasks, job.recipe.tasks.validation or tasks)
    return (job.play(tasks, tasks, times),) if times else ()


def _online(job: _Job, stage: OnlineSettings) -> Work:
    silent = 1 - SIGNAL
    rounds = 1 + (stage.refill_attempts if isinstance(stage, Grpo) else 0)
    supplied = [stage.tasks_per_step * silent**played for played in range(rounds)]
    taught = job.taught(stage) if stage in job.recipe.stages else True
    plays = [job.play(n * stage.group_size, n, stage.steps, taught=taught) for n in supplied]
    due = [done for done in range(1, stage.steps) if stage.validate_every and done % stage.validate_every == 0]
    validations = len(due) + 1 + (1 if stage.validate_every else 0)
    learnt = sum(supplied)
    if isinstance(stage, Grpo) and not stage.kl_on_zero_variance:
        learnt *= SIGNAL
    learns = [
        _group_passes(job, stage, learnt, _operations(job, stage), updates=stage.updates_per_batch),
        _group_passes(job, stage, sum(supplied), 2 * len(job.recipe.learned_terms)),
    ]
    return Work(
        (*plays, *_validations(job, stage.validation_tasks, validations)),
        tuple(learn for learn in learns if learn.operations),
    )


def _group_passes(job: _Job, stage: OnlineSettings, groups: float, operations: float, updates: float = 0) -> Learn:
    """Passes over so many groups of every step."""
    tokens = stage.mini_batches * job.lengths.prefix + groups * job.group_tokens(stage.group_size)
    return Learn(tokens, operations, stage.micro_batch_tokens, stage.steps, updates)


def _operations(job: _Job, stage: OnlineSettings) -> float:
    """Per parameter and token of a step: its updates, the reference's pass, and what a critic takes."""
    reference = 2 if stage.kl_coefficient else 0
    updates = job.gradient * stage.updates_per_batch
    if not isinstance(stage, Ppo):
        return updates + reference
    # Once a step, and not in every pass over it: what the critic expects. One on an adapter has passes of its own.
    return (updates if stage.critic == "value_head" else 2 * updates) + 2 + reference


def _profile(job: _Job, stage: Profile) -> Work:
    tasks = profiled_tasks(job.recipe, stage)
    return Work((job.play(tasks * stage.attempts, tasks, taught=job.taught(stage)),))


def profiled_tasks(recipe: Recipe, stage: Profile) -> int:
    """Training tasks that `stage` plays."""
    return min(recipe.tasks.train, stage.tasks or recipe.tasks.train)


def _mine(job: _Job, stage: Mine) -> Work:
    probe = job.play(stage.tasks * stage.attempts, stage.tasks)
    if not stage.steps:
        return Work((probe,))
    grpo = next(other for other in reversed(job.recipe.stages) if isinstance(other, Grpo))
    online = _online(job, replace(grpo, name=stage.title, steps=stage.steps))
    return Work((probe, *online.plays), online.learns)


def _pairs(job: _Job, stage: PairSettings) -> Work:
    tasks = stage.tasks + _tasks_before(job.recipe, stage)
    pairs = max(TELLING_PAIRS * tasks * stage.pairs_per_task * (1 - stage.held_out_share), 1)
    steps = stage.steps_for(round(pairs))
    taught = job.taught(stage)
    plays = [job.play(stage.tasks * stage.samples_per_task, stage.tasks, taught=taught)] if stage.tasks else []
    lengths = job.lengths
    tokens = lengths.prefix + stage.pairs_per_step * (lengths.task + PAIR * (lengths.own - lengths.task))
    if not isinstance(stage, Dpo):
        learn = Learn(tokens, job.gradient, stage.micro_batch_tokens, steps, updates=1)
        return Work(tuple(plays), (learn,))
    validations = sum(stage.validates(done, steps) for done in range(1, steps + 1)) + (stage.validate_every > 0)
    # Before each update a pass says how pairs weigh; before all of them the reference reads every pair once.
    learn = Learn(tokens, job.gradient + 2, stage.micro_batch_tokens, steps, updates=1)
    reference = Learn(tokens, 2, stage.micro_batch_tokens, pairs / stage.pairs_per_step)
    return Work((*plays, *_validations(job, stage.validation_tasks, validations)), (learn, reference))


def _tasks_before(recipe: Recipe, stage: PairSettings) -> int:
    """Tasks that stages before `stage` play several times each, into stores it makes pairs of."""
    read = [
        other
        for other in recipe.stages[: recipe.stages.index(stage)]
        if not stage.stores or other.title in stage.stores
    ]
    trained = sum(other.steps * other.tasks_per_step for other in read if isinstance(other, OnlineSettings))
    played = sum(other.tasks for other in read if isinstance(other, PairSettings | Mine))
    profiled = sum(profiled_tasks(recipe, other) for other in read if isinstance(other, Profile))
    return trained + played + profiled
