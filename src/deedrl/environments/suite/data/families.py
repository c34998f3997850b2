"""Questions of one table: a field, a count, a sum, an extreme."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from deedrl.environments.suite.data.draft import (
    Draft,
    Family,
    Unfit,
    answer,
    describe,
    number,
    query,
    rounded,
    text,
)
from deedrl.environments.suite.data.office import Office, Row
from deedrl.rewards.answers import Expected


def condition(column: str, value: object) -> str:
    return f"{column} = '{value}'" if isinstance(value, str) else f"{column} = {value}"


def words_of(office: Office, name: str) -> str:
    """What the question calls a column."""
    subject = office.subject
    fields = {"place": subject.place, "thing": subject.thing, "state": subject.state}
    return subject.amount[0] if name == "amount" else office.world.day if name == "day" else fields[name].word


def _value(name: str, row: Row) -> Expected:
    if name == "amount":
        return number(row[name])
    return Expected(kind="date", value=row[name]) if name == "day" else text(row[name])


def _finish(office: Office, prompt: str, expected: Expected, sql: str, columns: list[str]) -> Draft:
    """Describe, query, answer: the way of all questions here."""
    table = office.subject.table
    named = ", ".join(getattr(office.names, name) for name in columns[:2])
    return Draft(
        prompt=prompt,
        answer=expected,
        evidence=[f"{table}.{getattr(office.names, name)}" for name in columns],
        way=[describe(table, f"Columns of {table} first."), query(sql, f"The columns are {named}."), answer(expected)],
    )


def pick(office: Office, rows: list[Any]) -> Any:
    if not rows:
        raise Unfit
    return office.rng.choice(rows)


# ------------------------------------------------------------ one field


def lookup_easy(office: Office, outcome: str) -> Draft:
    row, n = pick(office, office.rows), office.names
    prompt = office.ask("lookup/easy", asked=words_of(office, outcome), id=row["key"])
    sql = f"SELECT {getattr(n, outcome)} FROM {office.subject.table} WHERE {n.key} = {row['key']}"
    return _finish(office, prompt, _value(outcome, row), sql, [outcome, "key"])


def lookup_medium(office: Office, outcome: str) -> Draft:
    pairs = [(row["place"], row["thing"]) for row in office.rows]
    row = pick(office, [row for row in office.rows if pairs.count((row["place"], row["thing"])) == 1])
    n = office.names
    prompt = office.ask("lookup/medium", asked=words_of(office, outcome), p=row["place"], t=row["thing"])
    where = f"{condition(n.place, row['place'])} AND {condition(n.thing, row['thing'])}"
    sql = f"SELECT {getattr(n, outcome)} FROM {office.subject.table} WHERE {where}"
    return _finish(office, prompt, _value(outcome, row), sql, [outcome, "place", "thing"])


def lookup_hard(office: Office, outcome: str) -> Draft:
    place, n = pick(office, office.rows)["place"], office.names
    rows = sorted((row for row in office.rows if row["place"] == place), key=lambda row: str(row["day"]))
    if len(rows) < 2 or rows[-1]["day"] == rows[-2]["day"]:
        raise Unfit
    prompt = office.ask("lookup/hard", asked=words_of(office, outcome), p=place)
    where = f"WHERE {condition(n.place, place)} ORDER BY {n.day} DESC LIMIT 1"
    sql = f"SELECT {getattr(n, outcome)} FROM {office.subject.table} {where}"
    return _finish(office, prompt, _value(outcome, rows[-1]), sql, [outcome, "place", "day"])


# ------------------------------------------------------------ how many


def count_easy(office: Office, outcome: str) -> Draft:
    value, n = pick(office, office.rows)[outcome], office.names
    count = sum(row[outcome] == value for row in office.rows)
    prompt = office.ask("count/easy", asked=words_of(office, outcome), v=value)
    sql = f"SELECT count(*) FROM {office.subject.table} WHERE {condition(getattr(n, outcome), value)}"
    return _finish(office, prompt, number(count), sql, [outcome])


def count_medium(office: Office, outcome: str) -> Draft:
    place, n = pick(office, office.rows)["place"], office.names
    limit = office.rng.randrange(150, 850, 10) + 5
    above = outcome == "above"
    count = sum(
        row["place"] == place and (row["amount"] > limit) == above for row in office.rows if row["amount"] != limit
    )
    prompt = office.ask(f"count/medium/{outcome}", p=place, limit=limit)
    where = f"{condition(n.place, place)} AND {n.amount} {'>' if above else '<'} {limit}"
    return _finish(
        office, prompt, number(count), f"SELECT count(*) FROM {office.subject.table} WHERE {where}", ["place", "amount"]
    )


def count_hard(office: Office, _outcome: str) -> Draft:
    n, limit, least = office.names, office.rng.randrange(300, 900, 10), office.rng.randint(3, 9)
    counts: dict[str, int] = {}
    for row in office.rows:
        counts[row["place"]] = counts.get(row["place"], 0) + (row["amount"] > limit)
    count = sum(value >= least for value in counts.values())
    prompt = office.ask("count/hard", least=least, limit=limit)
    inner = f"SELECT {n.place} FROM {office.subject.table} WHERE {n.amount} > {limit} GROUP BY {n.place}"
    sql = f"SELECT count(*) FROM ({inner} HAVING count(*) >= {least})"
    return _finish(office, prompt, number(count), sql, ["place", "amount"])


# ------------------------------------------------------------ sums and shares


def total_easy(office: Office, _outcome: str) -> Draft:
    place, n = pick(office, office.rows)["place"], office.names
    prompt = office.ask("total/easy", p=place)
    sql = f"SELECT sum({n.amount}) FROM {office.subject.table} WHERE {condition(n.place, place)}"
    return _finish(office, prompt, number(office.by_place()[place]), sql, ["amount", "place"])


def total_medium(office: Office, _outcome: str) -> Draft:
    place, n = pick(office, office.rows)["place"], office.names
    amounts = [row["amount"] for row in office.rows if row["place"] == place]
    prompt = office.ask("total/medium", p=place)
    sql = f"SELECT round(avg({n.amount}), 2) FROM {office.subject.table} WHERE {condition(n.place, place)}"
    return _finish(office, prompt, rounded(Fraction(sum(amounts), len(amounts)), 2), sql, ["amount", "place"])


def total_hard(office: Office, _outcome: str) -> Draft:
    place, n, totals = pick(office, office.rows)["place"], office.names, office.by_place()
    share = Fraction(100 * totals[place], sum(totals.values()))
    prompt = office.ask("total/hard", p=place)
    part = f"sum(CASE WHEN {condition(n.place, place)} THEN {n.amount} ELSE 0 END)"
    sql = f"SELECT round(100.0 * {part} / sum({n.amount}), 1) FROM {office.subject.table}"
    return _finish(office, prompt, rounded(share, 1), sql, ["amount", "place"])


# ------------------------------------------------------------ who has the most


def extreme_easy(office: Office, outcome: str) -> Draft:
    n = office.names
    rows = sorted(office.rows, key=lambda row: int(row["amount"]), reverse=outcome == "highest")
    if rows[0]["amount"] == rows[1]["amount"]:
        raise Unfit
    order = f"{n.amount} {'DESC' if outcome == 'highest' else 'ASC'}"
    sql = f"SELECT {n.key} FROM {office.subject.table} ORDER BY {order} LIMIT 1"
    return _finish(office, office.ask(f"extreme/easy/{outcome}"), number(rows[0]["key"]), sql, ["amount", "key"])


def extreme_medium(office: Office, outcome: str) -> Draft:
    n = office.names
    totals = sorted(office.by_place().items(), key=lambda entry: entry[1], reverse=outcome == "highest")
    if totals[0][1] == totals[1][1]:
        raise Unfit
    order = f"sum({n.amount}) {'DESC' if outcome == 'highest' else 'ASC'}"
    sql = f"SELECT {n.place} FROM {office.subject.table} GROUP BY {n.place} ORDER BY {order} LIMIT 1"
    return _finish(office, office.ask(f"extreme/medium/{outcome}"), text(totals[0][0]), sql, ["amount", "place"])


def extreme_hard(office: Office, outcome: str) -> Draft:
    n, table = office.names, office.subject.table
    totals = sorted(office.by_place().items(), key=lambda entry: -entry[1])
    grouped = f"SELECT {n.place} FROM {table} GROUP BY {n.place}"
    if outcome == "top":
        if len({total for _, total in totals}) < len(totals):
            raise Unfit
        expected = Expected(kind="ranking", value=[[name] for name, _ in totals[:3]])
        sql = f"{grouped} ORDER BY sum({n.amount}) DESC LIMIT 3"
        return _finish(office, office.ask("extreme/hard/top"), expected, sql, ["amount", "place"])
    least = totals[office.rng.randint(1, len(totals) - 1)][1]
    names = [name for name, total in totals if total > least]
    if not names:
        raise Unfit
    expected = Expected(kind="set", value=sorted(names))
    sql = f"{grouped} HAVING sum({n.amount}) > {least}"
    return _finish(office, office.ask("extreme/hard/above", limit=least), expected, sql, ["amount", "place"])


LOOKUP = Family(
    outcomes={
        "easy": ("place", "thing", "amount"),
        "medium": ("amount", "state", "day"),
        "hard": ("amount", "thing", "day"),
    },
    ask={"easy": lookup_easy, "medium": lookup_medium, "hard": lookup_hard},
)
COUNT = Family(
    outcomes={"easy": ("place", "thing", "state"), "medium": ("above", "below"), "hard": ("any",)},
    ask={"easy": count_easy, "medium": count_medium, "hard": count_hard},
)
TOTAL = Family(
    outcomes={"easy": ("any",), "medium": ("any",), "hard": ("any",)},
    ask={"easy": total_easy, "medium": total_medium, "hard": total_hard},
)
EXTREME = Family(
    outcomes={"easy": ("highest", "lowest"), "medium": ("highest", "lowest"), "hard": ("top", "above")},
    ask={"easy": extreme_easy, "medium": extreme_medium, "hard": extreme_hard},
)
