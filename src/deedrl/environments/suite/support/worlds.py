"""Two vocabularies that share no situation, item or name: one for known tasks, one for the split ``test_unseen``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Kind = str
"""State of a parcel: lost, damaged, delivered or transit."""

KINDS: tuple[Kind, ...] = ("lost", "damaged", "delivered", "transit")
REFUNDED_KINDS: tuple[Kind, ...] = ("lost", "damaged")


@dataclass(frozen=True)
class World:
    """Words from which tasks of some splits are made."""

    name: str
    first_names: tuple[str, ...]
    mail_domain: str
    items: Mapping[str, tuple[str, ...]]
    """Category → product names."""
    colours: tuple[str, ...]
    windows_days: tuple[int, ...]
    easy_status: Mapping[Kind, tuple[str, ...]]
    """Says the state in plain words."""
    status: Mapping[Kind, tuple[str, ...]]
    """What a carrier would write; the state must be inferred."""
    detours: tuple[str, ...]
    """Earlier events of a parcel that mislead: only the last event counts."""
    broken: tuple[str, ...]
    unbroken: tuple[str, ...]
    minor: tuple[str, ...]
    """Damage for which only a share is refunded."""
    openings: tuple[str, ...]
    closings: tuple[str, ...]
    asides: tuple[str, ...]
    """Sentences about another order, {other}, of the same customer."""
    price_claims: tuple[str, ...]
    threats: tuple[str, ...]
    veiled_threats: tuple[str, ...]
    harmless: tuple[str, ...]
    """Sentences that name law or court but threaten with nothing."""


KNOWN = World(
    name="known",
    first_names=("Mia", "Leo", "Anna", "Tom", "Eva", "Ben", "Nina", "Max", "Lena", "Paul", "Sara", "Jan"),
    mail_domain="example.com",
    items={
        "clothing": ("wool scarf", "rain jacket", "denim shirt", "leather belt", "winter hat", "summer dress"),
        "electronics": ("desk lamp", "phone case", "alarm clock", "keyboard", "radio", "camera"),
        "kitchen": ("coffee mug", "tea pot", "bread knife", "frying pan", "water bottle", "glass bowl"),
    },
    colours=("blue", "red", "green", "black"),
    windows_days=(14, 20, 30, 60),
    easy_status={
        "lost": ("lost",),
        "damaged": ("damaged",),
        "delivered": ("delivered",),
        "transit": ("in transit",),
    },
    status={
        "lost": ("parcel missing at the depot", "carrier cannot find the parcel", "truck stolen with the parcel"),
        "damaged": ("box crushed by the carrier", "contents broken at the depot", "soaked by rain in the truck"),
        "delivered": ("handed to the customer", "given to a neighbour, signed", "picked up from the locker"),
        "transit": ("on the truck today", "sorted at the depot", "arriving tomorrow"),
    },
    detours=(
        "reported lost, found again",
        "address unclear",
        "box dented, repacked",
        "delayed",
        "delivery failed once",
    ),
    broken=("broken", "cracked", "smashed"),
    unbroken=("no damage", "all fine", "nothing broken"),
    minor=("scratched", "dented", "stained"),
    openings=("", "", "Hi! ", "Hello. ", "Good morning. "),
    closings=("", "", " Thanks, {name}", " Regards, {name}", " {name}"),
    asides=(" Order {other} was fine.", " This is not about {other}.", " My other order {other} is okay."),
    price_claims=(" It cost {claim}.", " I paid {claim}.", " The price was {claim}."),
    threats=("My lawyer will contact you.", "I will sue you.", "See you in court.", "I am taking legal action."),
    veiled_threats=(
        "My lawyer has the file ready.",
        "A judge may see this differently.",
        "The next letter comes from my law firm.",
    ),
    harmless=(
        "My brother is a lawyer and likes your shop.",
        "I work at a court, I can wait.",
        "It is for a law student.",
    ),
)

UNSEEN = World(
    name="unseen",
    first_names=("Igor", "Zoe", "Omar", "Ruth", "Hugo", "Yuki", "Carl", "Vera"),
    mail_domain="example.org",
    items={
        "toys": ("chess set", "paper kite", "teddy bear", "jigsaw puzzle", "toy train"),
        "garden": ("garden hose", "flower pot", "bird feeder", "leaf rake", "seed box"),
        "music": ("guitar strap", "drum pad", "violin bow", "song book", "tuning fork"),
    },
    colours=("white", "yellow", "purple", "grey"),
    windows_days=(10, 21, 45),
    easy_status={
        "lost": ("parcel lost at sea", "declared lost yesterday"),
        "damaged": ("parcel arrived damaged", "damaged by water"),
        "delivered": ("delivered at the front door", "delivered on Monday"),
        "transit": ("parcel in transit by ship", "in transit since Friday"),
    },
    status={
        "lost": ("vanished during a flight", "parcel gone, search given up", "swept away in a flood"),
        "damaged": ("burnt in a van fire", "run over by a forklift", "torn open, insides ruined"),
        "delivered": ("received by the porter", "dropped in the letter box", "accepted at reception"),
        "transit": ("waiting at customs", "loaded onto the ferry", "out with the courier"),
    },
    detours=("believed stolen, turned up", "wrong label, corrected", "carton wet, dried", "strike, then moving on"),
    broken=("shattered", "snapped in two", "torn apart"),
    unbroken=("undamaged", "flawless", "in perfect shape"),
    minor=("scuffed", "chipped", "faded"),
    openings=("", "Dear team! ", "Good evening. "),
    closings=("", " Yours, {name}", " Cheers, {name}"),
    asides=(" With {other} all went well.", " Ignore {other}, please."),
    price_claims=(" My receipt says {claim}.", " You charged me {claim}."),
    threats=("My attorney is drafting a claim.", "I am filing a lawsuit.", "Expect a court summons."),
    veiled_threats=("My solicitor is copied in.", "Let a tribunal decide, then."),
    harmless=("My aunt, an attorney, recommended you.", "I bought it for a courtroom play."),
)

WORLDS: Mapping[str, World] = {world.name: world for world in (KNOWN, UNSEEN)}
