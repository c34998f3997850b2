"""The records every layer exchanges: frozen, JSON-serialisable, free of behaviour.

Nothing downstream changes a record; it makes a new one (`msgspec.structs.replace`). ``None`` always means
"absent" (not scored, not measured, did not happen) and is never a synonym for ``0.0``.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any, Literal

import msgspec

SCHEMA_VERSION = 1
"""Version of the trajectory record; written into every stored line."""

Split = Literal["train", "validation", "test", "test_unseen"]
Tier = Literal["strict", "repair", "reject"]
Source = Literal["policy", "guided", "demonstration"]
FinishReason = Literal["stop", "length"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all records: immutable, keyword-only; unknown fields of newer writers are ignored on reading."""


# ---------------------------------------------------------------- tasks


class Task(Record, frozen=True):
    """One job. Build it with `Task.create`, which fills `id` with the hash of the content."""

    id: str
    prompt: str
    initial_state: dict[str, Any] = {}
    goal_state: dict[str, Any] = {}
    tools: tuple[str, ...] = ()
    """Names of the tools allowed in this task; empty means all of the environment's."""
    difficulty: str = "easy"
    family: str = "default"
    split: Split = "train"
    shortest_steps: int | None = None
    """Length of the shortest known solution in steps, where the environment knows it."""

    @classmethod
    def create(cls, prompt: str, **fields: Any) -> Task:
        """Makes a task whose `id` is 16 hex digits of SHA-256 over its content (the split is not content)."""
        task = cls(id="", prompt=prompt, **fields)
        return msgspec.structs.replace(task, id=content_hash(task))


def content_hash(task: Task) -> str:
    """Hash of what an agent could meet in `task`: equal content gives equal ids whatever the split says."""
    content = (task.prompt, task.initial_state, task.goal_state, sorted(task.tools), task.difficulty, task.family)
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:16]


# ---------------------------------------------------------------- messages and actions


class Message(Record, frozen=True):
    """One chat message. Observations travel as role ``tool``; the renderer maps roles to what a template knows."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class ToolSchema(Record, frozen=True):
    """What a model is told of a tool and what the parser checks calls against."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of an object."""
    plain_text: str | None = None
    """The parameter that takes a whole completion as it stands, where this is the only tool; None: calls are JSON."""


class Action(Record, frozen=True):
    """What the parser made of one completion: a call, or (when `error` is set) the reason there is none."""

    tool_name: str | None = None
    parameters: dict[str, Any] = {}
    reasoning: str = ""
    tier: Tier = "strict"
    error: str | None = None
    """Why the completion is not an action, in words meant for the model."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs applied, e.g. ``trailing_comma``; empty in tier ``strict``."""
    ignored_actions: int = 0
    """Further calls (or invented tool results) in the same completion that were not run."""
    refused_tool: str | None = None
    """The known tool that a rejected completion called in a way its schema does not allow; None in all other cases."""

    @property
    def valid(self) -> bool:
        return self.error is None and self.tool_name is not None


# ---------------------------------------------------------------- sampling


class Completion(Record, frozen=True):
    """One sample of a policy.

    `token_ids` holds exactly what was sampled, the turn-end token included if it was sampled; `logprobs` has the
    same length and is taken from the distribution the token was drawn from (temperature applied). Policies that
    have no tokens (scripted ones) leave both empty.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_ids: tuple[int, ...] = ()
    """The context tokens that precede `token_ids` and were not part of the episode's recorded tokens before."""
    extends_previous: bool = False
    """True: `prompt_ids` is the suffix that extends the episode's recorded tokens; False: it is a whole prompt."""
    finish_reason: FinishReason = "stop"
    policy_version: str = "0"
    guided: bool = False
    """True if decoding was constrained, so that `logprobs` are not those of the free policy."""
    cached_tokens: int | None = None
    """Tokens of the whole context that the policy did not have to compute for this turn; None if it does not say."""


class SamplingParams(Record, frozen=True):
    """How to sample. There is no top-k or top-p: truncating the distribution falsifies importance ratios."""

    temperature: float = 1.0
    """0 means greedy."""
    max_tokens: int = 96
    """Per turn."""


# ---------------------------------------------------------------- steps and trajectories


class ToolOutput(Record, frozen=True):
    """Result of one executed action."""

    text: str
    ok: bool = True
    """False when the tool refused or failed in a way the model caused (bad parameter, unknown id)."""
    duration_s: float = 0.0
    by_noise: bool = False
    """True: injected noise took this step, so that the call had to be made again; figures leave it out."""
    interrupted: bool = False
    """True: the call was stopped at its time limit, so that the clock decided this result and no replay need agree."""


class Step(Record, frozen=True):
    """One turn: what the policy saw, what it sampled, what was made of it and what came back."""

    index: int
    observation: str
    """Text shown before this turn's completion (the task's prompt on the first turn)."""
    completion: Completion
    action: Action
    tool_output: ToolOutput | None = None
    """None when no tool ran because the completion was not an action."""
    reward: float | None = None
    """Reward of this step alone, where the environment gives one."""
    reward_missing: str | None = None
    """Why `reward` is absent when the step failed (case D22)."""
    state_hash: str | None = None
    """Hash of the environment's state before the action, where the environment offers it."""


class TerminationReason(StrEnum):
    """Why an episode ended; a closed list."""

    GOAL = "goal"
    GAVE_UP = "gave_up"
    TOOL_ENDED = "tool_ended"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    PARSE_FAILURES = "parse_failures"
    LOOP = "loop"
    TIMEOUT = "timeout"
    ENVIRONMENT_ERROR = "environment_error"
    POLICY_ERROR = "policy_error"
    CANCELLED = "cancelled"


INFRASTRUCTURE_REASONS = frozenset(
    {TerminationReason.ENVIRONMENT_ERROR, TerminationReason.POLICY_ERROR, TerminationReason.CANCELLED}
)
"""Endings the policy did not cause: retried or dropped, counted, and never scored."""

TRUNCATION_REASONS = frozenset(
    {TerminationReason.STEP_LIMIT, TerminationReason.TOKEN_LIMIT, TerminationReason.TIMEOUT, TerminationReason.LOOP}
)
"""Endings by a limit rather than by the job itself (Gymnasium's ``truncated``)."""


class Failure(Record, frozen=True):
    """Infrastructure trouble: which kind, in which phase, and the exception's text."""

    kind: str
    """Exception class name."""
    phase: Literal["reset", "policy", "step", "verify", "cancelled"]
    message: str
    attempts: int = 1
    trace: str = ""
    """The exception's traceback, for whoever looks for the cause; messages to users leave it out."""


class Verdict(Record, frozen=True):
    """What the verifier read from the environment's final state."""

    solved: bool
    progress: float = 0.0
    """Share of the job done, in [0, 1]; 1.0 if and only if solved."""
    milestones: dict[str, bool] = {}
    """Process milestones by name, each counted once (e.g. ``looked_up_order``)."""
    violations: tuple[str, ...] = ()
    """Hard requirements that were broken; any of them vetoes the reward."""


class TermScore(Record, frozen=True):
    """One reward term's part in a breakdown."""

    value: float | None
    """In [0, 1] before gate and weight; None = could not score."""
    weight: float
    gate: float = 1.0
    """Factor in [0, 1] applied by the rubric's progress gate."""

    @property
    def contribution(self) -> float | None:
        return None if self.value is None else self.value * self.weight * self.gate


class RewardBreakdown(Record, frozen=True):
    """Reward per term. `total` is None when the episode could not be scored; that is not 0.0."""

    total: float | None
    terms: dict[str, TermScore] = {}
    vetoes: tuple[str, ...] = ()


class Provenance(Record, frozen=True):
    """Where a trajectory came from."""

    run_id: str = ""
    stage: str = ""
    attempt: int = 1
    config_hash: str = ""
    seed: int = 0
    policy_version: str = "0"
    source: Source = "policy"
    tool_versions: dict[str, str] = {}
    prompt_variant: str = ""
    """Name of the prompt perturbation used, empty for the plain prompt."""
    noise: dict[str, float] = {}
    """Levels of the noise it was played under, by kind; empty without noise."""


class Trajectory(Record, frozen=True):
    """One episode. `failure` set means infrastructure trouble: then there is no verdict and no reward."""

    episode_id: str
    task_id: str
    family: str = "default"
    difficulty: str = "easy"
    split: Split = "train"
    role: str = "agent"
    steps: tuple[Step, ...] = ()
    termination: TerminationReason = TerminationReason.TOOL_ENDED
    failure: Failure | None = None
    verdict: Verdict | None = None
    breakdown: RewardBreakdown | None = None
    provenance: Provenance = Provenance()
    duration_s: float = 0.0
    schema_version: int = SCHEMA_VERSION
    shortest_steps: int | None = None

    @property
    def errored(self) -> bool:
        return self.failure is not None

    @property
    def truncated(self) -> bool:
        return self.termination in TRUNCATION_REASONS

    @property
    def solved(self) -> bool | None:
        """True or False as the verifier said; None when it never got to judge."""
        return None if self.verdict is None else self.verdict.solved

    @property
    def reward(self) -> float | None:
        return None if self.breakdown is None else self.breakdown.total

    @property
    def own_steps(self) -> tuple[Step, ...]:
        """The steps without those that injected noise took: what the agent needed."""
        return tuple(step for step in self.steps if step.tool_output is None or not step.tool_output.by_noise)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(step.completion.token_ids) for step in self.steps)


class TrajectoryGroup(Record, frozen=True):
    """Sibling episodes of one task played by one role."""

    task_id: str
    role: str
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        for trajectory in self.trajectories:
            if (trajectory.task_id, trajectory.role) != (self.task_id, self.role):
                raise ValueError(
                    f"a group holds one task and one role: expected {(self.task_id, self.role)}, "
                    f"got {(trajectory.task_id, trajectory.role)}; group by (task_id, role) first"
                )
