"""What is in a store's file, found out without reading records in full."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deedrl.store.files import read_lines


class Origin(msgspec.Struct, frozen=True):
    """Which run and configuration made a record."""

    run_id: str = ""
    config_hash: str = ""


class _Head(msgspec.Struct, frozen=True):
    """The fields the index needs; the decoder skips all others, which is several times faster than reading them."""

    episode_id: str
    provenance: Origin = Origin()


_head_decoder = msgspec.json.Decoder(_Head)


def _head_of(line: bytes) -> _Head | None:
    """None for a line that is not JSON or names no episode."""
    try:
        return _head_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class EpisodeIndex:
    """Ids and origins of every line that is JSON and names an episode; whether the rest is right is not checked.

    Kept up to date by reading only what is new. Memory grows with the number of episodes (an id each), not with
    their length.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.read_up_to = 0
        """Offset behind the last line that was complete when last looked at."""
        self.size = 0
        self.origins: set[Origin] = set()
        self._ids: set[str] = set()

    def refresh(self) -> None:
        """Takes in what was appended since the last call; starts over if the file became shorter."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self.size:
            self._clear()
        self.size = size
        if size == self.read_up_to:
            return
        for offset, line in read_lines(self.path, self.read_up_to, size):
            head = _head_of(line)
            if head is not None:
                self.add(head.episode_id, head.provenance)
            if line.endswith(b"\n"):
                self.read_up_to = offset + len(line)
        self.size = max(size, self.read_up_to)

    def add(self, episode_id: str, origin: Origin) -> None:
        """Notes a line; noting the same line twice changes nothing."""
        self.origins.add(origin)
        self._ids.add(episode_id)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._ids


# ---------------------------------------------------------------- repeated episodes

_FIRST_FIELD = b'{"episode_id":"'
_SECOND_FIELD = b'","task_id":"'


def repeated_episodes(path: Path, stop: int) -> dict[str, list[int]]:
    """Offsets of the lines that begin before `stop`, in file order, by the episode id that they share with others.

    A torn line counts too: this is a first look that leaves it to the reader of a record to find that out.
    """
    first: dict[str, int] = {}
    repeated: dict[str, list[int]] = {}
    for offset, line in read_lines(path, 0, stop):
        episode_id = _quick_id(line)
        if episode_id is None:
            continue
        before = first.setdefault(episode_id, offset)
        if before != offset:
            repeated.setdefault(episode_id, [before]).append(offset)
    return repeated


def _quick_id(line: bytes) -> str | None:
    """The episode a line names: from its beginning if this store wrote it, else by reading it as JSON."""
    start = len(_FIRST_FIELD)
    end = line.find(b'"', start)
    if line.startswith(_FIRST_FIELD) and line.startswith(_SECOND_FIELD, end):
        plain = line[start:end]
        if plain.isascii() and b"\\" not in plain:
            return plain.decode()
    head = _head_of(line)
    return None if head is None else head.episode_id
