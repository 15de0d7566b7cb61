"""Who may ask what of the web application, from where, and how much."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
from fastapi import FastAPI
from itsdangerous import TimestampSigner
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from autotune import service_ports
from autotune.bootstrap import serving
from autotune.bootstrap.access import digest_of, revoke_token
from autotune.bootstrap.jobs import folder_name
from autotune.core.access import Identity, Role
from autotune.core.errors import InputRefused, StoreFailed
from dashboards.web.identity import NotAllowed, asked_by
from dashboards.web.operators import ACTING, for_operators
from dashboards.web.sessions import COOKIE, LASTS_S, SECURE_COOKIE, Sessions
from tests.service_app import KEY, Service, apart, client, listening, unsafe_routes

HERE = "http://localhost:8080"
SIDE_DOORS = {("POST", "/login"), ("POST", "/logout"), ("POST", "/_dash-update-component")}
"""Who logs in is not known yet; pages' callbacks read, and ask the desks for what acts."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """One of each stored; tokens are needed."""
    service = Service.in_folder(tmp_path_factory.mktemp("service"), hosts=("Tuning.example.com",))
    service.all_of_it()
    return service


@pytest.fixture(scope="module")
def tokens(service: Service) -> SimpleNamespace:
    return SimpleNamespace(
        view=service.token("watcher", Role.VIEW), operate=service.token("ops", Role.OPERATE)
    )


@pytest.fixture(scope="module")
def app(service: Service, tokens: SimpleNamespace) -> FastAPI:
    return service.app()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Service]:
    """Nothing stored, no token: whoever is on this machine may ask."""
    service = Service.in_folder(tmp_path)
    yield service
    service.store.trials.close()


def me(asking: TestClient, **how: Any) -> tuple[int, Any]:
    answer = asking.get("/api/v1/me", **how)
    return answer.status_code, answer.json().get("name")


def filled(path: str) -> str:
    for name, value in {"name": "nightly", "model": "linear"}.items():
        path = path.replace(f"{{{name}}}", value)
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


# --------------------------------------------------------------------------------------- roles
def test_nobody_may_change_anything_by_any_route(app: FastAPI) -> None:
    routes = set(unsafe_routes(app)) - {("POST", "/login"), ("POST", "/logout")}
    assert len(routes) > 10
    asking = client(app)
    for method, path in routes:
        answer = asking.request(method, filled(path), json={})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path


def test_who_may_look_may_change_nothing_by_any_route(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    asking = client(app, tokens.view)
    for method, path in set(unsafe_routes(app)) - SIDE_DOORS:
        assert asking.request(method, filled(path), json={}).status_code == 403, path


def test_who_may_operate_is_refused_for_what_they_ask_alone(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    asking = client(app, tokens.operate)
    refused = {
        asking.post("/api/v1/studies", json={}).status_code,
        asking.post("/api/v1/schedules/none/run").status_code,
    }
    assert refused == {422, 404}


def test_nobody_reads_anything_but_the_open_doors(app: FastAPI) -> None:
    asking = client(app)
    paths = ["/", "/study/1", "/metrics", "/_dash-layout", "/_dash-dependencies", "/_reload-hash"]
    paths += ["/_dash-component-suites/dash/deps/react@18.3.1.min.js", "/api/v1/openapi.json"]
    paths += [filled(path) for path in app.openapi()["paths"]]
    for path in paths:
        assert asking.get(path).status_code in (401, 405), path
    for path in ("/healthz", "/readyz", "/login", "/static/theme.js", "/style.css"):
        assert asking.get(path).status_code == 200, path


def test_all_that_desks_do_in_someones_name_is_held_for_operators() -> None:
    desks = {
        "studies": service_ports.StudyDesk,
        "jobs": service_ports.JobDesk,
        "schedules": service_ports.ScheduleDesk,
        "promotions": service_ports.PromotionDesk,
    }
    acting = {
        name: {
            each
            for each, act in inspect.getmembers(desk, inspect.isfunction)
            if "by" in inspect.signature(act).parameters
        }
        for name, desk in desks.items()
    }
    assert acting == ACTING


def test_who_may_look_reads_no_jobs_log(service: Service, tokens: SimpleNamespace) -> None:
    app = service.app()
    logs = service.settings.service_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = service.store.jobs.job(1)
    (logs / f"{folder_name(job)}.log").write_text("what a model printed: at_" + "s3cret" * 6)
    looked, read = (client(app, t).get("/api/v1/jobs/1/log") for t in (tokens.view, tokens.operate))
    assert (looked.status_code, read.status_code) == (403, 200)
    assert read.text == "what a model printed: …"
    assert read.headers["content-type"].startswith("text/plain")
    asking = client(app, tokens.operate)
    assert [asking.get(f"/api/v1/jobs/{n}/log").status_code for n in (2, 99)] == [404, 404]
    with asked_by(Identity(name="watcher", role=Role.VIEW)), pytest.raises(NotAllowed):
        for_operators(service.desks()).jobs.log(1)


def test_a_page_of_someone_who_may_look_cannot_act(service: Service) -> None:
    desks = for_operators(service.desks())
    with asked_by(Identity(name="watcher", role=Role.VIEW)):
        assert desks.jobs.job(1).id == 1
        with pytest.raises(NotAllowed):
            desks.jobs.cancel(1, by="watcher")
    with pytest.raises(NotAllowed):
        desks.schedules.run_now("nightly", by="nobody")
    with asked_by(Identity(name="ops", role=Role.OPERATE)), pytest.raises(InputRefused) as refused:
        desks.schedules.run_now("none", by="ops")
    assert not isinstance(refused.value, NotAllowed)


# ------------------------------------------------------------------------------------- anonymous
def test_on_this_machine_and_without_tokens_none_is_needed(bare: Service) -> None:
    assert me(client(bare.app())) == (200, "local")


def test_once_there_is_a_token_it_is_needed_here_too(bare: Service) -> None:
    asking = client(bare.app())
    bare.token("ops", Role.OPERATE)
    assert me(asking) == (401, None)


def test_where_others_can_ask_a_token_is_needed(bare: Service) -> None:
    assert me(client(replace(bare, loopback=False).app())) == (401, None)


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
def test_what_a_proxy_passes_on_is_not_from_this_machine(bare: Service, header: str) -> None:
    assert me(client(bare.app()), headers={header: "127.0.0.1"}) == (401, None)


def test_nor_is_what_a_proxy_passes_on_that_was_told_nothing(bare: Service) -> None:
    """By default nginx adds no header, and speaks HTTP/1.0."""
    asked = b"GET /api/v1/me HTTP/1.%d\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = [raw(bare.app(), asked % version) for version in (0, 1)]
    assert [answer.split(b" ")[1] for answer in answers] == [b"401", b"200"]


def test_another_machines_address_is_not_this_machine(bare: Service) -> None:
    app = bare.app()
    assert me(client(app, client=("10.0.0.9", 4000))) == (401, None)
    assert me(client(app, client=("::1", 4000))) == (200, "local")
    assert me(client(app, client=("::ffff:127.0.0.1", 4000))) == (200, "local")


# ---------------------------------------------------------------------------------------- tokens
def test_a_token_is_who_it_was_made_for(app: FastAPI, tokens: SimpleNamespace) -> None:
    assert me(client(app, tokens.view)) == (200, "watcher")
    assert me(client(app), headers={"Authorization": f"bearer {tokens.operate}"}) == (200, "ops")


@pytest.mark.parametrize(
    "given", ["Bearer", "Bearer ", "Bearer x", "Basic b3BzOm9wcw==", "Bearer at_ï", "x"]
)
def test_what_is_no_token_is_refused_and_not_told_again(app: FastAPI, given: str) -> None:
    asking = client(app, client=("10.1.1.1", 1))
    answer = asking.get("/api/v1/me", headers={"Authorization": given.encode("latin-1")})
    assert answer.status_code == 401
    assert "at_ï" not in answer.text


def test_every_token_is_compared_in_constant_time_also_after_the_right_one(
    bare: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [bare.token(f"t{n}", Role.VIEW) for n in range(3)]
    compared: list[str] = []

    def counted(one: str, other: str) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", counted)
    assert bare.desks().access.identify(made[0]) is not None
    assert len(compared) == 3
    assert made[0] not in compared


def test_a_revoked_token_is_refused(service: Service, app: FastAPI) -> None:
    asking = client(app, service.token("gone", Role.OPERATE), client=("10.1.1.2", 1))
    assert me(asking) == (200, "gone")
    revoke_token(service.store.tokens, service.store.promotions, "gone", by="test")
    assert me(asking) == (401, None)


def test_secrets_are_in_no_line_of_the_log_and_in_no_answer(app: FastAPI) -> None:
    secret = "at_" + "s3cret" * 6
    asking = client(app, client=("10.1.1.3", 1))
    with structlog.testing.capture_logs() as told:
        answers = [
            asking.get(f"/api/v1/me?token={secret}", headers={"Authorization": f"Bearer {secret}"}),
            asking.post("/login", data={"token": secret, "next": "/"}),
            asking.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={secret}"}),
        ]
    assert [answer.status_code for answer in answers] == [401] * 3
    assert len(told) == 3
    assert secret not in str(told)
    assert secret not in "".join(answer.text + str(answer.headers) for answer in answers)


# -------------------------------------------------------------------------------------- sessions
def logged_in(app: FastAPI, token: str, **how: Any) -> TestClient:
    asking = client(app, **how)
    answer = asking.post("/login", data={"token": token, "next": "/jobs"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")
    return asking


def test_a_session_is_its_tokens_owner(app: FastAPI, tokens: SimpleNamespace) -> None:
    assert me(logged_in(app, tokens.view)) == (200, "watcher")


def test_a_session_is_for_browsers_alone_and_for_this_site(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    cookie = client(app).post("/login", data={"token": tokens.view}).headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=Lax", "Path=/", f"Max-Age={LASTS_S}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie


def test_over_tls_a_session_is_for_this_very_host_and_never_sent_without(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    asking = client(app, base_url="https://tuning.example.com")
    cookie = asking.post("/login", data={"token": tokens.view}).headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert "; Secure" in cookie
    assert me(asking) == (200, "watcher")


def test_over_tls_a_cookie_that_another_host_could_have_set_is_none(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    plain = logged_in(app, tokens.operate).cookies[COOKIE]
    asking = client(app, base_url="https://tuning.example.com")
    assert me(asking, headers={"Cookie": f"{COOKIE}={plain}"}) == (401, None)


def test_a_tampered_session_is_none(app: FastAPI, tokens: SimpleNamespace) -> None:
    session = logged_in(app, tokens.view).cookies[COOKIE]
    token, at, signature = session.split(".")
    other = f"{token[:-1]}{'0' if token[-1] != '0' else '1'}"
    for forged in (f"{other}.{at}.{signature}", f"{token}.{at}.", token, "", f"{session}x", "é"):
        given = f"{COOKIE}={forged}".encode("latin-1")
        assert me(client(app), headers={"Cookie": given}) == (401, None), forged
    assert me(client(app), headers={"Cookie": f"{COOKIE}={session}"}) == (200, "watcher")


def _mark(secret: str) -> str:
    """What a session holds of a token."""
    return digest_of(secret)[:32]


def test_a_session_of_another_services_key_is_none(app: FastAPI, tokens: SimpleNamespace) -> None:
    foreign = Sessions("another key, of another service's").begin(_mark(tokens.view), secure=False)
    assert me(client(app), headers={"Cookie": foreign.split(";")[0]}) == (401, None)


class Yesterday(TimestampSigner):
    def get_timestamp(self) -> int:
        return super().get_timestamp() - LASTS_S - 1


def test_a_session_of_another_service_with_the_same_key_is_none(
    app: FastAPI, tokens: SimpleNamespace, bare: Service
) -> None:
    """By default one user's services share their key, and browsers send a cookie to every port."""
    looker = logged_in(bare.app(), bare.token("looker", Role.VIEW))
    session = looker.cookies[COOKIE]
    assert me(looker) == (200, "looker")
    assert me(client(app), headers={"Cookie": f"{COOKIE}={session}"}) == (401, None)


def test_a_session_ends_after_half_a_day(app: FastAPI, tokens: SimpleNamespace) -> None:
    how = {"salt": "autotune.session", "digest_method": hashlib.sha256, "key_derivation": "hmac"}
    kinds, token = (TimestampSigner, Yesterday), _mark(tokens.view)
    fresh, old = (kind(KEY, **how).sign(token).decode() for kind in kinds)
    assert me(client(app), headers={"Cookie": f"{COOKIE}={fresh}"}) == (200, "watcher")
    assert me(client(app), headers={"Cookie": f"{COOKIE}={old}"}) == (401, None)


def test_a_session_is_worth_nothing_once_its_token_is_revoked_even_if_the_name_comes_again(
    service: Service, app: FastAPI
) -> None:
    asking = logged_in(app, service.token("left", Role.VIEW))
    revoke_token(service.store.tokens, service.store.promotions, "left", by="test")
    assert me(asking) == (401, None)
    service.token("left", Role.OPERATE)
    assert me(asking) == (401, None)


def test_a_login_begins_a_session_of_its_own_whatever_cookie_was_there(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    planted = logged_in(app, tokens.view).cookies[COOKIE]
    asking = client(app, cookies={COOKIE: planted})
    cookie = asking.post("/login", data={"token": tokens.operate}).headers["set-cookie"]
    assert planted not in cookie
    assert me(client(app), headers={"Cookie": cookie.split(";")[0]}) == (200, "ops")


def test_logging_out_ends_the_session_in_the_browser(app: FastAPI, tokens: SimpleNamespace) -> None:
    asking = logged_in(app, tokens.view)
    assert asking.post("/logout").headers["location"] == "/login"
    assert me(asking) == (401, None)


def test_other_applications_cookies_do_not_hide_the_session(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    session = logged_in(app, tokens.view).cookies[COOKIE]
    given = f'settings={{"a": [1, 2]}}; bad name=1; {COOKIE}={session}; last'
    assert me(client(app), headers={"Cookie": given}) == (200, "watcher")


def test_a_key_that_could_be_guessed_is_refused() -> None:
    with pytest.raises(InputRefused, match="at least 32") as refused:
        Sessions("hunter2")
    assert "hunter2" not in str(refused.value)


# ----------------------------------------------------------------------------------- login's page
def test_who_visits_a_page_is_asked_to_log_in_and_comes_back(app: FastAPI) -> None:
    asking = client(app)
    answer = asking.get("/study/1?x=p95_ms&y=a%26b", headers={"Accept": "text/html"})
    assert answer.status_code == 303
    form = asking.get(answer.headers["location"])
    assert 'name="next" value="/study/1?x=p95_ms&amp;y=a%26b"' in form.text


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.test/",
        "//evil.test/",
        "///evil.test/",
        "/\\evil.test/",
        "\\\\evil.test",
        "/\t/evil.test/",
        "/\n/evil.test/",
        "javascript:alert(1)",
        "evil.test",
        " /x",
        "http:evil.test",
        "//[",
        "",
    ],
)
def test_a_login_leads_nowhere_but_to_this_site(
    app: FastAPI, tokens: SimpleNamespace, wanted: str
) -> None:
    answer = client(app).post("/login", data={"token": tokens.view, "next": wanted})
    assert answer.headers["location"] == "/"


def test_what_a_visitor_wants_is_text_in_the_form(app: FastAPI) -> None:
    form = client(app).get("/login", params={"next": '/"><script>alert(1)</script>'})
    assert "<script>alert" not in form.text


def test_a_form_of_more_fields_than_the_page_has_is_not_read(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    fields = "&".join([f"token={tokens.view}", *["x=1"] * 8])
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client(app, client=("10.2.0.2", 1)).post("/login", content=fields, headers=kind)
    assert answer.status_code == 401


def test_a_wrong_token_is_told_and_begins_no_session(app: FastAPI) -> None:
    answer = client(app, client=("10.2.0.1", 1)).post("/login", data={"token": "at_wrong"})
    assert answer.status_code == 401
    assert "not valid" in answer.text
    assert "set-cookie" not in answer.headers


# ------------------------------------------------------------------------------------- how often
@pytest.mark.parametrize("by", ["login", "bearer"])
def test_wrong_tokens_are_counted_by_address_and_then_not_even_the_right_one_is_looked_at(
    service: Service, tokens: SimpleNamespace, by: str
) -> None:
    app = service.app()

    def tried(token: str, address: str) -> int:
        asking = client(app, client=(address, 1))
        if by == "login":
            return asking.post("/login", data={"token": token}).status_code
        return asking.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).status_code

    assert [tried("wrong", "10.0.0.1") for _ in range(12)] == [401] * 10 + [429] * 2
    assert tried(tokens.operate, "10.0.0.1") == 429
    assert tried(tokens.operate, "10.0.0.2") in (200, 303)


def test_who_has_to_wait_is_told_how_long(service: Service) -> None:
    asking = client(service.app(), "wrong")
    answers = [asking.get("/api/v1/me") for _ in range(11)]
    assert answers[-1].headers["retry-after"] == "60"


def test_a_session_goes_on_while_its_address_has_to_wait(
    service: Service, tokens: SimpleNamespace
) -> None:
    app = service.app()
    asking = logged_in(app, tokens.view)
    for _ in range(11):
        client(app, "wrong").get("/api/v1/me")
    assert client(app, tokens.view).get("/api/v1/me").status_code == 429
    assert me(asking) == (200, "watcher")


def test_guesses_from_many_addresses_are_counted_together_and_keep_out_nobody_else(
    service: Service, tokens: SimpleNamespace
) -> None:
    app = service.app()
    guessing = [client(app, "wrong", client=(f"10.0.1.{n}", 1)) for n in range(60)]
    first, second = ([me(each)[0] for each in guessing] for _ in range(2))
    assert set(first) == {401}
    assert second == [401] * 40 + [429] * 20
    assert me(client(app, tokens.view, client=("10.0.2.1", 1))) == (200, "watcher")


def test_one_hosts_many_ipv6_addresses_are_one(service: Service) -> None:
    app = service.app()
    guessing = [client(app, "wrong", client=(f"2001:db8::{n:x}", 1)) for n in range(1, 12)]
    assert [me(each)[0] for each in guessing] == [401] * 10 + [429]


# ------------------------------------------------------------------------------------ other sites
@pytest.mark.parametrize(
    "said",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
        {"Origin": "https://evil.test"},
        {"Origin": "http://localhost:9000"},
        {"Origin": "http://localhost"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "https://evil.test", "Content-Type": "text/plain"},
        {"Origin": "https://evil.test", "Content-Type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/api/v1/jobs/1/cancel", "/login", "/_dash-update-component"])
def test_a_page_of_another_site_changes_nothing(
    app: FastAPI, tokens: SimpleNamespace, path: str, said: dict[str, str]
) -> None:
    asking = logged_in(app, tokens.operate)
    assert asking.post(path, headers=said, content="{}").status_code == 403


def test_a_page_of_another_site_changes_nothing_where_no_token_is_needed(bare: Service) -> None:
    asking = client(bare.app())
    job = bare.queued_job()
    said = {"Origin": "https://evil.test"}
    assert asking.post(f"/api/v1/jobs/{job}/cancel", headers=said).status_code == 403
    assert bare.store.jobs.job(job).state == "queued"


@pytest.mark.parametrize(
    "said", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}, {"Origin": HERE}]
)
def test_a_page_of_this_site_may(
    app: FastAPI, tokens: SimpleNamespace, said: dict[str, str]
) -> None:
    asking = logged_in(app, tokens.operate)
    assert asking.post("/api/v1/jobs/77/cancel", headers=said).status_code == 404


def test_a_session_that_does_not_say_where_it_comes_from_changes_nothing(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    asking = logged_in(app, tokens.operate)
    assert asking.post("/api/v1/jobs/77/cancel").status_code == 403
    assert client(app, tokens.operate).post("/api/v1/jobs/77/cancel").status_code == 404


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_what_a_form_of_any_page_could_send_is_no_body_of_the_api(
    app: FastAPI, tokens: SimpleNamespace, kind: str
) -> None:
    asking = client(app, tokens.operate)
    body = b'{"why": "as a form may send it"}'
    answer = asking.post(
        "/api/v1/promotions/1/reject", content=body, headers={"Content-Type": kind}
    )
    assert answer.status_code == 422


def test_no_other_site_is_told_that_it_may_read(app: FastAPI, tokens: SimpleNamespace) -> None:
    asking = client(app, tokens.operate, headers={"Origin": "https://evil.test"})
    said = {"Access-Control-Request-Method": "POST"}
    answers = [asking.options("/api/v1/studies", headers=said), asking.get("/api/v1/studies")]
    assert [answer.status_code for answer in answers] == [405, 200]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


# ------------------------------------------------------------------------------------------ names
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("10.0.0.7:8080", 200),
        ("tuning.example.com", 200),
        ("TUNING.example.com:443", 200),
        ("evil.test", 421),
        ("127.0.0.1.evil.test", 421),
        ("localhost.evil.test:8080", 421),
        ("evil.test@localhost", 421),
        ("localhost@evil.test", 421),
        ("localhost/evil.test", 421),
        ("localhost#evil.test", 421),
        ("localhost:x", 421),
        ("tuning.example.com.", 421),
        ("", 421),
    ],
)
def test_the_service_answers_by_its_own_names_alone(app: FastAPI, host: str, status: int) -> None:
    assert client(app).get("/healthz", headers={"Host": host}).status_code == status


def test_a_request_that_names_two_hosts_is_refused(app: FastAPI) -> None:
    named = [("Host", "localhost"), ("Host", "evil.test")]
    assert client(app).get("/healthz", headers=named).status_code == 421


def _served(app: FastAPI, *proxies: str) -> Any:
    config = serving._server(app, proxies, lambda: None).config
    config.load()
    return config.loaded_app


def test_nobody_is_believed_about_whom_they_ask_for(
    app: FastAPI, tokens: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.9.9.9", "X-Forwarded-Host": "a"}
    asking = client(_served(app))
    answer = asking.post("/login", data={"token": tokens.view}, headers=said)
    assert "Secure" not in answer.headers["set-cookie"]


def test_a_proxy_that_was_named_is_believed(app: FastAPI, tokens: SimpleNamespace) -> None:
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.9.9.9"}
    served = _served(app, "10.0.0.0/8")
    for address, secure in (("10.0.0.2", True), ("192.0.2.2", False)):
        asking = client(served, client=(address, 1))
        with structlog.testing.capture_logs() as told:
            answer = asking.post("/login", data={"token": tokens.view}, headers=said)
        assert ("Secure" in answer.headers["set-cookie"]) is secure
        assert told[0]["client"] == ("10.9.9.9" if secure else "192.0.2.2")


def test_behind_a_proxy_the_service_does_not_begin_without_a_token(
    bare: Service, tmp_path: Path
) -> None:
    asked = serving.Asked(db=bare.settings.database, root=bare.root, port=0, proxies=("127.0.0.1",))
    with apart(tmp_path), pytest.raises(InputRefused, match="no token is there"):
        serving.serve(asked)


@pytest.mark.parametrize("named", ["*", "proxy.example.com", "127.0.0.1:80", ""])
def test_a_proxy_is_named_by_its_address(bare: Service, tmp_path: Path, named: str) -> None:
    asked = serving.Asked(db=bare.settings.database, root=bare.root, port=0, proxies=(named,))
    with apart(tmp_path), pytest.raises(InputRefused, match="named by its address"):
        serving.serve(asked)


# --------------------------------------------------------------------------------------- how much
@pytest.mark.parametrize("path", ["/api/v1/studies", "/login", "/_dash-update-component"])
@pytest.mark.parametrize("how", ["declared", "in pieces"])
def test_a_body_beyond_a_megabyte_is_refused(
    app: FastAPI, tokens: SimpleNamespace, path: str, how: str
) -> None:
    size, piece = 2**20 + 1, 2**16
    pieces = (b" " * piece for _ in range(size // piece + 1))
    headers = {"Content-Type": "application/json"}
    answer = client(app, tokens.operate).post(
        path, content=b" " * size if how == "declared" else pieces, headers=headers
    )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("length", ["-1", "9" * 5000, "1e3", "٣", "0x10"])
def test_a_length_that_is_none_is_refused(app: FastAPI, length: str) -> None:
    asking = client(app)
    answer = asking.get("/healthz", headers={"Content-Length": length.encode()})
    assert answer.status_code == 413


def test_a_request_to_a_proxy_is_none_to_this_service(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    asked = f"Host: localhost\r\nAuthorization: Bearer {tokens.view}\r\nConnection: close\r\n\r\n"
    for line in ("GET http://evil.test/ HTTP/1.1", "OPTIONS * HTTP/1.1"):
        assert raw(app, f"{line}\r\n{asked}".encode()).startswith(b"HTTP/1.1 400 "), line


def raw(app: FastAPI, request: bytes) -> bytes:
    """The beginning of the answer to what no client would send."""
    with listening(app) as address:
        host, port = urlsplit(address).hostname, urlsplit(address).port
        with socket.create_connection((host, port), timeout=20) as connection:
            connection.sendall(request)
            return connection.recv(200)


def test_a_head_without_end_is_refused_before_anyone_sees_it(app: FastAPI) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 2**18
    assert raw(app, head).startswith(b"HTTP/1.1 400 ")


# ---------------------------------------------------------------------------------- every answer
HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("GET /healthz", 200),
        ("GET /static/theme.js", 200),
        ("GET /static/none.js", 404),
        ("GET /style.css", 200),
        ("GET /_dash-component-suites/dash/deps/none.js", 404),
        ("GET /", 200),
        ("GET /_dash-layout", 200),
        ("GET /nowhere", 404),
        ("GET /login", 200),
        ("POST /logout", 303),
        ("GET /api/v1/studies", 200),
        ("HEAD /api/v1/studies", 200),
        ("OPTIONS /api/v1/studies", 405),
        ("PUT /api/v1/studies", 405),
        ("TRACE /api/v1/studies", 405),
        ("POST /api/v1/nothing", 404),
        ("GET /api/v1/studies/1/report.html", 200),
        ("GET /api/v1/studies/99", 404),
        ("GET /api/v1/studies/x", 422),
        ("POST /api/v1/studies", 422),
    ],
)
def test_every_answer_tells_browsers_what_to_refuse(
    app: FastAPI, tokens: SimpleNamespace, asked: str, status: int
) -> None:
    answer = client(app, tokens.operate).request(*asked.split(" "))
    assert answer.status_code == status
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    scripts = next(each for each in policy.split("; ") if each.startswith("script-src"))
    assert "unsafe" not in scripts
    kept = {"GET /static/theme.js": "no-cache", "GET /style.css": "immutable"}
    assert kept.get(asked, "no-store") in answer.headers["cache-control"]


def test_refusals_before_anything_is_asked_have_them_too(app: FastAPI) -> None:
    asking = client(app)
    for answer in (
        asking.get("/api/v1/me"),
        asking.get("/", headers={"Accept": "text/html"}),
        asking.get("/healthz", headers={"Host": "evil.test"}),
        asking.get("/healthz", headers={"Content-Length": "x"}),
    ):
        assert answer.status_code in (401, 303, 421, 413)
        assert HEADERS.items() <= dict(answer.headers).items()


def test_an_error_that_nobody_expected_is_told_in_the_log_alone(service: Service) -> None:
    def broken() -> Any:
        raise RuntimeError("the password is hunter2")

    app = service.app(replace(service.desks(), notices=broken))
    with structlog.testing.capture_logs() as told:
        answer = client(app, service.token("e1", Role.VIEW)).get("/api/v1/notices")
    assert answer.status_code == 500
    assert answer.json()["title"] == "Internal Server Error"
    assert "hunter2" not in answer.text
    assert HEADERS.items() <= dict(answer.headers).items()
    assert answer.headers["x-request-id"]
    assert [line for line in told if line["event"] == "failed" and line.get("exc_info")]


@pytest.mark.parametrize("where", ["in a route", "for the token", "whether one is needed"])
def test_a_database_that_does_not_answer_is_503_and_where_it_is_stays_here(
    service: Service, where: str
) -> None:
    def broken(*_: Any) -> Any:
        raise StoreFailed("the database cannot be read", value="/srv/secret/autotune.db")

    token = service.token(where.replace(" ", "-"), Role.VIEW)
    desks = service.desks()
    if where == "in a route":
        desks = replace(desks, notices=broken)
    else:
        access = SimpleNamespace(required=broken, identify=broken, holder=broken)
        desks = replace(desks, access=access)
    given = "" if where == "whether one is needed" else token
    answer = client(service.app(desks), given).get("/api/v1/notices")
    assert answer.status_code == 503
    assert answer.json()["detail"] == "the database does not answer"
    assert HEADERS.items() <= dict(answer.headers).items()


def test_a_database_that_is_full_says_so_without_saying_where(service: Service) -> None:
    token = service.token("full", Role.VIEW)

    def full() -> Any:
        rule = "the disk is full: the last step was not stored, everything before it was"
        raise StoreFailed(rule, value="/srv/secret/autotune.db", told=rule)

    answer = client(service.app(replace(service.desks(), notices=full)), token).get(
        "/api/v1/notices"
    )
    assert answer.status_code == 503
    assert answer.json()["detail"].startswith("the disk is full")
    assert "secret" not in answer.text


VISIT = {
    "output": "..page.children...title.data...problem.children..",
    "outputs": [
        {"id": "page", "property": "children"},
        {"id": "title", "property": "data"},
        {"id": "problem", "property": "children"},
    ],
    "inputs": [
        {"id": "url", "property": "pathname", "value": "/study/1"},
        {"id": "url", "property": "search", "value": ""},
    ],
    "changedPropIds": ["url.pathname"],
    "state": [],
}
"""What a browser sends for the page at an address."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("hunter2"), "This did not work."),
        (StoreFailed("hunter2", value="/srv/x.db"), "The database does not answer."),
    ],
)
def test_what_goes_wrong_on_a_page_is_told_there_without_its_words_and_in_the_log(
    service: Service, tokens: SimpleNamespace, error: Exception, words: str
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise error

    app = service.app(replace(service.desks(), studies=Broken()))
    with structlog.testing.capture_logs() as told:
        answer = client(app, tokens.view).post("/_dash-update-component", json=VISIT)
    assert answer.status_code == 200
    assert words in answer.text
    assert "hunter2" not in answer.text
    assert "hunter2" in str(next(line for line in told if line["event"] == "failed"))


def test_what_a_page_may_not_show_is_told_there(app: FastAPI, tokens: SimpleNamespace) -> None:
    visit = {**VISIT, "inputs": [{**VISIT["inputs"][0], "value": "/study/99"}, VISIT["inputs"][1]]}  # type: ignore[dict-item, index]
    answer = client(app, tokens.view).post("/_dash-update-component", json=visit)
    assert (answer.status_code, "no such study" in answer.text) == (200, True)


# ------------------------------------------------------------------------------------ other doors
def test_web_sockets_are_refused(app: FastAPI, tokens: SimpleNamespace) -> None:
    asking = client(app, tokens.operate)
    for path in ("/_dash-ws-callback", "/anything"):
        with pytest.raises(WebSocketDisconnect), asking.websocket_connect(path):
            pass


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fsecurity.py",
        "/static/%2e%2e/%2e%2e/report.py",
        "/static/..%5csecurity.py",
        "/static//etc/passwd",
        "/static/%00",
        "/_dash-component-suites/dash/..%2f..%2fpip/__init__.py",
        "/_dash-component-suites/dash/%2e%2e/dash.py",
        "/_dash-component-suites/os/os.py",
        "/assets/..%2f..%2fpyproject.toml",
    ],
)
def test_no_path_leads_out_of_what_is_served(
    app: FastAPI, tokens: SimpleNamespace, path: str
) -> None:
    answer = client(app, tokens.operate).get(path)
    assert answer.status_code in (400, 404), answer.text
    assert "import" not in answer.text


def test_head_is_get_without_the_body(app: FastAPI, tokens: SimpleNamespace) -> None:
    asking = client(app, tokens.view)
    got, asked = (asking.request(how, "/api/v1/me") for how in ("GET", "HEAD"))
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == str(len(got.content))


def test_a_method_that_a_path_does_not_know_is_told_those_that_it_does(
    app: FastAPI, tokens: SimpleNamespace
) -> None:
    answer = client(app, tokens.operate).put("/api/v1/studies")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
