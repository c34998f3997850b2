"""Questions that need more than one table: two tables, log files, a note on rows that do not count."""

from __future__ import annotations

from fractions import Fraction

from deedrl.environments.suite.data.draft import (
    Draft,
    Family,
    Unfit,
    answer,
    describe,
    number,
    query,
    rounded,
    search,
    text,
)
from deedrl.environments.suite.data.families import condition, pick
from deedrl.environments.suite.data.goal import Call
from deedrl.environments.suite.data.office import Office, Row
from deedrl.rewards.answers import Expected

MOST_TO_COUNT = 12
"""Log lines that have to be read one by one."""

# ------------------------------------------------------------ two tables


def join_easy(office: Office, _outcome: str) -> Draft:
    s, n, row = office.subject, office.names, pick(office, office.rows)
    region = next(region for key, _, region in office.partners if key == row["link"])
    expected, word = text(region), s.region.word
    return Draft(
        prompt=office.ask("join/easy", id=row["key"]),
        answer=expected,
        evidence=[f"{s.table}.{n.link}", f"{s.partner}.{word}"],
        way=[
            query(f"SELECT {n.link} FROM {s.table} WHERE {n.key} = {row['key']}", f"The {n.link} first."),
            query(f"SELECT {word} FROM {s.partner} WHERE {n.key} = {row['link']}", f"The {n.link} is {row['link']}."),
            answer(expected),
        ],
    )


def join_medium(office: Office, _outcome: str) -> Draft:
    s, n = office.subject, office.names
    region = pick(office, office.partners)[2]
    keys = {key for key, _, place in office.partners if place == region}
    expected = number(sum(row["link"] in keys for row in office.rows))
    join = f"{s.table} JOIN {s.partner} ON {s.partner}.{n.key} = {n.link}"
    return Draft(
        prompt=office.ask("join/medium", r=region),
        answer=expected,
        evidence=[f"{s.table}.{n.link}", f"{s.partner}.{s.region.word}"],
        way=[
            describe(s.table, f"Columns of {s.table} first."),
            describe(s.partner, f"Now {s.partner}."),
            query(f"SELECT count(*) FROM {join} WHERE {condition(s.region.word, region)}", f"Join on {n.link}."),
            answer(expected),
        ],
    )


def join_hard(office: Office, outcome: str) -> Draft:
    s, n = office.subject, office.names
    region, state = pick(office, office.partners)[2], pick(office, list(s.state.values[:3]))
    wanted = [(key, name) for key, name, place in office.partners if place == region]
    # Few of them have such a row, so that the answer is not always empty on so many rows.
    spared = [key for key, _ in wanted if outcome == "some" and office.rng.random() < 0.7]
    others = [value for value in s.state.values[:3] if value != state]
    for row in office.rows:
        if row["link"] in spared and row["state"] == state:
            row["state"] = office.rng.choice(others)
    having = {row["link"] for row in office.rows if row["state"] == state}
    names = sorted(name for key, name in wanted if key not in having)
    if bool(names) != (outcome == "some"):
        raise Unfit
    expected = Expected(kind="set", value=names)
    inner = f"SELECT {n.link} FROM {s.table} WHERE {condition(n.state, state)}"
    where = f"{condition(s.region.word, region)} AND {n.key} NOT IN ({inner})"
    return Draft(
        prompt=office.ask("join/hard", r=region, s=state),
        answer=expected,
        evidence=[f"{s.table}.{n.link}", f"{s.table}.{n.state}", f"{s.partner}.{s.region.word}"],
        way=[
            describe(s.table, f"Columns of {s.table} first."),
            describe(s.partner, f"Now {s.partner}."),
            query(f"SELECT {office.world.name} FROM {s.partner} WHERE {where}", "Exclude those in the inner query."),
            answer(expected, "No rows: none." if not names else ""),
        ],
    )


# ------------------------------------------------------------ log files


def log_easy(office: Office, outcome: str) -> Draft:
    file, entries = f"{office.subject.log}.csv", office.log_entries()
    column = office.world.log_columns[1 if outcome == "level" else 2]
    value = pick(office, entries)[column]
    office.write_csv(file, entries)
    count = sum(value in line for line in office.logs[file])
    expected = number(count)
    return Draft(
        prompt=office.ask("log/easy", file=file, v=value),
        answer=expected,
        evidence=[f"log:{file}"],
        way=[
            search(file, value, None, f"Search {file} for {value}."),
            answer(expected, f"{count} lines contain {value}."),
        ],
    )


def log_medium(office: Office, _outcome: str) -> Draft:
    file, entries = f"{office.subject.log}.jsonl", office.log_entries()
    _, _, service, took, _ = office.world.log_columns
    value, limit = pick(office, entries)[service], office.rng.randrange(100, 900, 10) + 5
    times = [entry[took] for entry in entries if entry[service] == value]
    if not 3 <= len(times) <= MOST_TO_COUNT or limit in times:
        raise Unfit
    office.write_json_lines(file, entries)
    slow = [took for took in times if took > limit]
    expected = number(len(slow))
    return Draft(
        prompt=office.ask("log/medium", file=file, v=value, limit=limit),
        answer=expected,
        evidence=[f"log:{file}"],
        way=[
            search(file, f'"{value}"', MOST_TO_COUNT, f"All lines of {value}."),
            answer(expected, f"Above {limit}: {', '.join(map(str, slow)) or 'none'}. That is {len(slow)}."),
        ],
    )


def log_hard(office: Office, _outcome: str) -> Draft:
    s, n = office.subject, office.names
    _, level, _, took, person = office.world.log_columns
    key, name, _ = pick(office, office.partners)
    files = [f"{s.log}-{part}.jsonl" for part in (1, 2)]
    times, way = (
        [],
        [query(f"SELECT {n.key} FROM {s.partner} WHERE {condition(office.world.name, name)}", f"Who is {name}?")],
    )
    for file in files:
        entries = office.log_entries(people=True)
        office.write_json_lines(file, entries)
        mine = [entry for entry in entries if entry[person] == key]
        if not 1 <= len(mine) <= MOST_TO_COUNT:
            raise Unfit
        times += [entry[took] for entry in mine if entry[level] == office.world.levels[0]]
        way.append(search(file, f'"{person}": {key}}}', MOST_TO_COUNT, f"{name} is {key}: search {file}."))
    if not times:
        raise Unfit
    expected = number(sum(times))
    return Draft(
        prompt=office.ask("log/hard", name=name),
        answer=expected,
        evidence=[f"{s.partner}.{office.world.name}", *(f"log:{file}" for file in files)],
        way=[*way, answer(expected, f"{' + '.join(map(str, times))} = {sum(times)}.")],
    )


# ------------------------------------------------------------ rows that do not count


def anomaly_easy(office: Office, _outcome: str) -> Draft:
    place = pick(office, office.rows)["place"]
    _spoil(office, place, fakes=office.rng.randint(1, 3))
    rows = [row for row in office.rows if row["place"] == place and row["state"] != _fake(office)]
    if not rows:
        raise Unfit
    n = office.names
    where = f"{condition(n.place, place)} AND {n.state} <> '{_fake(office)}'"
    sql = f"SELECT count(*) FROM {office.subject.table} WHERE {where}"
    way = [describe(office.subject.table, "The columns, too."), query(sql, f"{n.place}, without '{_fake(office)}'.")]
    return _with_note(office, place, number(len(rows)), way)


def anomaly_medium(office: Office, _outcome: str) -> Draft:
    place, n = pick(office, office.rows)["place"], office.names
    _spoil(office, place, fakes=office.rng.randint(1, 3), negatives=office.rng.randint(1, 3))
    rows = _valid(office, place)
    where = f"{condition(n.place, place)} AND {n.state} <> '{_fake(office)}' AND {n.amount} >= 0"
    sql = f"SELECT sum({n.amount}) FROM {office.subject.table} WHERE {where}"
    way = [describe(office.subject.table, "The columns, too."), query(sql, "Without what the note names.")]
    return _with_note(office, place, number(sum(row["amount"] for row in rows)), way)


def anomaly_hard(office: Office, _outcome: str) -> Draft:
    place, n, rng = pick(office, office.rows)["place"], office.names, office.rng
    _spoil(office, place, fakes=rng.randint(2, 4), negatives=rng.randint(2, 4), missing=rng.randint(1, 3))
    keys = {row["key"] for row in office.rows}
    for row in rng.sample(_valid(office, place), 3):
        key = rng.choice([key for key in range(101, 999) if key not in keys])
        keys.add(key)
        office.rows.append({**row, "key": key})
    distinct = {tuple(value for name, value in row.items() if name != "key"): row for row in _valid(office, place)}
    amounts = [row["amount"] for row in distinct.values()]
    twice = [row["amount"] for row in _valid(office, place)]
    if Fraction(sum(twice), len(twice)) == Fraction(sum(amounts), len(amounts)):
        raise Unfit
    fields = ", ".join(office.names.columns()[1:])
    where = f"{condition(n.place, place)} AND {n.state} <> '{_fake(office)}' AND {n.amount} >= 0"
    sql = f"SELECT round(avg({n.amount}), 2) FROM (SELECT DISTINCT {fields} FROM {office.subject.table} WHERE {where})"
    way = [describe(office.subject.table, "The columns, too."), query(sql, "Without what the note names.")]
    return _with_note(office, place, rounded(Fraction(sum(amounts), len(amounts)), 2), way)


def _fake(office: Office) -> str:
    return office.subject.state.values[-1]


def _spoil(office: Office, place: str, fakes: int, negatives: int = 0, missing: int = 0) -> None:
    """Makes some rows of `place`, which must have enough of them, such as the note speaks of."""
    rows = [row for row in office.rows if row["place"] == place]
    if len(rows) < fakes + negatives + missing + 3 * (negatives > 0):
        raise Unfit
    chosen = office.rng.sample(rows, fakes + negatives + missing)
    for row in chosen[:fakes]:
        row["state"] = _fake(office)
    for row in chosen[fakes : fakes + negatives]:
        row["amount"] = -row["amount"]
    for row in chosen[fakes + negatives :]:
        row["amount"] = None


def _valid(office: Office, place: str) -> list[Row]:
    return [
        row
        for row in office.rows
        if row["place"] == place and row["state"] != _fake(office) and row["amount"] is not None and row["amount"] >= 0
    ]


def _with_note(office: Office, place: str, expected: Expected, way: list[Call]) -> Draft:
    note = office.world.notes[office.level].format(**office.words(fake=_fake(office)))
    office.note = note.replace(office.subject.amount[0], office.names.amount)
    n, table = office.names, office.subject.table
    columns = [n.place, n.state] if office.level == "easy" else [n.place, n.state, n.amount]
    return Draft(
        prompt=office.ask(f"anomaly/{office.level}", p=place),
        answer=expected,
        evidence=["note", *(f"{table}.{column}" for column in columns)],
        way=[Call(tool_name="note", parameters={}, reasoning="The note first."), *way, answer(expected)],
    )


JOIN = Family(
    outcomes={"easy": ("any",), "medium": ("any",), "hard": ("some", "some", "none")},
    ask={"easy": join_easy, "medium": join_medium, "hard": join_hard},
)
LOG = Family(
    outcomes={"easy": ("level", "service"), "medium": ("any",), "hard": ("any",)},
    ask={"easy": log_easy, "medium": log_medium, "hard": log_hard},
)
ANOMALY = Family(
    outcomes={"easy": ("any",), "medium": ("any",), "hard": ("any",)},
    ask={"easy": anomaly_easy, "medium": anomaly_medium, "hard": anomaly_hard},
)
