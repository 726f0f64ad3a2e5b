"""The checks of `sremkit.web` on a real server: hosts, tokens, origins, sizes, headers, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from live_server import Client, running
from sremkit.errors import UserError
from sremkit.web.app import create_app

TOKEN = "a-token-of-the-test"


def small_app(token: str | None = None):
    app = create_app("test", token=token, max_body_bytes=1000)

    @app.get("/page")
    def page() -> dict:
        return {"page": True}

    @app.post("/change")
    def change(body: dict) -> dict:
        return body

    @app.get("/mistake")
    def mistake() -> None:
        raise UserError("the folder is gone; name another")

    @app.get("/defect")
    def defect() -> None:
        raise RuntimeError("a secret of the server")

    return app


@pytest.fixture(scope="module")
def local() -> Iterator[Client]:
    with running(small_app()) as client:
        yield client


@pytest.fixture(scope="module")
def shared() -> Iterator[Client]:
    with running(small_app(TOKEN)) as client:
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST"])
def test_names_of_the_loopback_interface_are_answered(local: Client, host: str) -> None:
    assert local.get("/page", host=host.format(port=local.port)).json() == {"page": True}


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "192.168.1.5", ""])
def test_other_names_are_refused(local: Client, host: str) -> None:
    answer = local.get("/page", host=host)
    assert answer.status == 403
    assert b"page" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1:port", "[::1", "127.0.0.1:99999"])
def test_a_malformed_host_is_a_bad_request(local: Client, host: str) -> None:
    assert local.get("/page", host=host).status == 400


def test_the_token_is_required_of_every_request(shared: Client) -> None:
    assert shared.get("/page").status == 401
    assert shared.get("/page?token=wrong").status == 401
    assert shared.get("/page?token=").status == 401
    assert shared.get("/common/base.css").status == 401
    assert shared.post("/change", {}).status == 401
    assert shared.get(f"/page?token={TOKEN}", host="any.example").status == 200
    assert shared.get("/page", authorization=f"Bearer {TOKEN}").status == 200
    assert shared.get("/page", authorization=f"Basic {TOKEN}").status == 401


def test_the_token_in_the_address_sets_a_cookie_that_suffices(shared: Client) -> None:
    cookie = shared.get(f"/page?token={TOKEN}").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    pair = cookie.split(";")[0]
    assert shared.get("/page", cookie=pair).status == 200
    assert shared.get("/page", cookie=pair + "x").status == 401
    assert shared.post("/change", {"a": 1}, cookie=pair).json() == {"a": 1}
    assert "set-cookie" not in shared.get("/page", cookie=pair).headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:{port}"}, 200),
        ({"origin": "http://127.0.0.1:{port}", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_changes_come_from_the_same_origin(local: Client, headers: dict[str, str], status: int) -> None:
    filled = {name: value.format(port=local.port) for name, value in headers.items()}
    assert local.post("/change", {"a": 1}, **filled).status == status


def test_a_form_of_another_content_type_is_refused(local: Client) -> None:
    assert local.post("/change", b'{"a": 1}', content_type="text/plain").status == 422


def test_large_bodies_are_refused_with_and_without_a_length(local: Client) -> None:
    large = json.dumps({"a": "x" * 1000}).encode()
    assert local.post("/change", large).status == 413
    chunked = local.request("POST", "/change", iter([large]), content_type="application/json")  # type: ignore[arg-type]
    assert chunked.status == 413
    assert local.post("/change", {"a": "x" * 900}).status == 200


def test_every_response_has_the_headers(local: Client) -> None:
    answers = [local.get("/page"), local.get("/nowhere"), local.get("/page", host="evil.example"), local.get("/defect")]
    assert [answer.status for answer in answers] == [200, 404, 403, 500]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-cache"


def test_errors_are_sentences_without_details_of_the_code(local: Client, caplog: pytest.LogCaptureFixture) -> None:
    assert local.get("/mistake").json() == {"detail": "the folder is gone; name another"}
    assert local.get("/mistake").status == 400
    defect = local.get("/defect")
    assert defect.status == 500
    assert b"secret" not in defect.body
    assert b"Traceback" not in defect.body
    assert "a secret of the server" in caplog.text  # it is for the terminal


@pytest.mark.parametrize(
    "path", ["/common/../app.py", "/common/%2e%2e/app.py", "/common/..%2fapp.py", "/common//etc/passwd"]
)
def test_static_files_do_not_leave_their_folder(local: Client, path: str) -> None:
    assert local.get("/common/base.css").status == 200
    assert local.get(path).status == 404
