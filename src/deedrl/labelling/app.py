"""The page itself: plain forms over HTTP, which work without a script; the script only turns keys into clicks.

What models said is shown as text: templates escape everything, and the content security policy lets no script run but
the page's own file (case H11). A request must name a host that the page is served under, and one that labels must come
from the page itself, so that no other site that a rater visits can read or label.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deedrl.errors import StoreError
from deedrl.evaluation.rater_agreement import by_raters, rater_agreement
from deedrl.labelling.pairs import ShownPair
from deedrl.pages import page_templates
from deedrl.store.labels import PairLabel, Standing, append_label, ratings, read_labels, standing

LOOPBACK = ("127.0.0.1", "localhost", "::1")
CHOICES = ("left", "right", "tie", "skip")
MAX_BODY_BYTES = 10_000
MAX_RATER_CHARS = 60
TOKEN, RATER = "deedrl_token", "deedrl_rater"
"""Names of cookies."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class LabelBook:
    """The pairs that are shown, and the file that labels are appended to."""

    def __init__(self, pairs: Sequence[ShownPair], path: Path) -> None:
        self.pairs = list(pairs)
        self.path = path
        self._sides = {(pair.left.episode_id, pair.right.episode_id) for pair in pairs}

    def record(self, rater: str, choice: str, left: str, right: str) -> None:
        """Appends what `rater` chose; ``undo`` takes the rater's last label back, whatever sides are named.

        ValueError where the sides are no pair of the book or the choice is none.
        """
        if choice == "undo":
            last = _last(self._standing(), rater)
            if last is None:
                return
            left, right = last.left, last.right
        elif choice not in CHOICES or (left, right) not in self._sides:
            raise ValueError("expected a pair of the page and left, right, tie or skip")
        time = datetime.now(UTC).isoformat(timespec="seconds")
        append_label(self.path, PairLabel(left=left, right=right, choice=choice, rater=rater, time=time))  # type: ignore[arg-type]

    def view(self, rater: str) -> dict[str, object]:
        """What the template shows to `rater`."""
        found = self._standing()
        waiting = [pair for pair in self.pairs if rater not in found.get(_key(pair), {})]
        rated = ratings(found)
        return {
            "pair": waiting[0] if waiting else None,
            "done": len(self.pairs) - len(waiting),
            "count": len(self.pairs),
            "rater": rater,
            "can_undo": _last(found, rater) is not None,
            "labels": {name: sum(name in of for of in found.values()) for name in _raters(found)},
            "agreement": rater_agreement(rated),
            "couples": by_raters(rated),
        }

    def _standing(self) -> Standing:
        return standing(read_labels(self.path, PairLabel)) if self.path.exists() else {}


def _last(found: Standing, rater: str) -> PairLabel | None:
    """The rater's latest label that stands."""
    given = [of[rater] for of in found.values() if rater in of]
    return max(given, key=lambda entry: entry[0].number)[1] if given else None


def _raters(found: Standing) -> list[str]:
    return sorted({rater for of in found.values() for rater in of})


def _key(pair: ShownPair) -> tuple[str, str]:
    sides = pair.left.episode_id, pair.right.episode_id
    return min(sides), max(sides)


# ---------------------------------------------------------------- requests


def label_app(book: LabelBook, *, hosts: Sequence[str], token: str = "") -> ASGIApp:
    """The page as an ASGI application, served under `hosts` only ("*": any); with `token`, only to who brings it."""
    templates = page_templates("deedrl.labelling")
    page = templates.get_template("label.html.j2")

    async def show(request: Request) -> Response:
        if token and "token" in request.query_params:
            response: Response = RedirectResponse("/", status_code=303)  # out of the address bar
            response.set_cookie(TOKEN, token, httponly=True, samesite="strict")
            return response
        rater = _rater(request)
        view = await run_in_threadpool(book.view, rater)
        return HTMLResponse(page.render(**view))

    async def label(request: Request) -> Response:
        fields = await _fields(request)
        rater = _rater(request)
        if fields is None or not rater:
            return PlainTextResponse("expected a short form, and a rater", status_code=400)
        try:
            await run_in_threadpool(
                book.record, rater, fields.get("choice", ""), fields.get("left", ""), fields.get("right", "")
            )
        except ValueError as error:
            return PlainTextResponse(str(error), status_code=400)
        return RedirectResponse("/", status_code=303)

    async def name(request: Request) -> Response:
        fields = await _fields(request)
        rater = " ".join((fields or {}).get("rater", "").split())
        if not rater or len(rater) > MAX_RATER_CHARS or not rater.isprintable():
            return PlainTextResponse(f"expected a name of 1 to {MAX_RATER_CHARS} characters", status_code=400)
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(RATER, rater.encode().hex(), httponly=True, samesite="strict", max_age=30 * 86_400)
        return response

    async def trouble(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), status_code=500)

    routes = [
        Route("/", show),
        Route("/label", label, methods=["POST"]),
        Route("/rater", name, methods=["POST"]),
        Route("/label.js", _static("label.js", "text/javascript")),
        Route("/label.css", _static("label.css", "text/css")),
    ]
    return _Guarded(Starlette(routes=routes, exception_handlers={StoreError: trouble}), hosts, token)


class _Guarded:
    """Lets requests through that name a known host, come from the page itself where they write, and have the token."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        answer: ASGIApp = self._app if refusal is None else PlainTextResponse(refusal, status_code=403)
        await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        if "*" not in self._hosts and (urlsplit(f"//{host}").hostname or "") not in self._hosts:
            return "this page is not served under that name"
        origin = request.headers.get("origin")
        if request.method != "GET" and origin is not None and urlsplit(origin).netloc != host:
            return "labels are taken from the page itself only"
        given = request.query_params.get("token") or request.cookies.get(TOKEN, "")
        if self._token and not hmac.compare_digest(given.encode(), self._token.encode()):
            return "open the address with the token that deedrl label printed"
        return None


def _rater(request: Request) -> str:
    """The rater's name, or an empty text; kept in hex, for cookies hold few characters."""
    try:
        return bytes.fromhex(request.cookies.get(RATER, "")).decode()
    except ValueError:
        return ""


async def _fields(request: Request) -> dict[str, str] | None:
    """The fields of a posted form; None if it is longer than any of the page's own."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            return None
    found = parse_qs(body.decode("utf-8", errors="replace"), max_num_fields=10)
    return {key: values[-1] for key, values in found.items()}


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """Serves a file of the page."""
    content = files("deedrl.labelling").joinpath("templates", name).read_bytes()

    async def served(request: Request) -> Response:
        return Response(content, media_type=kind)

    return served
