"""The one episode loop: collection, evaluation and every trainer play episodes through `play_episode`."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import traceback
from typing import Any, Literal

import anyio
import msgspec

from deedrl.environments.contract import checked_state_hash
from deedrl.environments.environment import Environment
from deedrl.environments.noise import Noise, with_noise
from deedrl.errors import EnvironmentAuthorError
from deedrl.parsing.parser import parse_action
from deedrl.policies.policy import CompletionRequest, ContextFull, Policy
from deedrl.redaction import loggable
from deedrl.rewards.rubric import Rubric
from deedrl.rollouts.calls import CallTimeout
from deedrl.rollouts.limits import Limits, LoopDetector, TokenBudget
from deedrl.rollouts.prompting import PromptVariant, rejection_message, result_message, system_prompt, user_message
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSlot
from deedrl.seeding import derive_seed
from deedrl.types import (
    Action,
    Completion,
    Failure,
    Message,
    Provenance,
    Record,
    SamplingParams,
    Step,
    Task,
    TerminationReason,
    ToolOutput,
    ToolSchema,
    Trajectory,
    Verdict,
)

log = logging.getLogger(__name__)

RELEASE_LIMIT_S = 5.0
MAX_TRACE_CHARS = 4000
LIMIT_GRACE_S = 0.25
"""Added to a call's limit, so that a tool that keeps its limit itself can still answer the model.

An environment that needs longer for that says so with an attribute `limit_grace_s`; one whose `reset` starts
something that counts against no limit of the task, with `reset_grace_s`.
"""


class EpisodeSpec(Record, frozen=True):
    """One episode to play. Equal specs with deterministic parts give equal trajectories."""

    task: Task
    episode_id: str
    seed: int = 0
    sampling: SamplingParams = SamplingParams()
    prompt: PromptVariant = PromptVariant()
    role: str = "agent"
    noise: Noise = Noise()
    """Hiccups of the tools in this episode."""
    provenance: Provenance = Provenance()
    """Run, stage, config hash and source; the runner fills in the rest."""


def environment_seed(seed: int) -> int:
    """Seed for `Environment.reset` in an episode with this seed."""
    return derive_seed(seed, "environment")


async def play_episode(
    spec: EpisodeSpec, *, attempt: int, slot: EnvironmentSlot, policy: Policy, rubric: Rubric | None, limits: Limits
) -> Trajectory:
    """Plays one episode from reset to reward.

    Trouble that the policy's samples did not cause (reset, step, verifier, reward term or the policy itself
    raising) comes back as a trajectory with `failure` set and without verdict and reward; it is never raised.
    """
    episode = Episode(spec, attempt, slot, policy, limits)
    try:
        await episode.reset()
        while episode.ending is None:
            completion = await episode.sample()
            if completion is not None:
                action = parse_action(completion.text, episode.tools, completion.finish_reason)
                episode.open_turn(completion, action)
                output = await episode.execute(action) if action.valid else await episode.pass_over()
                episode.close_turn(output)
        await episode.verify()
        return episode.scored(rubric)
    except Exception as error:  # noqa: BLE001  the boundary where trouble becomes a recorded failure (case D01)
        return episode.failed(error)
    finally:
        await episode.release()


class Episode:
    """State of a running episode and the moves `play_episode` makes with it."""

    def __init__(self, spec: EpisodeSpec, attempt: int, slot: EnvironmentSlot, policy: Policy, limits: Limits) -> None:
        self.spec = spec
        self.attempt = attempt
        self.ending: TerminationReason | None = None
        self.tools: tuple[ToolSchema, ...] = ()
        self._slot = slot
        self._base: Environment
        self._wrapped: AnyEnvironment
        self._policy = policy
        self._limits = limits
        self._phase: Literal["reset", "policy", "step", "verify"] = "reset"
        self._begin = time.monotonic()
        self._messages: list[Message] = []
        self._steps: list[Step] = []
        self._turn: tuple[Completion, Action] | None = None
        self._state_hash: str | None = None
        self._step_reward: float | None = None
        self._budget = TokenBudget(limits)
        self._loops = LoopDetector()
        self._parse_failures = 0
        self._max_steps = 0
        self._verdict: Verdict | None = None
        self._versions: dict[str, str] = {}
        self._policy_version = policy.version

    async def reset(self) -> None:
        """Fresh state for the task; then the system prompt and the user message."""
        await self._slot.build(self._limits.call_timeout_s)
        self._base = base = self._slot.base
        self._wrapped = wrapped = with_noise(self._slot.wrapped, self.spec.noise)
        seed = environment_seed(self.spec.seed)
        options = {"task": self.spec.task}
        limit_s = self._limits.call_timeout_s + getattr(base, "reset_grace_s", 0.0)
        prompt, _ = await self._slot.call(lambda: wrapped.reset(seed=seed, options=options), limit_s)
        toolbox = wrapped.get_wrapper_attr("toolbox")
        self.tools, self._versions = toolbox.schemas(), toolbox.versions()
        self._max_steps = min(self._limits.max_steps or base.max_steps, base.max_steps)
        variant = self.spec.prompt
        self._messages = [
            Message(role="system", content=system_prompt(base.instructions, self.tools, variant)),
            Message(role="user", content=user_message(prompt, variant)),
        ]

    async def sample(self) -> Completion | None:
        """The policy's next completion; None if a limit ended the episode instead."""
        self._phase = "policy"
        await asyncio.sleep(0)  # other episodes go on even if neither policy nor environment ever waits
        request = CompletionRequest(
            episode_id=self.spec.episode_id,
            messages=tuple(self._messages),
            tools=self.tools,
            sampling=self._budget.offer(self.spec.sampling),
            seed=derive_seed(self.spec.seed, "turn", len(self._steps)),
        )
        try:
            # Every turn pays for the pause and this clock; asyncio's own cost half of what anyio makes of them.
            async with asyncio.timeout(self._remaining_s()) as clock:
                completion: object = await self._policy.complete(request)
            if isinstance(completion, Completion):
                return completion
            raise TypeError(f"expected a Completion of the policy, got {type(completion).__name__}")
        except ContextFull:
            self.ending = TerminationReason.TOKEN_LIMIT
            return None
        except TimeoutError:
            if not clock.expired():  # one of the policy's own, of a connection perhaps
                raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # The policy's own too; let through, it would end this task and lose the episode without a word.
            raise RuntimeError("the policy's request was cancelled, and not by the runner") from error
        self.ending = TerminationReason.TIMEOUT
        return None

    def open_turn(self, completion: Completion, action: Action) -> None:
        """Keeps the sample, so that it is recorded even if the step raises (case D22)."""
        self._turn = (completion, action)
        self._budget.add(completion)

    async def execute(self, action: Action) -> ToolOutput:
        """Runs the action in the environment within the tool's limit; a call over the limit ends the episode."""
        self._phase = "step"
        self._step_reward = None
        began = time.perf_counter()
        try:
            observation, reward, terminated, truncated, info = await self._slot.call(
                lambda: self._step(action), self._call_limit_s(action.tool_name)
            )
        except CallTimeout as timeout:
            # The state may be half changed, so there is no safe way to go on.
            self.ending = TerminationReason.TIMEOUT
            self._slot.broken = True
            text = f"the call of '{action.tool_name}' was stopped: {timeout}"
            return ToolOutput(text=text, ok=False, duration_s=time.perf_counter() - began, interrupted=True)
        self._step_reward = float(reward)
        if not math.isfinite(self._step_reward):
            raise EnvironmentAuthorError(f"step of {type(self._base).__name__}: expected a finite reward, got {reward}")
        self._verdict = info.get("verdict")
        if terminated:
            solved = self._verdict is not None and self._verdict.solved
            self.ending = TerminationReason.GOAL if solved else TerminationReason.TOOL_ENDED
        elif truncated:
            timed_out = info.get("timed_out", False)
            self.ending = TerminationReason.TIMEOUT if timed_out else TerminationReason.STEP_LIMIT
        if delay_s := info.get("delay_s"):
            await asyncio.sleep(min(delay_s, max(self._remaining_s(), 0.0)))
        by_noise = bool(info.get("by_noise", False))
        self._max_steps += by_noise
        return ToolOutput(
            text=observation,
            ok=bool(info.get("ok", True)),
            duration_s=time.perf_counter() - began,
            by_noise=by_noise,
            interrupted=self.ending is TerminationReason.TIMEOUT or bool(info.get("interrupted", False)),
        )

    async def pass_over(self) -> ToolOutput | None:
        """Runs nothing, and notes in which state no action came: siblings may have acted in it."""
        self._phase = "step"
        self._state_hash = await self._slot.call(self._read_state, self._limits.call_timeout_s)
        return None

    def close_turn(self, output: ToolOutput | None) -> None:
        """Records the step, tells the model what came of it and checks the limits."""
        assert self._turn is not None, "open_turn comes first"
        completion, action = self._turn
        if output is None:
            self._parse_failures += 1
            missing: str | None = "not an action"
            observation = rejection_message(action.error)
        else:
            self._parse_failures = 0
            missing = "the call timed out" if self.ending is TerminationReason.TIMEOUT else None
            observation = result_message(output, self._notes(action, output))
        self._record(output, missing)
        self._messages.append(Message(role="assistant", content=completion.text))
        self._messages.append(Message(role="tool", content=observation))
        self.ending = self.ending or self._limit_reached()

    def _notes(self, action: Action, output: ToolOutput) -> list[str]:
        notes = []
        if action.ignored_actions:
            notes.append("only the first call was run; write one call and wait for its result")
        # What noise answered says nothing about whether the model goes round in circles.
        repeats = self._loops.repeats if output.by_noise else self._loops.add(action, output.text)
        if self._limits.loop_warn is not None and repeats >= self._limits.loop_warn:
            notes.append(f"{repeats} calls have brought nothing new; do something else")
        return notes

    def _limit_reached(self) -> TerminationReason | None:
        limits = self._limits
        if self._budget.exhausted:
            return TerminationReason.TOKEN_LIMIT
        if self._parse_failures >= limits.max_parse_failures:
            return TerminationReason.PARSE_FAILURES
        if limits.loop_end is not None and self._loops.repeats >= limits.loop_end:
            return TerminationReason.LOOP
        if len(self._steps) >= self._max_steps:
            return TerminationReason.STEP_LIMIT
        return TerminationReason.TIMEOUT if self._remaining_s() <= 0 else None

    async def verify(self) -> None:
        """Reads the verdict from the final state; after a time-out only if the environment can still be read."""
        self._phase = "verify"
        if self._verdict is None and not self._slot.stuck:
            self._verdict = await self._slot.call(self._base.current_verdict, self._limits.call_timeout_s)

    def scored(self, rubric: Rubric | None) -> Trajectory:
        trajectory = self._trajectory()
        if rubric is None:
            return trajectory
        return msgspec.structs.replace(trajectory, breakdown=rubric.score(trajectory))

    def failed(self, error: Exception) -> Trajectory:
        """The episode as far as it came, with the failure and without verdict and reward.

        One case is no failure: the verifier cannot read what a call that timed out left behind. The episode then
        stays a time-out, without a verdict.
        """
        self._slot.broken = True
        if self.ending is TerminationReason.TIMEOUT and self._phase == "verify" and self._verdict is None:
            return self._trajectory()
        kind, text = type(error).__name__, _words_of(error)
        message = f"{kind}: {text}"
        log.warning("episode %s, attempt %d: %s failed: %s", self.spec.episode_id, self.attempt, self._phase, message)
        if self._turn is not None:
            self._record(None, message)
        policy_failed = self._phase == "policy"
        self.ending = TerminationReason.POLICY_ERROR if policy_failed else TerminationReason.ENVIRONMENT_ERROR
        self._verdict = None
        return self._trajectory(
            Failure(kind=kind, phase=self._phase, message=text or kind, attempts=self.attempt, trace=_trace_of(error))
        )

    async def release(self) -> None:
        """Lets the policy drop what it cached, also when the run is being cancelled; its trouble is only logged."""
        with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
            try:
                await self._policy.release(self.spec.episode_id)
            except Exception as error:  # noqa: BLE001  the episode is over; nothing depends on this any more
                trouble = f"{type(error).__name__}: {_words_of(error)}"
                log.warning("release of episode %s failed: %s", self.spec.episode_id, trouble)

    def _step(self, action: Action) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        self._state_hash = self._read_state()
        return self._wrapped.step(action)

    def _read_state(self) -> str | None:
        return checked_state_hash(self._base.state_hash(), type(self._base).__name__)

    def _call_limit_s(self, tool_name: str | None) -> float:
        base = self._base
        tool = base.toolbox.get(tool_name or "")
        limit_s = min(tool.timeout_s, self._limits.call_timeout_s) if tool else self._limits.call_timeout_s
        return min(limit_s + getattr(base, "limit_grace_s", LIMIT_GRACE_S), self._remaining_s())

    def _remaining_s(self) -> float:
        return self._limits.episode_timeout_s - (time.monotonic() - self._begin)

    def _record(self, output: ToolOutput | None, missing: str | None) -> None:
        assert self._turn is not None
        completion, action = self._turn
        self._turn = None
        step = Step(
            index=len(self._steps),
            observation=self._messages[-1].content,
            completion=completion,
            action=action,
            tool_output=output,
            reward=None if missing else self._step_reward,
            reward_missing=missing,
            state_hash=self._state_hash,
        )
        self._steps.append(step)
        self._state_hash = None

    def _trajectory(self, failure: Failure | None = None) -> Trajectory:
        spec, task = self.spec, self.spec.task
        return Trajectory(
            episode_id=spec.episode_id,
            task_id=task.id,
            family=task.family,
            difficulty=task.difficulty,
            split=task.split,
            role=spec.role,
            steps=tuple(self._steps),
            termination=self.ending or TerminationReason.ENVIRONMENT_ERROR,
            failure=failure,
            verdict=self._verdict,
            provenance=self._provenance(),
            duration_s=time.monotonic() - self._begin,
            shortest_steps=task.shortest_steps,
        )

    def _provenance(self) -> Provenance:
        given, variant = self.spec.provenance, self.spec.prompt
        guided = any(step.completion.guided for step in self._steps)
        return msgspec.structs.replace(
            given,
            attempt=self.attempt,
            seed=self.spec.seed,
            policy_version=self._policy_version,
            source="guided" if guided else given.source,
            tool_versions=self._versions,
            prompt_variant=variant.recorded_name,
            noise=self.spec.noise.levels(),
        )


def _words_of(error: Exception) -> str:
    """The text of an exception as it may be logged and kept."""
    try:
        return loggable(str(error))
    except Exception as second:  # noqa: BLE001  an author's exception class may be broken itself
        return f"(its text raised {type(second).__name__})"


def _trace_of(error: Exception) -> str:
    """The end of the traceback; that of a worker process, where the error came from one."""
    trace = getattr(error, "trace", "") or "".join(traceback.format_exception(error))
    return loggable(str(trace))[-MAX_TRACE_CHARS:]
