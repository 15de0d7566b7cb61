"""Log in with a token, and out again."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from autotune.service_ports import AccessDesk
from dashboards.web import style
from dashboards.web.attempts import WAIT_S, Attempts
from dashboards.web.security import address_of
from dashboards.web.sessions import Sessions

_templates = Environment(loader=PackageLoader("dashboards"), autoescape=True)
WRONG = "This token is not valid. It may have been revoked, or a letter is missing."
TOO_MANY = "Too many tokens were tried. Wait a minute, then try again."
MAKE_ONE = "autotune token add NAME --role view"
_MOST_FIELDS = 8
"""Of what is sent by someone who is not known yet: a megabyte of them takes long to read."""


def login_router(
    access: AccessDesk, sessions: Sessions, attempts: Attempts, *, title: str = "autotune"
) -> APIRouter:
    router = APIRouter(include_in_schema=False)
    page = _Page(title=title, style=style.address(style.sheet()))

    @router.get("/login")
    def form(request: Request) -> Response:
        return page.shown(_within(request.query_params.get("next", "/")))

    @router.post("/login")
    async def log_in(request: Request) -> Response:
        fields = _fields((await request.body()).decode("utf-8", "replace"))
        wanted = _within(_one(fields, "next", "/"))
        address = address_of(request.scope)
        if not attempts.allowed(address):
            too_many = page.shown(wanted, TOO_MANY, status=429)
            too_many.headers["retry-after"] = str(WAIT_S)
            return too_many
        who = await run_in_threadpool(access.identify, _one(fields, "token", "").strip())
        if who is None:
            attempts.failed(address)
            return page.shown(wanted, WRONG, status=401)
        return _to(wanted, sessions.begin(who.token, secure=_secure(request)))

    @router.post("/logout")
    def log_out(request: Request) -> Response:
        return _to("/login", sessions.end(secure=_secure(request)))

    return router


def _fields(sent: str) -> dict[str, list[str]]:
    """None of a form that has more than this page's own."""
    try:
        return parse_qs(sent, max_num_fields=_MOST_FIELDS)
    except ValueError:
        return {}


def _one(fields: dict[str, list[str]], name: str, otherwise: str) -> str:
    return fields.get(name, [otherwise])[0]


def _within(wanted: str) -> str:
    """A path of this site; anything else is its first page."""
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    strange = parts.scheme or parts.netloc or "\\" in wanted or not wanted.isprintable()
    plain = wanted.startswith("/") and not wanted.startswith("//")
    return wanted if plain and not strange else "/"


def _secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _to(path: str, cookie: str) -> Response:
    answer = RedirectResponse(path, status_code=303)
    answer.headers["set-cookie"] = cookie
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    title: str
    style: str

    def shown(self, wanted: str, said: str = "", *, status: int = 200) -> Response:
        page = _templates.get_template("login.html.j2")
        text = page.render(
            title=self.title, style=self.style, next=wanted, said=said, command=MAKE_ONE
        )
        return HTMLResponse(text, status_code=status)
