"""Where each episode lies in a store's file: offsets by episode id, kept up to date by reading only what is new."""

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


class EpisodeIndex:
    """Offsets of every line that is JSON and names an episode; whether the rest of the line is right is not checked.

    Memory grows with the number of episodes (an id and a number each), not with their length.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.read_up_to = 0
        """Offset behind the last line that was complete when last looked at."""
        self.size = 0
        self.origins: set[Origin] = set()
        self._last: dict[str, int] = {}
        self._earlier: dict[str, list[int]] = {}

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
            self._take(offset, line)
            if line.endswith(b"\n"):
                self.read_up_to = offset + len(line)
        self.size = max(size, self.read_up_to)

    def _take(self, offset: int, line: bytes) -> None:
        try:
            head = _head_decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self.add(head.episode_id, offset, head.provenance)

    def add(self, episode_id: str, offset: int, origin: Origin) -> None:
        """Notes a line; noting the same line twice changes nothing."""
        self.origins.add(origin)
        before = self._last.get(episode_id)
        if before == offset:
            return
        if before is not None:
            self._earlier.setdefault(episode_id, []).append(before)
        self._last[episode_id] = offset

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._last

    def offsets(self, episode_id: str) -> list[int]:
        """Offsets of the lines with this id, in file order; empty for an unknown id."""
        if episode_id not in self._last:
            return []
        return [*self._earlier.get(episode_id, ()), self._last[episode_id]]
