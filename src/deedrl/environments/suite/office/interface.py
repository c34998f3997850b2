"""The internal HTTP interface: a real server on loopback, one a process, where each desk has a folder of its own.

A desk's folder has a secret name, so that thousands of copies share the server and nothing else. The server starts
with the first desk and ends with the last.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote, unquote

REQUEST_LIMIT_S = 5.0
LARGEST_BODY = 10_000


@dataclass
class Records:
    """What the interface holds for one desk, and what was asked of it."""

    values: dict[str, str]
    """Path → value."""
    busy: set[str] = field(default_factory=set)
    """Paths whose first request is answered with 503."""
    pages: dict[str, list[str]] = field(default_factory=dict)
    """Path → values of a list that is told page by page."""
    requests: list[list[str]] = field(default_factory=list)
    """Every request that was answered: method, path, value written."""

    def get(self, path: str) -> tuple[int, str]:
        if path in self.busy:
            self.busy.discard(path)
            return 503, "busy, ask again"
        self.requests.append(["GET", path, ""])
        base, _, page = path.partition("?page=")
        if base in self.pages and (page or "1").isdigit() and 1 <= int(page or 1) <= len(self.pages[base]):
            number = int(page or 1)
            more = f"; more at {base}?page={number + 1}" if number < len(self.pages[base]) else ""
            return 200, self.pages[base][number - 1] + more
        if path not in self.values:
            return 404, f"nothing at {path}"
        return 200, self.values[path]

    def put(self, path: str, value: str) -> tuple[int, str]:
        if path not in self.values:
            return 404, f"nothing at {path}"
        self.requests.append(["PUT", path, value])
        self.values[path] = value
        return 200, value


class Interface:
    """One desk's connection to the server."""

    def __init__(self) -> None:
        self._name = secrets.token_hex(8)
        self._server: _Server | None = None

    def open(self, records: Records) -> None:
        """Puts `records` at this desk's folder; starts the server if this is the first."""
        if self._server is None:
            self._server = _Server.joined()
        self._server.desks[self._name] = records

    def close(self) -> None:
        """Takes the folder away; ends the server if this was the last."""
        if self._server is not None:
            server, self._server = self._server, None
            server.leave(self._name)

    def call(self, method: str, path: str, value: str | None = None) -> tuple[int, str]:
        """Status and answer of one request. What the network does wrong is raised as `OSError`."""
        assert self._server is not None, "open() comes first"
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=REQUEST_LIMIT_S)
        try:
            body = None if value is None else json.dumps({"value": value})
            connection.request(method, f"/{self._name}{quote(path, safe='/')}", body)
            answer = connection.getresponse()
            return answer.status, str(json.loads(answer.read())["value"])
        except (http.client.HTTPException, json.JSONDecodeError) as error:
            raise OSError(f"the internal interface answered what is no answer: {error}") from error
        finally:
            connection.close()


class _Server:
    """The process's server and the desks that use it."""

    _lock = threading.Lock()
    _running: _Server | None = None

    def __init__(self) -> None:
        self.desks: dict[str, Records] = {}
        self.users = 0
        self.process = os.getpid()
        self._http = _HTTPServer(("127.0.0.1", 0), _Handler)
        self._http.desks = self.desks
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, args=(0.05,), name="office-interface", daemon=True).start()

    @classmethod
    def joined(cls) -> _Server:
        """The running server, or a new one; after a fork the parent's is not ours."""
        with cls._lock:
            if cls._running is None or cls._running.process != os.getpid():
                cls._running = cls()
            cls._running.users += 1
            return cls._running

    def leave(self, name: str) -> None:
        with self._lock:
            self.desks.pop(name, None)
            self.users -= 1
            if self.users or self.process != os.getpid():
                return
            _Server._running = None
        self._http.shutdown()
        self._http.server_close()


class _HTTPServer(HTTPServer):
    """Answers one request after the other: each takes microseconds, and no thread is made for any."""

    request_queue_size = 1024
    desks: Mapping[str, Records]


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT_S
    # An answer leaves at once and as a whole: in two pieces the second would wait for the first's receipt, 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _HTTPServer

    def do_GET(self) -> None:
        found = self._desk()
        self._answer(*(found[0].get(found[1]) if found else (404, "no such desk")))

    def do_PUT(self) -> None:
        found = self._desk()
        try:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if 0 < length <= LARGEST_BODY else None
        except ValueError:
            body = None
        if found is None:
            self._answer(404, "no such desk")
        elif not isinstance(body, dict) or not isinstance(body.get("value"), str):
            self._answer(400, "expected a JSON object with a text under 'value'")
        else:
            self._answer(*found[0].put(found[1], body["value"]))

    def _desk(self) -> tuple[Records, str] | None:
        """The desk that the request is of, and the path within its folder."""
        name, _, path = self.path.lstrip("/").partition("/")
        records = self.server.desks.get(name)
        return None if records is None else (records, "/" + unquote(path))

    def _answer(self, status: int, value: str) -> None:
        body = json.dumps({"value": value}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the desk keeps its own log."""
