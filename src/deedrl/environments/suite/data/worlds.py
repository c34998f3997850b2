"""Two vocabularies that share no table, column, value or sentence: one for known tasks, one for ``test_unseen``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Field:
    """A text column: the word for it, another name the column may have, and its values."""

    word: str
    alias: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """A table about one kind of thing, the table it refers to, and the service log of its office."""

    table: str
    noun: str
    place: Field
    thing: Field
    amount: tuple[str, str]
    """The word for a number, and another name its column may have."""
    state: Field
    """The last value marks rows that are not real."""
    partner: str
    """Table that this one refers to."""
    partner_noun: str
    link: str
    region: Field
    log: str
    """Name of the log file, without its ending."""


@dataclass(frozen=True)
class World:
    """Words from which tasks of some splits are made."""

    key: str
    """Name of the key column of every table."""
    day: str
    name: str
    """Column with the names of partners."""
    old: str
    """Ending of the name of a table that is out of date."""
    months: tuple[str, ...]
    names: tuple[str, ...]
    subjects: tuple[Subject, ...]
    levels: tuple[str, ...]
    """Of log lines; the first two are what is asked about."""
    services: tuple[str, ...]
    log_columns: tuple[str, str, str, str, str]
    """Day, level, service, milliseconds and partner, as the log names them."""
    prompts: Mapping[str, tuple[str, ...]]
    """family/level[/outcome] → questions."""
    notes: Mapping[str, str]
    """Level → what is wrong with the data."""


KNOWN = World(
    key="id",
    day="day",
    name="name",
    old="_old",
    months=("2024-01", "2024-02", "2024-03", "2024-04"),
    names=("Mia", "Leo", "Anna", "Tom", "Eva", "Ben", "Nina", "Max", "Lena", "Paul", "Sara", "Jan", "Ida", "Karl"),
    subjects=(
        Subject(
            table="orders",
            noun="order",
            place=Field("city", "city_name", ("Bonn", "Kiel", "Ulm", "Trier", "Mainz", "Jena")),
            thing=Field("item", "item_name", ("lamp", "chair", "clock", "radio", "scarf", "mug")),
            amount=("amount", "amount_eur"),
            state=Field("status", "order_status", ("paid", "open", "sent", "test")),
            partner="customers",
            partner_noun="customer",
            link="customer_id",
            region=Field("country", "country_name", ("Spain", "Italy", "Norway", "Poland", "France")),
            log="shop",
        ),
        Subject(
            table="loans",
            noun="loan",
            place=Field("branch", "branch_name", ("North", "South", "Harbour", "Station", "Park", "Market")),
            thing=Field("genre", "book_genre", ("novel", "poetry", "travel", "history", "crime", "comic")),
            amount=("pages", "page_count"),
            state=Field("state", "loan_state", ("returned", "late", "lent", "dummy")),
            partner="readers",
            partner_noun="reader",
            link="reader_id",
            region=Field("town", "home_town", ("Lyon", "Porto", "Turin", "Ghent", "Malmo")),
            log="library",
        ),
        Subject(
            table="repairs",
            noun="repair",
            place=Field("garage", "garage_name", ("Elm", "Oak", "Pine", "Maple", "Cedar", "Birch")),
            thing=Field("part", "part_name", ("brake", "clutch", "mirror", "engine", "tyre", "wiper")),
            amount=("cost", "cost_total"),
            state=Field("stage", "repair_stage", ("done", "waiting", "started", "trial")),
            partner="drivers",
            partner_noun="driver",
            link="driver_id",
            region=Field("team", "team_name", ("Red", "Blue", "Green", "White", "Black")),
            log="garage",
        ),
    ),
    levels=("ERROR", "WARN", "INFO", "DEBUG"),
    services=("login", "search", "basket", "payment", "mail"),
    log_columns=("day", "level", "service", "ms", "user"),
    prompts={
        "lookup/easy": ("What is the {asked} of {noun} {id}?", "Tell me the {asked} of {noun} {id}."),
        "lookup/medium": ("What is the {asked} of the {noun} with {place} '{p}' and {thing} '{t}'?",),
        "lookup/hard": ("Among {table} with {place} '{p}', take the latest by day. What is its {asked}?",),
        "count/easy": ("How many {table} have {asked} '{v}'?", "Count the {table} with {asked} '{v}'."),
        "count/medium/above": ("How many {table} with {place} '{p}' have {amount} above {limit}?",),
        "count/medium/below": ("How many {table} with {place} '{p}' have {amount} below {limit}?",),
        "count/hard": ("How many values of {place} have at least {least} {table} with {amount} above {limit}?",),
        "total/easy": ("What is the total {amount} of {table} with {place} '{p}'?",),
        "total/medium": ("What is the average {amount} of {table} with {place} '{p}'? Round to 2 decimals.",),
        "total/hard": (
            "What percentage of the total {amount} of all {table} comes from {place} '{p}'? Round to 1 decimal.",
        ),
        "extreme/easy/highest": ("Which {noun} id has the highest {amount}?",),
        "extreme/easy/lowest": ("Which {noun} id has the lowest {amount}?",),
        "extreme/medium/highest": ("Which {place} has the highest total {amount} of {table}?",),
        "extreme/medium/lowest": ("Which {place} has the lowest total {amount} of {table}?",),
        "extreme/hard/top": ("Name the three values of {place} with the highest total {amount}, highest first.",),
        "extreme/hard/above": ("Name all values of {place} in {table} with a total {amount} above {limit}.",),
        "join/easy": ("What is the {region} of the {partner_noun} of {noun} {id}? See {link}.",),
        "join/medium": ("How many {table} belong to {partner} with {region} '{r}'?",),
        "join/hard": ("Name all {partner} with {region} '{r}' that have no {noun} with {state} '{s}'.",),
        "log/easy": ("How many lines of {file} contain {v}?", "Count the lines with {v} in {file}."),
        "log/medium": ("In {file}, how many calls of service '{v}' took more than {limit} ms?",),
        "log/hard": ("How many ms did all ERROR calls of the {partner_noun} {name} take together, in both log files?",),
        "anomaly/easy": ("How many real {table} have {place} '{p}'? The note says what is not real.",),
        "anomaly/medium": ("What is the total {amount} of valid {table} with {place} '{p}'? Mind the note.",),
        "anomaly/hard": (
            "What is the average {amount} of valid {table} with {place} '{p}'? Mind the note. Round to 2 decimals.",
        ),
    },
    notes={
        "easy": "Leave out {state} = '{fake}': not real.",
        "medium": "Leave out {state} = '{fake}' and every row with a negative {amount}.",
        "hard": "Some rows were loaded twice under another id: count them once. Leave out {state} = '{fake}', rows "
        "with a negative {amount} and rows without {amount}.",
    },
)

UNSEEN = World(
    key="code",
    day="date_utc",
    name="label",
    old="_archive",
    months=("2025-06", "2025-07", "2025-09"),
    names=("Igor", "Zoe", "Omar", "Ruth", "Hugo", "Yuki", "Carl", "Vera", "Pia", "Noah", "Tess", "Abel"),
    subjects=(
        Subject(
            table="flights",
            noun="flight",
            place=Field("airport", "airport_from", ("Oslo", "Quito", "Perth", "Lima", "Accra", "Hanoi")),
            thing=Field("plane", "plane_type", ("jet", "glider", "seaplane", "airship", "biplane", "cargo")),
            amount=("delay", "delay_minutes"),
            state=Field("phase", "flight_phase", ("landed", "boarding", "airborne", "simulated")),
            partner="pilots",
            partner_noun="pilot",
            link="pilot_code",
            region=Field("squad", "squad_title", ("Falcon", "Heron", "Raven", "Stork", "Eagle")),
            log="tower",
        ),
        Subject(
            table="harvests",
            noun="harvest",
            place=Field("field", "field_label", ("Hilltop", "Riverside", "Meadow", "Valley", "Orchard", "Terrace")),
            thing=Field("crop", "crop_kind", ("barley", "maize", "lentil", "onion", "melon", "hops")),
            amount=("kilos", "kilos_net"),
            state=Field("quality", "quality_mark", ("prime", "fair", "coarse", "fictive")),
            partner="farmers",
            partner_noun="farmer",
            link="farmer_code",
            region=Field("valley", "home_valley", ("Alba", "Brenta", "Corva", "Drava", "Enza")),
            log="barn",
        ),
    ),
    levels=("FATAL", "ALERT", "TRACE", "NOTE"),
    services=("radar", "beacon", "weather", "fuel", "pump"),
    log_columns=("at", "severity", "module", "took", "person"),
    prompts={
        "lookup/easy": ("Find the {asked} that belongs to {noun} {id}.",),
        "lookup/medium": ("One {noun} combines {place} '{p}' with {thing} '{t}'. Report its {asked}.",),
        "lookup/hard": ("Look at {place} '{p}': report the {asked} of its most recent {noun}.",),
        "count/easy": ("Report the number of {table} where {asked} is '{v}'.",),
        "count/medium/above": ("Report the number of {table} where {place} is '{p}' and {amount} exceeds {limit}.",),
        "count/medium/below": ("Report the number of {table} where {place} is '{p}' and {amount} is under {limit}.",),
        "count/hard": (
            "Each {place} with {least} or more {table} whose {amount} exceeds {limit} counts. Report how many.",
        ),
        "total/easy": ("Add up {amount} over {table} where {place} is '{p}'.",),
        "total/medium": ("Report the mean {amount}, to two decimals, over {table} where {place} is '{p}'.",),
        "total/hard": ("Which share of {amount}, summed over {table}, has {place} '{p}'? Percent, one decimal.",),
        "extreme/easy/highest": ("Report the code of the {noun} whose {amount} is largest.",),
        "extreme/easy/lowest": ("Report the code of the {noun} whose {amount} is smallest.",),
        "extreme/medium/highest": ("Sum {amount} of {table} by {place}: report the {place} with the largest sum.",),
        "extreme/medium/lowest": ("Sum {amount} of {table} by {place}: report the {place} with the smallest sum.",),
        "extreme/hard/top": ("Rank {place} by summed {amount} of {table}; report places one to three in order.",),
        "extreme/hard/above": ("Report each {place} whose summed {amount} over {table} exceeds {limit}.",),
        "join/easy": ("Follow {link} of {noun} {id} and report the {region} found there.",),
        "join/medium": ("Report the number of {table} whose {partner_noun} has {region} '{r}'.",),
        "join/hard": ("Report the {partner} of {region} '{r}' without any {noun} in {state} '{s}'.",),
        "log/easy": ("Report the number of lines in {file} that mention {v}.",),
        "log/medium": ("Report how often module '{v}' was slower than {limit} in {file}.",),
        "log/hard": ("Across the two log files, sum 'took' over FATAL lines of {partner_noun} {name}.",),
        "anomaly/easy": ("Report the number of genuine {table} where {place} is '{p}', following the note.",),
        "anomaly/medium": ("Following the note, add up {amount} over sound {table} where {place} is '{p}'.",),
        "anomaly/hard": ("Following the note, report mean {amount}, two decimals, of sound {table}, {place} '{p}'.",),
    },
    notes={
        "easy": "Rows where {state} is '{fake}' are invented; skip them.",
        "medium": "Skip invented rows, {state} '{fake}', and those whose {amount} lies under zero.",
        "hard": "Repeated entries differ in code only; keep one of each. Skip {state} '{fake}', {amount} under zero, "
        "and {amount} missing.",
    },
)
