"""Who is let in: by the rules alone, and through the whole server."""

from __future__ import annotations

import asyncio
import socket
from http import HTTPStatus
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from shoal.cluster.last_status import write_last
from shoal.cluster.messages import RunOutcome
from shoal.dashboard.app import Page, make_app
from shoal.dashboard.guard import AskedPage, deny
from shoal.dashboard.looks import Looks
from shoal.dashboard.server import TOKEN, serve, token_of
from shoal.dashboard.sources import WatchedRun
from shoal.errors import UsageError

from .scene import reply, worker

SECRET = "a-token-that-nobody-guesses"
HERE = "127.0.0.1:8080"
KNOWS = f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (AskedPage("/", HERE), None),
        (AskedPage("/static/page.js", "localhost:9"), None),
        (AskedPage("/api/events", HERE, authorization=KNOWS), None),
        (AskedPage("/api/events", "[::1]:8080", authorization=KNOWS), None),
        (AskedPage("/api/events", HERE, f"http://{HERE}", "same-origin", KNOWS), None),
        (AskedPage("/metrics", HERE, query_token=SECRET), None),
        # no token, a wrong one, one where it does not count
        (AskedPage("/api/events", HERE), HTTPStatus.UNAUTHORIZED),
        (AskedPage("/api/events", HERE, authorization="Bearer "), HTTPStatus.UNAUTHORIZED),
        (AskedPage("/api/events", HERE, authorization=f"Bearer {SECRET}x"), HTTPStatus.UNAUTHORIZED),
        (AskedPage("/api/events", HERE, authorization=f"Basic {SECRET}"), HTTPStatus.UNAUTHORIZED),
        (AskedPage("/api/events", HERE, query_token=SECRET), HTTPStatus.UNAUTHORIZED),
        (AskedPage("/api/events", HERE, authorization="Bearer \udcff"), HTTPStatus.UNAUTHORIZED),
        # a name that points here, of a page elsewhere (DNS rebinding)
        (AskedPage("/", "evil.example:8080"), HTTPStatus.MISDIRECTED_REQUEST),
        (AskedPage("/", "127.0.0.1.evil.example"), HTTPStatus.MISDIRECTED_REQUEST),
        (AskedPage("/", ""), HTTPStatus.MISDIRECTED_REQUEST),
        # another page in the same browser, also one of another port, even if it knew the token
        (AskedPage("/api/scale", HERE, "http://evil.example", None, KNOWS), HTTPStatus.FORBIDDEN),
        (AskedPage("/api/scale", HERE, "http://127.0.0.1:9999", None, KNOWS), HTTPStatus.FORBIDDEN),
        (AskedPage("/api/scale", HERE, "null", None, KNOWS), HTTPStatus.FORBIDDEN),
        (AskedPage("/api/events", HERE, None, "cross-site", KNOWS), HTTPStatus.FORBIDDEN),
        (AskedPage("/metrics", HERE, None, "same-site", query_token=SECRET), HTTPStatus.FORBIDDEN),
    ],
)
def test_only_the_page_itself_and_who_knows_the_token_is_let_in(asked: AskedPage, status: HTTPStatus | None) -> None:
    denial = deny(asked, SECRET)
    assert (denial.status if denial is not None else None) == status


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Of one run, which is over."""
    write_last(tmp_path, reply(worker(0, "finished"), ended=RunOutcome(True, "all done")))
    closing = asyncio.Event()
    closing.set()  # a stream ends after the first news
    page = Page(Looks(lambda: [WatchedRun("r1", tmp_path)]), closing)
    return TestClient(make_app(page, SECRET), base_url=f"http://{HERE}")


def test_every_answer_forbids_the_browser_to_load_from_elsewhere_or_to_be_framed(client: TestClient) -> None:
    for path in ("/", "/static/page.js", "/api/events", "/nothing", "/static/../app.py"):
        headers = client.get(path).headers
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert (headers["referrer-policy"], headers["x-content-type-options"]) == ("no-referrer", "nosniff")
        assert "set-cookie" not in headers
        assert "access-control-allow-origin" not in headers


def test_what_the_page_loads_comes_from_this_server_alone(client: TestClient) -> None:
    page = client.get("/").text
    assert "<style" not in page
    assert "onclick" not in page
    assert all(
        client.get(path).status_code == 200 for path in ("/static/page.js", "/static/charts.js", "/static/style.css")
    )
    assert client.get("/static/index.html").status_code == client.get("/static/nothing").status_code == 404


def test_the_facts_need_the_token_and_come_as_events(client: TestClient) -> None:
    assert client.get("/api/events").status_code == 401
    answer = client.get("/api/events", headers={"authorization": KNOWS})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.startswith(
        'data: {"runs":[{"run":"r1","is_alive":false}],"facts":{"run":"r1","state":"finished"'
    )


@pytest.mark.parametrize("path", ["/api/scale", "/api/drain", "/api/checkpoint"])
def test_orders_are_posts_with_the_token_small_and_of_one_shape(client: TestClient, path: str) -> None:
    knows = {"authorization": KNOWS}
    assert client.get(path, headers=knows).status_code == 405
    assert client.post(path, json={"run": "r1"}).status_code == 401
    evil = client.post(path, json={"run": "r1"}, headers={**knows, "origin": "http://evil.example"})
    assert evil.status_code == 403
    for body in (b"", b"[]", b'{"run": 7}', b'{"run": "r1", "workers": 2, "member": "w", "more": 1}', b" " * 5000):
        assert client.post(path, content=body, headers=knows).status_code == 400
    order = {"/api/scale": {"workers": 1}, "/api/drain": {"member": "worker-0"}}.get(path, {})
    answer = client.post(path, json={"run": "r1", **order}, headers=knows)
    assert (answer.status_code, answer.text) == (400, "the run is over")


def test_a_slip_of_the_finger_does_not_start_a_thousand_workers(client: TestClient) -> None:
    answer = client.post("/api/scale", json={"run": "r1", "workers": 100_000}, headers={"authorization": KNOWS})
    assert answer.status_code == 400
    assert "expected at most" in answer.text


def test_the_token_is_a_new_one_or_the_users_if_it_is_long_enough() -> None:
    assert token_of({}) != token_of({})
    assert token_of({TOKEN: SECRET}) == SECRET
    for bad in ("short", "with a space and more of it", "ümläute-ümläute-ümläute#"):
        with pytest.raises(UsageError, match=TOKEN):
            token_of({TOKEN: bad})


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}: somebody else listens there"):
            serve(list, port, SECRET, pytest.fail)
