"""Messages to tokens for one model family, and the suffix that extends recorded tokens.

Recorded tokens are never rendered again. A turn is appended to them, so whatever a template does to old turns (drop
reasoning, wrap it again) cannot change what the policy really saw. The template is rendered with placeholders for the
contents; template text may become control tokens, contents never do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Protocol

from deedrl.errors import ModelError
from deedrl.reasoning import REASONING_TAGS
from deedrl.types import Message

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template every tokenizer with the two ChatML tokens can use (recipe: ``model.chat_template: chatml``)."""

_REMEDY = "set model.chat_template in the recipe to 'chatml' or to a file with a Jinja template that does"
_MARK = re.compile("\ue000([0-9]+)\ue001")


class Tokenizer(Protocol):
    """What the renderer needs of a transformers tokenizer."""

    chat_template: Any
    bos_token_id: int | None
    added_tokens_decoder: Mapping[int, Any]

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...
    def __call__(self, text: str, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Sequence[int], **kwargs: Any) -> Any: ...


def _mark(index: int) -> str:
    return f"\ue000{index}\ue001"


class Renderer:
    """Renders for one tokenizer; raises ModelError at construction if its template cannot carry training."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer: Tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise ModelError(f"the tokenizer has no chat template; expected one that marks turns; {_REMEDY}")
        self._system_role = self._accepts_system_role()
        self._encode = lru_cache(maxsize=65536)(self._encode_uncached)
        self._check_template()

    # ------------------------------------------------------------ public

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """A whole conversation, ready for the assistant to speak; exactly one BOS if the model uses one."""
        ids = self._render(messages, generation=True)
        return ids if not self._adds_bos or ids[:1] == [self.tokenizer.bos_token_id] else [self._bos_id, *ids]

    def system_prefix_ids(self, messages: Sequence[Message]) -> list[int]:
        """The head of `prompt_ids` that does not depend on what follows the system message; may be empty."""
        if not messages or messages[0].role != "system":
            return []
        one, two = (self.prompt_ids([messages[0], Message(role="user", content=text)]) for text in ("a", "\nB"))
        return one[: _common_length(one, two)]

    def extension_ids(self, sampled: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """The tokens between a sampled assistant turn and the next one, for `new_messages` in between.

        `sampled` are the recorded ids of that turn: if they lack the turn-end token (the turn was cut), it is added
        here as context, so it is never trained as if the policy had chosen it.
        """
        tail = self._tail(tuple(new_messages))
        return tail[1:] if sampled and sampled[-1] == self.turn_end_id else tail

    def completion_ids(self, text: str) -> list[int]:
        """The ids of an assistant turn with content `text`, turn-end token included, as SFT trains it.

        Where the generation prompt already opens a think block, `text` does not open it again and the block is closed
        here if `text` does not.
        """
        if self._opened_tags is not None:
            text = _within_opened(text, *self._opened_tags)
        return [*self._encode(text, False), self.turn_end_id]

    def text(self, ids: Sequence[int]) -> str:
        """Decodes sampled ids to text without the turn-end token."""
        body = ids[:-1] if ids and ids[-1] == self.turn_end_id else ids
        return str(self.tokenizer.decode(list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @cached_property
    def turn_end_id(self) -> int:
        """The control token that ends an assistant turn: sampled by the policy, and trained."""
        return self._tail((Message(role="user", content="x"),))[0]

    # ------------------------------------------------------------ rendering with placeholders

    def _template(self, messages: Sequence[Message], generation: bool) -> str:
        conversation = [
            {"role": "user" if m.role == "tool" else m.role, "content": _mark(i)} for i, m in enumerate(messages)
        ]
        if not self._system_role and conversation and conversation[0]["role"] == "system":
            # Such templates want the system text inside the first user turn.
            head = conversation.pop(0)["content"]
            conversation[0]["content"] = head + "\n\n" + conversation[0]["content"]
        return str(self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=generation))

    def _render(self, messages: Sequence[Message], generation: bool) -> list[int]:
        return self._fill(self._template(messages, generation), messages)

    def _fill(self, rendered: str, messages: Sequence[Message]) -> list[int]:
        """Encodes template text (control tokens allowed) and contents (never) piece by piece."""
        ids: list[int] = []
        # Template text and numbers of messages in turn, in the template's own order: some put the system text last.
        for place, piece in enumerate(_MARK.split(rendered)):
            ids += self._content_ids(messages[int(piece)]) if place % 2 else self._encode(piece, True)
        return ids

    def _content_ids(self, message: Message) -> list[int]:
        """Ids of what a message says; in what tools and users say, words of the template are cut into characters."""
        content = message.content
        if message.role not in ("user", "tool") or self._template_words is None:
            return self._encode(content, False)
        cuts = [0, *(word.start() + 1 for word in self._template_words.finditer(content)), len(content)]
        return [token for start, end in pairwise(cuts) for token in self._encode(content[start:end], False)]

    def _tail(self, new_messages: tuple[Message, ...]) -> list[int]:
        opening = (Message(role="user", content=""), Message(role="assistant", content=""))
        messages = [*opening, *new_messages]
        rendered = self._template(messages, generation=True)
        return self._fill(rendered.split(_mark(1), 1)[1], messages)

    def _encode_uncached(self, text: str, control: bool) -> list[int]:
        if not text:
            return []
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=not control)["input_ids"])

    # ------------------------------------------------------------ what the template can do

    def _accepts_system_role(self) -> bool:
        probe = [{"role": "system", "content": _mark(0)}, {"role": "user", "content": _mark(1)}]
        try:
            return _mark(0) in str(self.tokenizer.apply_chat_template(probe, tokenize=False))
        except Exception as error:  # jinja2's raise_exception; the class depends on the transformers version
            if "system" in str(error).lower():
                return False
            raise ModelError(f"the chat template cannot render a conversation: {error}; {_REMEDY}") from error

    @cached_property
    def _bos_id(self) -> int:
        assert self.tokenizer.bos_token_id is not None
        return self.tokenizer.bos_token_id

    @cached_property
    def _template_words(self) -> re.Pattern[str] | None:
        """Added tokens that count as ordinary text and yet mean something in a conversation (``</think>``,
        ``<tool_call>`` of some families): the tokenizer would make them of any text that holds their characters."""
        meant = "\n".join([str(self.tokenizer.chat_template), *(tag for tags in REASONING_TAGS for tag in tags)])
        added = (token for token in self.tokenizer.added_tokens_decoder.values() if not token.special)
        words = [token.content for token in added if len(token.content.strip()) > 1 and token.content in meant]
        return re.compile("|".join(map(re.escape, words))) if words else None

    @cached_property
    def _adds_bos(self) -> bool:
        bos = self.tokenizer.bos_token_id
        return bos is not None and list(self.tokenizer("a")["input_ids"])[:1] == [bos]

    @cached_property
    def _opened_tags(self) -> tuple[str, str] | None:
        """The tags of the think block that the generation prompt opens, if it opens one."""
        head = self._template([Message(role="user", content="x")], generation=True).rstrip()
        return next((tags for tags in REASONING_TAGS if head.endswith(tags[0])), None)

    def _check_template(self) -> None:
        turns = [Message(role=r, content="x") for r in ("user", "assistant", "user", "assistant")]
        try:
            short = self._template(turns[:2], generation=False)
            longer = self._template(turns[:3], generation=True)
            whole = self._template(turns, generation=False)
        except Exception as error:  # a template is a program of its author; any exception may come out of it
            raise ModelError(
                f"the chat template cannot render a conversation of tool turns: {error}; {_REMEDY}"
            ) from error
        for index in range(4):
            times = whole.count(_mark(index))
            if times != 1:
                raise ModelError(
                    f"the chat template must show each message once; turn {index} came {times} times; {_REMEDY}"
                )
        head = short.split(_mark(1))[0]
        if not longer.startswith(head[: head.rfind(_mark(0)) + 1]):
            raise ModelError(f"the chat template rewrites the user's turn when the conversation grows; {_REMEDY}")
        end = longer.split(_mark(1), 1)[1]
        first = self._encode_uncached(end, True)[:1]
        as_text = self._encode_uncached(end, False)[:1]
        if not first or first == as_text:
            raise ModelError(
                "the chat template ends an assistant turn with "
                f"{end[:12]!r}, expected a control token the model can learn to stop with; {_REMEDY}"
            )


def _within_opened(text: str, opening: str, closing: str) -> str:
    """`text` as it goes on in a think block that is open already: closed once and not opened again."""
    if closing not in text or _is_object(text):
        return f"\n{closing}\n\n{text}"
    bare = text.lstrip()
    return bare.removeprefix(opening).removeprefix("\n") if bare.startswith(opening) else text


def _is_object(text: str) -> bool:
    """Whether all of `text` is one JSON object: then a tag in it is part of a value and closes nothing."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _common_length(one: Sequence[int], two: Sequence[int]) -> int:
    length = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        length += 1
    return length
