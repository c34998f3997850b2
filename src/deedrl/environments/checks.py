"""The checks of an environment's contract, one small function each: it returns what it saw or raises `Failed`."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import msgspec
import numpy as np
from gymnasium.utils.env_checker import check_env as gymnasium_check

from deedrl.environments.contract import checked_state_hash, demonstration, own_fixtures, own_rubric
from deedrl.environments.environment import Environment, leaves, mutable_class_values
from deedrl.environments.sampling import empty_queries, random_actions, wrong_actions
from deedrl.seeding import derive_seed, stream
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, Split, Task, content_hash

NOOP_PROGRESS = 0.1
"""Most progress that doing nothing may show."""


GLOBAL_SEED = 20_377_801


class Failed(Exception):
    """A check failed: what was seen and what to do."""

    def __init__(self, seen: str, todo: str) -> None:
        super().__init__(seen)
        self.seen, self.todo = seen, todo


class DoesNotApply(Exception):
    """There is nothing to check."""


class Subject:
    """What the checks look at: a class, its tasks and a seed."""

    def __init__(self, cls: type[Environment], tasks: Sequence[Task], seed: int) -> None:
        self.cls, self.tasks, self.seed = cls, tasks, seed

    @contextmanager
    def started(self, task: Task) -> Iterator[Environment]:
        """A fresh copy, reset to `task` with the subject's seed, and closed in the end."""
        environment = self.cls()
        try:
            environment.reset(seed=self.seed, options={"task": task})
            yield environment
        finally:
            environment.close()

    def actions(self, task: Task) -> list[Action]:
        """Something to do in `task`: random calls, then the demonstration, or a call that ends the episode.

        Equal on every call.
        """
        with self.started(task) as environment:
            known = leaves([task.initial_state, task.goal_state])
            source = stream(self.seed, "check", task.id)
            going_on = Toolbox(entry for entry in environment.toolbox.values() if not entry.ends_episode)
            ending = Toolbox(entry for entry in environment.toolbox.values() if entry.ends_episode)
            last = demonstration(environment, task) or random_actions(ending, 1, source, known)
            return [*random_actions(going_on, 4, source, known), *last]

    def play(self, task: Task) -> list[Any]:
        """What a fresh copy answers to `actions(task)`."""
        actions = self.actions(task)
        with self.started(task) as environment:
            return list(transcript(environment, actions))


def transcript(environment: Environment, actions: Sequence[Action]) -> Iterator[Any]:
    """What a started environment answers to each action and what its verifier and state say after it."""
    for action in actions:
        answer = environment.step(action)
        state = checked_state_hash(environment.state_hash(), type(environment).__name__)
        yield answer, environment.current_verdict(), state
        if answer[2] or answer[3]:
            return


# ---------------------------------------------------------------- the checks


def check_gymnasium(subject: Subject) -> str:
    environment = subject.cls()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gymnasium_check(environment, skip_render_check=True)
    except AssertionError as error:
        raise Failed(str(error), "see gymnasium.utils.env_checker.check_env") from error
    finally:
        environment.close()
    complaints = [str(entry.message) for entry in caught if "gymnasium" in entry.filename]
    if complaints:
        raise Failed("; ".join(complaints), "see gymnasium.utils.env_checker.check_env")
    return "Gymnasium's own checker passes"


def check_determinism(subject: Subject) -> str:
    for task in subject.tasks:
        first, second = subject.play(task), subject.play(task)
        if first != second:
            raise Failed(
                f"same seed, task and actions, different outcomes: {_difference(first, second)}",
                "draw random numbers from self.np_random; keep time, ids of objects and the order of sets out",
            )
    if _unseeded_prompts(subject) != _unseeded_prompts(subject):
        raise Failed(
            "reset(seed=7), reset(), reset() gave different prompts the second time",
            "make generate_tasks depend on its seed alone",
        )
    return f"{len(subject.tasks)} tasks played twice: equal observations, rewards, verdicts and states"


def check_isolation(subject: Subject) -> str:
    first, second = subject.tasks[0], subject.tasks[-1]
    alone = [subject.play(first), subject.play(second)]
    actions = [subject.actions(first), subject.actions(second)]
    with subject.started(first) as one, subject.started(second) as other:
        turns = [transcript(one, actions[0]), transcript(other, actions[1])]
        together: list[list[Any]] = [[], []]
        for _ in range(max(map(len, actions))):
            for turn, answers in zip(turns, together, strict=True):
                answers.extend([answer for answer in [next(turn, None)] if answer is not None])
    for expected, seen in zip(alone, together, strict=True):
        if expected != seen:
            raise Failed(
                f"two copies taking turns differ from each alone: {_difference(expected, seen)}",
                "keep state in self, set in setup(); use self.workspace for files; share nothing at class level",
            )
    return "two copies taking turns behave as each does alone"


def check_round_trip(subject: Subject) -> str:
    for task in subject.tasks:
        again = msgspec.json.decode(msgspec.json.encode(task), type=Task)
        if again != task:
            raise Failed(
                f"task {task.id} changes when written as JSON and read again",
                "use only str, int, float, bool, None, lists and dicts with string keys in a task's states",
            )
        if task.id != content_hash(task):
            raise Failed(f"task '{task.id}': id is not the hash of its content", "build tasks with Task.create")
    return f"{len(subject.tasks)} tasks survive JSON and carry the hash of their content"


def check_noop(subject: Subject) -> str:
    highest = 0.0
    for task in subject.tasks:
        with subject.started(task) as environment:
            verdict = environment.current_verdict()
        highest = max(highest, verdict.progress)
        if verdict.solved or verdict.progress > NOOP_PROGRESS:
            raise Failed(
                f"task {task.id} right after reset: solved={verdict.solved}, progress={verdict.progress:g}",
                f"make doing nothing worth at most {NOOP_PROGRESS}: count only what the agent changed",
            )
    return f"doing nothing shows progress {highest:g} at most over {len(subject.tasks)} tasks"


def check_verifier_reads_only(subject: Subject) -> str:
    for task in subject.tasks:
        actions = subject.actions(task)
        with subject.started(task) as environment:
            for action in actions:
                answer = environment.step(action)
                before = environment.state_hash(), environment.current_verdict()
                after = environment.state_hash(), environment.current_verdict()
                if before != after:
                    raise Failed(
                        f"task {task.id}: asking the verifier twice gave {before} and {after}",
                        "let verify() read the state and change nothing",
                    )
                if answer[2] or answer[3]:
                    break
    return "asking twice gives the same verdict and leaves the state alone"


def check_demonstrations(subject: Subject) -> str:
    lengths = []
    for task in subject.tasks:
        with subject.started(task) as environment:
            actions = demonstration(environment, task)
            if not actions:
                continue
            answers = list(transcript(environment, actions))
            lengths.append(len(answers))
            (_, reward, terminated, _, info), verdict, _ = answers[-1]
            if not terminated or reward != 1.0 or len(answers) < len(actions):
                raise Failed(
                    f"task {task.id}: the demonstration of {len(actions)} steps stopped after {len(answers)} with "
                    f"terminated={terminated}, ok={info['ok']}, {verdict}, last answer {answers[-1][0][0]!r}",
                    f"let demonstrate() return actions that reach the goal within max_steps={subject.cls.max_steps}",
                )
    if not lengths:
        raise DoesNotApply("demonstrate() gives none")
    return f"{len(lengths)} demonstrations reach the goal in {min(lengths)} to {max(lengths)} steps"


def check_fixtures(subject: Subject) -> str:
    names: set[str] = set()
    for task in subject.tasks:
        for fixture in own_fixtures(subject.cls, task):
            with subject.started(task) as environment:
                for _ in transcript(environment, fixture.actions):
                    pass
                verdict = environment.current_verdict()
            if complaint := fixture.complaint(verdict):
                raise Failed(f"task {task.id}, fixture '{fixture.name}': {complaint}", "mend verify(), or the fixture")
            names.add(fixture.name)
    if not names:
        raise DoesNotApply("fixtures() gives none")
    return f"{len(names)} fixtures get their verdicts: {', '.join(sorted(names))}"


def check_wrong_parameters(subject: Subject) -> str:
    task, count = subject.tasks[0], 0
    with subject.started(task) as environment:
        schemas = environment.toolbox.schemas()
        for schema in schemas:
            for action in wrong_actions(schema, stream(subject.seed, "wrong", schema.name)):
                environment.reset(seed=subject.seed, options={"task": task})
                observation, *_, info = environment.step(action)
                count += 1
                if not info["ok"] and not observation.strip():
                    raise Failed(
                        f"{schema.name}({action.parameters}) failed without a word",
                        "raise ToolError with a sentence that says what to do instead",
                    )
    return f"{count} wrong calls of {len(schemas)} tools: each answered in words, none crashed"


def check_leftovers(subject: Subject) -> str:
    first, second = subject.tasks[0], subject.tasks[-1]
    shared_before = copy.deepcopy(mutable_class_values(subject.cls))
    fresh, actions = subject.play(second), subject.actions(second)
    with subject.started(first) as environment:
        for _ in transcript(environment, subject.actions(first)):
            pass
        environment.reset(seed=subject.seed, options={"task": second})
        used = list(transcript(environment, actions))
    if fresh != used:
        raise Failed(
            f"an episode after another differs from one in a fresh copy: {_difference(fresh, used)}",
            "build all state in setup(); what __init__ made is not renewed between episodes",
        )
    shared_after = mutable_class_values(subject.cls)
    changed = [name for name in shared_after if shared_after[name] != shared_before.get(name)]
    if changed:
        raise Failed(
            f"episodes changed the class itself: {', '.join(changed)}",
            "what belongs to the class is shared by all copies; build it in setup() and keep it in self",
        )
    return "an episode after another equals one in a fresh copy; nothing is left on the class"


def check_global_random(subject: Subject) -> str:
    own = random.getstate(), np.random.get_state()
    # A state of this check's own: earlier checks have left the one that an author's seed() call would set again.
    random.seed(GLOBAL_SEED)
    np.random.seed(GLOBAL_SEED)
    try:
        before = repr((random.getstate(), np.random.get_state()))
        subject.cls.generate_tasks("train", 2, subject.seed)
        subject.play(subject.tasks[0])
        after = repr((random.getstate(), np.random.get_state()))
    finally:
        random.setstate(own[0])
        np.random.set_state(own[1])
    if before != after:
        raise Failed(
            "the global random state changed",
            "use self.np_random, or deedrl.seeding.stream(seed, ...) in generate_tasks",
        )
    return "the random module and numpy.random are untouched"


def check_rubric(subject: Subject) -> str:
    rubric = own_rubric(subject.cls)
    return "the default rubric scores the episodes" if rubric is None else f"{len(rubric.terms)} terms"


def check_leaks(subject: Subject) -> str:
    looked_for = 0
    for task in subject.tasks:
        played = subject.cls.played_by(task)
        public = " ".join([str(played.instructions), str(played.tools.schemas())])
        hidden = [text for text in subject.cls.gold_strings(task) if text not in public]
        looked_for += len(hidden)
        for place, text in _places_without_question(subject, task) if hidden else ():
            for secret in hidden:
                if secret in text:
                    raise Failed(
                        f"task {task.id}: {secret!r} of the goal shows up in {place}",
                        "hide it, or override gold_strings(task) if an agent may see it",
                    )
    if not looked_for:
        raise DoesNotApply("gold_strings() names nothing that must stay hidden")
    return f"{looked_for} texts of the goals are neither in the prompt nor told without being asked for"


def check_splits(subject: Subject) -> str:
    seen: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for split in get_args(Split):
        made = subject.cls.generate_tasks(split, max(50, len(subject.tasks)), subject.seed)
        sizes[split] = len(made)
        for task in made:
            if task.split != split:
                raise Failed(
                    f"generate_tasks('{split}', ...) made a task marked '{task.split}'",
                    "pass split=split to Task.create",
                )
            other = seen.setdefault(content_hash(task), split)
            if other != split:
                raise Failed(
                    f"task {task.id} is in both '{other}' and '{split}'",
                    "draw each split from values of its own, e.g. numbers by their remainder",
                )
    if not any(sizes.values()):
        raise DoesNotApply("generate_tasks() makes none")
    return "no task is in two splits: " + ", ".join(f"{split} {size}" for split, size in sizes.items())


# ---------------------------------------------------------------- inside


def _difference(first: Sequence[Any], second: Sequence[Any]) -> str:
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"step {index + 1}: {one!r} and {other!r}"
    return f"{len(first)} steps and {len(second)} steps"


def _unseeded_prompts(subject: Subject) -> list[str]:
    environment = subject.cls()
    try:
        seed = derive_seed(subject.seed, "unseeded")
        return [environment.reset(seed=seed)[0], environment.reset()[0], environment.reset()[0]]
    finally:
        environment.close()


def _places_without_question(subject: Subject, task: Task) -> Iterator[tuple[str, str]]:
    """Texts an agent gets without knowing what to ask: the prompt, and read tools called with empty queries."""
    yield "the prompt", task.prompt
    for entry in subject.cls.played_by(task).tools.restricted(task.tools).values():
        if not entry.read_only:
            continue
        for action in empty_queries(entry.schema):
            with subject.started(task) as environment:
                observation = environment.step(action)[0]
            yield f"the answer to {entry.name}({action.parameters})", observation
