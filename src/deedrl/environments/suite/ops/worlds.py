"""Two vocabularies that share no service, setting or phrase: one for known tasks, one for the split ``test_unseen``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """Words from which tasks of some splits are made."""

    services: tuple[str, ...]
    settings: tuple[str, ...]
    alerts: Mapping[str, tuple[str, ...]]
    """Family → what the alert says; ``{s}`` is the service."""
    greetings: tuple[str, ...]
    complaints: Mapping[str, Mapping[str, tuple[str, ...]]]
    """Difficulty → cause → what the service's log says. On easy it names the cause."""
    deployed: tuple[str, ...]
    recent: tuple[str, ...]


_ERRORS = (
    "Errors of {s} are high.",
    "{s} answers with errors.",
    "Many requests to {s} fail.",
    "Alert: {s} returns errors.",
    "Users see errors from {s}.",
)
KNOWN = World(
    services=(
        "cart",
        "stock",
        "billing",
        "search",
        "mail",
        "login",
        "media",
        "orders",
        "prices",
        "reports",
        "profile",
        "queue",
        "gateway",
        "catalog",
        "reviews",
        "coupons",
    ),
    settings=("timeout", "cache_size", "pool_size", "batch_size"),
    alerts={
        "errors": _ERRORS,
        "dependency": _ERRORS,
        "slow": (
            "{s} is slow.",
            "Alert: {s} takes too long.",
            "Requests to {s} wait for seconds.",
            "Users say that {s} is slow today.",
        ),
        "crash": (
            "{s} keeps crashing.",
            "Alert: {s} went down twice.",
            "{s} does not stay up.",
            "{s} crashes again and again.",
        ),
        "recovered": (
            "There was an alert for {s} an hour ago.",
            "{s} had trouble earlier. Is it fine now?",
            "Alert for {s}, maybe over already.",
            "Please check {s}, it had a bad hour.",
        ),
        "busy": (
            "The sale has begun. Can {s} cope?",
            "Traffic to {s} is rising.",
            "Many visitors today. Please check {s}.",
            "Alert: {s} is busy.",
        ),
    },
    greetings=("", "", "Hi. ", "Good morning. ", "On call: "),
    complaints={
        "easy": {
            "leak": ("memory is full", "out of memory", "memory leak"),
            "bad_deploy": ("broken since version {version}", "version {version} is faulty", "bad version {version}"),
            "overload": ("too many requests for {replicas} replicas", "overloaded with {replicas} replicas"),
            "config": ("{key} {value} is wrong, needs {good}", "wrong {key} {value}, should be {good}"),
        },
        "medium": {
            "leak": (
                "heap at 97% and growing",
                "killed when the heap hit its limit",
                "garbage collector runs all the time",
            ),
            "bad_deploy": (
                "missing field in a request, first seen with version {version}",
                "null value in code that {previous} did not have",
                "stack trace in the new checkout of {version}",
            ),
            "overload": ("all workers busy, 900 wait", "requests queue up, workers are fine", "no free worker"),
            "config": ("bad setting, see {service}.conf", "start failed, a value in {service}.conf is out of range"),
        },
        "hard": {
            "leak": (
                "answers slower each hour since the start",
                "swapping; was fast after the last start",
                "old objects are never freed",
            ),
            "bad_deploy": (
                "assertion in a function that {previous} does not have",
                "replies do not parse, {previous} sent others",
            ),
            "overload": ("arrivals above what the workers finish", "backlog grows by 40 a second"),
            "config": (
                "gives up too early, see {service}.conf and {service}.log",
                "limit reached too soon, see {service}.conf and {service}.log",
            ),
        },
    },
    deployed=("9 days ago", "3 weeks ago", "2 months ago"),
    recent=("today", "an hour ago", "this morning"),
)

UNSEEN = World(
    services=("ledger", "kiosk", "parcel", "courier", "lobby", "ticket", "radar", "vault", "atlas", "beacon"),
    settings=("max_wait", "buffer_size", "retry_limit"),
    alerts={
        "errors": ("{s} fails for a third of its callers.", "Failures at {s}!", "Something is broken at {s}."),
        "dependency": ("{s} fails for a third of its callers.", "Failures at {s}!", "Something is broken at {s}."),
        "slow": ("{s} lags badly.", "Waiting times at {s} have exploded."),
        "crash": ("{s} dies every few minutes.", "{s} will not keep running."),
        "recovered": ("{s} paged somebody last night. Look once more.", "Did {s} get over its trouble?"),
        "busy": ("A campaign sends crowds to {s}.", "Will {s} stand the evening rush?"),
    },
    greetings=("", "Pager: ", "Dear colleague, "),
    complaints={
        "easy": {
            "leak": ("no memory left", "memory used up"),
            "bad_deploy": ("release {version} is defective", "since release {version} nothing works"),
            "overload": ("{replicas} replicas are not enough", "more requests than {replicas} replicas can take"),
            "config": ("{key} must be {good}, is {value}", "{key} is {value}, {good} expected"),
        },
        "medium": {
            "leak": ("resident size never shrinks", "allocation failed at 99%"),
            "bad_deploy": ("unknown column, asked for by {version} alone", "regression after {previous}"),
            "overload": ("thread pool exhausted", "accept queue is full"),
            "config": ("refused a value of {service}.conf", "{service}.conf holds an illegal value"),
        },
        "hard": {
            "leak": ("handles pile up and are not closed", "needs a bit more room with every request"),
            "bad_deploy": ("checksum differs from what {previous} wrote", "protocol error, unknown to {previous}"),
            "overload": ("demand exceeds supply in every second", "utilisation 100%, nothing idle"),
            "config": ("stops short, compare {service}.conf with {service}.log",),
        },
    },
    deployed=("last month", "in spring"),
    recent=("minutes ago", "at noon"),
)
