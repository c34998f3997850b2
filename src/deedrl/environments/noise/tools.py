"""Tools as noise shows them: further ones that are of no use, and another order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from deedrl.environments.noise.levels import Noise
from deedrl.seeding import stream
from deedrl.tools.tool import Tool, tool
from deedrl.tools.toolbox import Toolbox

# The answers say nothing that could be taken for a fact of any job.


@tool(read_only=True)
def get_weather(place: str) -> str:
    """Shows the weather of a place."""
    return "No weather report is stored for this place."


@tool(read_only=True)
def list_announcements() -> str:
    """Lists announcements on the notice board."""
    return "The notice board is empty."


@tool(read_only=True)
def list_holidays(year: int) -> str:
    """Lists public holidays of a year."""
    return "No calendar is stored for this year."


@tool(read_only=True)
def search_news(topic: str) -> str:
    """Searches newspapers for a topic."""
    return "No newspaper writes about this topic."


@tool(read_only=True)
def get_exchange_rate(currency: str) -> str:
    """Shows the exchange rate of a currency."""
    return "No exchange rate is stored for this currency."


@tool(read_only=True)
def show_canteen_menu(day: str) -> str:
    """Shows the menu of the canteen."""
    return "No menu is stored for this day."


@tool(read_only=True)
def translate_word(word: str) -> str:
    """Translates a word."""
    return "No translation is stored for this word."


@tool(read_only=True)
def suggest_synonyms(word: str) -> str:
    """Suggests words of the same meaning."""
    return "No synonyms are stored for this word."


DISTRACTORS: Mapping[str, Tool] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            get_weather,
            list_announcements,
            list_holidays,
            search_news,
            get_exchange_rate,
            show_canteen_menu,
            translate_word,
            suggest_synonyms,
        )
    }
)


def noisy_tools(tools: Toolbox, noise: Noise, task_id: str) -> Toolbox:
    """`tools` with the distracting tools and in the order that episodes of the task have under `noise`.

    The task alone decides, not the episode's seed: siblings that are compared have the same prompt, whose computation
    they share. A tool that takes plain text stays alone, and a distracting tool gives way to a real one of its name.
    """
    if any(entry.schema.plain_text is not None for entry in tools.values()):
        return tools
    drawn = stream(0, "noise", "distractors", task_id)
    chance = noise.chance("distractors")
    extra = [entry for name, entry in DISTRACTORS.items() if drawn.random() < chance and name not in tools]
    listed = [*tools.values(), *extra]
    order = stream(0, "noise", "tool_order", task_id)
    if order.random() < noise.chance("tool_order"):
        order.shuffle(listed)
    return Toolbox(listed)
