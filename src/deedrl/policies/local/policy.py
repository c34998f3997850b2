"""The policy that samples from a model in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from deedrl.policies.local.attention import context_limit
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.guide import ActionGuides
from deedrl.policies.local.turn import Turn
from deedrl.policies.policy import CompletionRequest, ContextFull
from deedrl.rendering.renderer import Renderer
from deedrl.types import Completion, Message

_STALL_S = 0.001
"""Pause while every row belongs to an episode that waits for a tool, so that the tools get the processor."""


class _Ledger:
    """What one episode's tokens are so far: exactly the context given and the ids sampled."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.last_sampled: tuple[int, ...] = ()
        self.messages_seen = 0


class LocalPolicy:
    """Samples with the model's own weights, many episodes in one batch; implements `Policy`.

    Call `weights_changed` after an update. `guided=True` constrains every turn to the schema of an action, which
    makes the recorded log-probabilities those of the constrained distribution; completions say so. A turn ends with
    one of `stop_ids`: the template's own end of a turn, if not given.
    """

    def __init__(
        self,
        model: Any,
        renderer: Renderer,
        *,
        max_rows: int = 64,
        guided: bool = False,
        version: str = "0",
        stop_ids: Sequence[int] | None = None,
    ) -> None:
        ends = [renderer.turn_end_id] if stop_ids is None else stop_ids
        self._engine = Engine(model, stop_ids=ends, max_rows=max_rows)
        self._model = model
        self._renderer = renderer
        self._limit = context_limit(model)
        vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self._guides = ActionGuides(renderer.tokenizer, vocabulary, renderer.turn_end_id) if guided else None
        self._version = version
        self._ledgers: dict[str, _Ledger] = {}
        self._futures: dict[str, asyncio.Future[Turn]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._prefixes: dict[str, list[int]] = {}

    @property
    def version(self) -> str:
        return self._version

    def weights_changed(self, version: str) -> None:
        """Drops all caches and names the new weights; no episode may be in flight."""
        self.rest()
        self._version = version

    def rest(self) -> None:
        """Gives back the memory that sampling needs (caches, the copy of the weights) until the next turn; no episode
        may be in flight."""
        self._engine.reset()
        self._ledgers.clear()

    def hold_weights(self) -> None:
        """Samples with the weights as they are now, whatever an update does to the model, until `weights_changed` or
        `rest`. Raises ModelError where more than plain LoRA on linear layers is trained."""
        self._engine.hold_weights()

    async def complete(self, request: CompletionRequest) -> Completion:
        """Samples one turn; raises `ContextFull` when it would not fit the model's positions."""
        ledger = self._ledgers.setdefault(request.episode_id, _Ledger())
        extends = ledger.messages_seen > 0
        context = self._new_context(ledger, request.messages)
        ids = [*ledger.ids, *context]
        if len(ids) + request.sampling.max_tokens > self._limit:
            raise ContextFull(f"{len(ids)} context tokens leave no room in {self._limit}")
        turn = Turn(
            key=request.episode_id,
            context=tuple(ids),
            prefix=self._system_prefix(request.messages),
            max_tokens=request.sampling.max_tokens,
            temperature=request.sampling.temperature,
            seed=request.seed,
            guide=self._guides.start(request.tools) if self._guides else None,
        )
        finished = await self._sampled(turn)
        # Only now: a turn that was cancelled or failed leaves no trace.
        ledger.ids = [*ids, *finished.tokens]
        ledger.last_sampled = tuple(finished.tokens)
        ledger.messages_seen = len(request.messages) + 1
        return Completion(
            text=self._renderer.text(finished.tokens),
            token_ids=ledger.last_sampled,
            logprobs=tuple(finished.logprobs),
            prompt_ids=tuple(context),
            extends_previous=extends,
            finish_reason="stop" if finished.finish_reason == "stop" else "length",
            policy_version=self._version,
            guided=self._guides is not None,
            cached_tokens=max(len(ids) - finished.computed, 0),
        )

    async def release(self, episode_id: str) -> None:
        self._ledgers.pop(episode_id, None)
        self._engine.release(episode_id)

    def _new_context(self, ledger: _Ledger, messages: tuple[Message, ...]) -> list[int]:
        if ledger.messages_seen == 0:
            return self._renderer.prompt_ids(messages)
        return self._renderer.extension_ids(ledger.last_sampled, messages[ledger.messages_seen :])

    def _system_prefix(self, messages: tuple[Message, ...]) -> list[int]:
        if not messages or messages[0].role != "system":
            return []
        system = messages[0].content
        if system not in self._prefixes:
            self._prefixes[system] = self._renderer.system_prefix_ids(messages)
        return self._prefixes[system]

    # ------------------------------------------------------------ the engine's loop

    async def _sampled(self, turn: Turn) -> Turn:
        future: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self._futures[turn.key] = future
        self._engine.submit(turn)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.get_running_loop().create_task(self._run())
        try:
            return await future
        finally:
            self._futures.pop(turn.key, None)
            if not future.done() or future.cancelled():
                self._engine.abandon(turn.key)

    async def _run(self) -> None:
        """Steps the engine while turns are in it; between steps the event loop runs tools and admits new turns."""
        # Requests of one wave arrive in the same pass of the loop: let them all in before the first prefill.
        await asyncio.sleep(0)
        try:
            while self._engine.busy:
                for turn in self._engine.step():
                    future = self._futures.get(turn.key)
                    if future is not None and not future.done():
                        future.set_result(turn)
                await asyncio.sleep(0 if self._engine.running else _STALL_S)
        except Exception as error:  # noqa: BLE001  boundary: whoever waits must learn of it instead of waiting for ever
            for key, future in self._futures.items():
                self._engine.abandon(key)
                if not future.done():
                    future.set_exception(error)
