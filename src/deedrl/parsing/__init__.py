"""Turns what a model wrote into an `Action`: strict JSON, then string-aware repair, then an error it can act on."""

from deedrl.parsing.parser import format_score, note_on_ignored, parse_action

__all__ = ["format_score", "note_on_ignored", "parse_action"]
