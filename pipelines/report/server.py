"""``gristmill ui``: the report of a lake served live on the loopback address, with search by document, SQL and running stages.

Pages are read by one person on one machine. Against pages of other sites in the same browser: the Host header must name the loopback
address (DNS rebinding), requests that another site causes are refused by their Sec-Fetch-Site header, no answer may be framed or read
across origins, and nothing runs but scripts of our own. Nothing here changes the lake: every request is a GET.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.catalog import Connection, is_current, open_catalog
from pipelines.query import QueryError, execute, shown
from pipelines.report.bundle import vega_bundle
from pipelines.report.page import asset, render, report_context
from pipelines.state import lake_status
from pipelines.why import UnknownDocument, life
from schemas.errors import GristmillError
from schemas.signals import SIGNAL_FAMILIES

Json = Any

HOST = "127.0.0.1"
SHOWN_ROWS = 500
QUERY_SECONDS = 30.0
EXAMPLES = (
    "FROM funnel()",
    "FROM epochs_by_source()",
    "SELECT source, reason, count(*) AS documents FROM verdicts GROUP BY ALL ORDER BY documents DESC",
    "SELECT doc_id, source, bytes, text[:200] AS beginning FROM documents ORDER BY bytes DESC LIMIT 20",
    "SHOW TABLES",
)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Guard:
    """Refuses what other sites ask for, and adds ``HEADERS`` to every answer.

    Args:
        app: the application behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((name.encode(), value.encode()) for name, value in HEADERS.items())]
            await send(message)

        # Browsers send the header themselves and let no page change it; other clients (curl) do not send it.
        asked_by = dict(scope["headers"]).get(b"sec-fetch-site", b"none")
        refused = Response("Only pages of this server may ask it.", 403) if asked_by not in (b"same-origin", b"none") else None
        return await (refused or self._app)(scope, receive, guarded)


class Ui:
    """The pages of one lake.

    Args:
        root: the lake.
        seconds: longest time that a query may take.
    """

    def __init__(self, root: Path, seconds: float = QUERY_SECONDS) -> None:
        self._root, self._seconds = root, seconds
        self._refreshing = threading.Lock()

    def app(self) -> Starlette:
        """The application; its routes are plain functions, which run in threads."""
        routes: dict[str, Callable[[Request], Response]] = {
            "/": self._report,
            "/document": self._document,
            "/running": self._running,
            "/running.json": self._running_json,
            "/sql": self._sql,
            "/assets/{name}": _asset,
        }
        return Starlette(
            routes=[Route(path, self._fresh(page), methods=["GET"]) for path, page in routes.items()],
            middleware=[
                Middleware(Guard),
                Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"], www_redirect=False),
            ],
            exception_handlers={GristmillError: _failed},
        )

    def _fresh(self, page: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            with self._refreshing:  # one thread builds the catalogue, the others then find it current
                if self._root.is_dir() and not is_current(self._root):
                    with open_catalog(self._root):
                        pass
            return page(request)

        return answer

    def _report(self, request: Request) -> Response:
        return _page("report.html.j2", **report_context(self._root))

    def _document(self, request: Request) -> Response:
        name = request.query_params.get("id", "").strip()
        try:
            found = life(self._root, name) if name else None
        except UnknownDocument as error:
            return _page("document.html.j2", 404, searched=name, found=None, problem=str(error), families=SIGNAL_FAMILIES)
        return _page("document.html.j2", searched=name, found=found, problem="", families=SIGNAL_FAMILIES)

    def _running(self, request: Request) -> Response:
        return _page("running.html.j2", status=lake_status(self._root))

    def _running_json(self, request: Request) -> Response:
        return JSONResponse(lake_status(self._root)["stages"])

    def _sql(self, request: Request) -> Response:
        query = request.query_params.get("query", "").strip()
        names: list[str] = []
        rows: list[tuple[Json, ...]] = []
        problem = ""
        if query:
            try:
                names, rows = self._ask(query)
            except QueryError as error:
                problem = str(error)
        more = len(rows) > SHOWN_ROWS
        context = {"names": names, "rows": rows[:SHOWN_ROWS], "more": more, "most": SHOWN_ROWS, "examples": EXAMPLES}
        return _page("sql.html.j2", 400 if problem else 200, query=query, problem=problem, **context)

    def _ask(self, query: str) -> tuple[list[str], list[tuple[Json, ...]]]:
        """Names and cells of a query's first rows: numbers, and all else as ``gristmill sql`` shows it.

        Raises:
            QueryError: see ``pipelines.query.run_query``; also a query that takes too long.
        """
        with open_catalog(self._root) as db:
            late = threading.Event()
            timer = threading.Timer(self._seconds, partial(_interrupt, db, late))
            timer.start()
            try:
                cursor = execute(db, query)
                names = [column[0] for column in cursor.description or ()]
                return names, [tuple(map(_cell, row)) for row in cursor.fetchmany(SHOWN_ROWS + 1)]
            except Exception as error:
                if late.is_set():
                    fix = "ask for less, or use `gristmill sql`, which waits"
                    raise QueryError(f"stopped after {self._seconds:g} seconds", where="sql", fix=fix) from error
                if isinstance(error, GristmillError):
                    raise
                raise QueryError(str(error), where="sql") from error
            finally:
                timer.cancel()


def _interrupt(db: Connection, late: threading.Event) -> None:
    late.set()
    db.interrupt()


def _cell(value: Json) -> Json:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else shown(value)


def _page(template: str, code: int = 200, **context: Json) -> Response:
    base = {"live": True, "policy": "", "scripts": [], "style": "", "searched": ""}
    return HTMLResponse(render(template, **(base | context)), code)


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name == "vega.js":
        return Response(vega_bundle(), media_type="text/javascript")
    if name in ("charts.js", "running.js"):
        return Response(asset(name), media_type="text/javascript")
    return Response(asset(name), media_type="text/css") if name == "style.css" else Response("no such file", 404)


def _failed(request: Request, error: Exception) -> Response:
    return _page("problem.html.j2", 503, problem=str(error))


def serve(root: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve the lake until interrupted; only programs of this machine reach it.

    Args:
        root: the lake.
        port: port of the loopback address; 0 takes any free one.
        say: gets the address.

    Raises:
        LakeError: there is no lake.
        GristmillError: the port is taken, or the extra ``report`` is not installed.
    """
    import socket

    import uvicorn

    with open_catalog(root):
        vega_bundle()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise GristmillError(f"cannot listen: {error}", where=f"--port {port}", fix="choose another; 0 takes a free one") from error
        say(f"http://{HOST}:{listening.getsockname()[1]}/  (Ctrl-C stops)")
        config = uvicorn.Config(Ui(root).app(), log_level="warning", lifespan="off", server_header=False)
        uvicorn.Server(config).run(sockets=[listening])
