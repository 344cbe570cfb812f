"""Tests of the checks of hosts, origins and tokens of requests."""

import logging
import socket

import pytest

from expdb.serve.guard import is_loopback

TOKEN = "a-long-secret"


@pytest.fixture
def locked(filled, location, serve):
    return serve(location, token=TOKEN)


@pytest.mark.parametrize("host", ["", "127.0.0.1.nip.io", "evil.example@localhost", "localhost/x"])
def test_foreign_host_names_are_refused(site, host):
    answer = site.get("/b/train", host=f"{host}:{site.port}")
    assert answer.status == 421
    assert "--allow-host" in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "10.1.2.3"])
def test_requests_to_local_names_and_addresses_are_served(site, host):
    assert site.get("/b/train", host=f"{host}:{site.port}").status == 200


def test_allowed_hosts_are_served(filled, location, serve):
    site = serve(location, hosts=frozenset({"box.example"}))
    assert site.get("/b/train", host="box.example").status == 200
    assert site.get("/b/train", host="other.example").status == 421


@pytest.mark.parametrize(
    "headers",
    [{"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
     {"sec_fetch_site": "same-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"},
     {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
     {"origin": "http://evil.example"},
     {"origin": "null"},
     {"origin": "http://localhost:1"}],
)  # fmt: skip
def test_requests_from_other_sites_are_refused(site, headers):
    assert site.get("/b/train", **headers).status == 403
    assert site.get("/b/train/history.json", **headers).status == 403


def test_every_response_has_a_strict_content_security_policy(site):
    for path in ("/b/train", "/nope", "/static/app.js", "/metrics", "/b/train/history.json"):
        answer = site.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers or "uvicorn" in answer.headers["server"]


def test_a_missing_or_wrong_token_is_refused(locked):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN},
                    {"cookie": f"expdb_token_{locked.port}=wrong"}, {"cookie": 'a="'}):  # fmt: skip
        answer = locked.get("/b/train", **headers)
        assert answer.status == 401
        assert "train" not in answer.text
    assert locked.get("/b/train?token=wrong").status == 401
    assert locked.get("/static/app.js").status == 401


def test_the_token_in_a_url_becomes_a_cookie(locked):
    answer = locked.get(f"/b/train/episodes?q=n&token={TOKEN}")
    assert answer.status == 303
    assert answer.headers["location"] == "/b/train/episodes?q=n"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    sent = cookie.split(";")[0]
    assert locked.get("/b/train", cookie=sent).status == 200
    assert locked.get("/b/train", authorization=f"Bearer {TOKEN}").status == 200


def test_a_redirect_after_the_token_stays_on_this_server(locked):
    answer = locked.get(f"//evil.example/?token={TOKEN}")
    assert answer.status == 303
    assert not answer.headers["location"].startswith("//")


def test_a_user_header_of_a_proxy_replaces_the_token(filled, location, serve):
    site = serve(location, user_header="x-forwarded-user")
    assert site.get("/b/train").status == 401
    assert site.get("/b/train", x_forwarded_user="ann").status == 200


def test_write_requests_are_refused_without_the_write_option(site):
    answer = site.post("/b/train/e/e0/label", {"name": "quality", "value": "1"})
    assert (answer.status, "--write" in answer.text) == (403, True)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("box", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognised(host, expected):
    assert is_loopback(host) is expected


def test_every_origin_header_is_checked(site):
    request = (
        f"GET /b/train HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nOrigin: {site.url}\r\n"
        "Origin: http://evil.example\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(request.encode())
        assert b" 403 " in connection.recv(100)
    assert site.get("/b/train", origin=site.url).status == 200
    assert site.get("/b/train", origin="http://[").status == 403


def test_nul_characters_are_refused(site):
    assert site.get("/b/train/ledger?consumer=%00").status == 400
    assert site.get("/b/train%00/ledger").status == 400


def test_internal_errors_have_the_content_security_policy(site, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("expdb.serve.pages.source_of", fail)
    monkeypatch.setattr("expdb.serve.app.source_of", fail)
    logging.getLogger("uvicorn.error").disabled = True
    answer = site.get("/metrics")
    logging.getLogger("uvicorn.error").disabled = False
    assert answer.status == 500
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "a bug" not in answer.text
