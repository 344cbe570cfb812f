"""Decide which requests are answered, and add security headers to every response.

A page of another site must neither read nor change anything. So the guard checks the `Host` header,
because DNS rebinding gives another site the address of this server, and the fetch metadata, which
browsers send with every request (https://www.w3.org/TR/fetch-metadata/).
"""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = {"localhost", "127.0.0.1", "::1"}
COOKIE_SECONDS = 30 * 86_400
HEADERS = {
    # No inline script or style, no other host, no frames.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
        "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, forms would send the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Who may read and who may write.

    `hosts` are additional names of this server, `token` is the shared secret, and `user_header` is
    a header with the name of the user, which an authenticating proxy sets.
    """

    write: bool = False
    token: str | None = None
    hosts: frozenset[str] = field(default_factory=frozenset)
    user_header: str | None = None


def new_token() -> str:
    """Return a random token for URLs."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of_this_machine() -> frozenset[str]:
    """Return the names under which other machines may know this machine."""
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


class Guard:
    """ASGI middleware that refuses foreign requests."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refuse(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the response to a request that is not passed on, or None."""
        headers, method = Headers(scope=scope), scope["method"]
        host = _host_name(headers.get("host", ""))
        if not _is_own_name(host, self._access.hosts):
            return PlainTextResponse(
                f"the host name {host!r} is not known to this server; start it with --allow-host "
                "and this name\n", 421
            )  # fmt: skip
        if not _is_from_here(headers, method):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        if method not in ("GET", "HEAD") and not self._access.write:
            return PlainTextResponse("this server only reads; start it with --write\n", 403)
        return self._authenticate(scope, headers)

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        access = self._access
        if access.user_header is not None and headers.get(access.user_header):
            return None
        if access.token is None:
            if access.user_header is None:
                return None
            return PlainTextResponse(f"the header {access.user_header} is missing\n", 401)
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if "token" in query and scope["method"] == "GET" and self._is_token(query.pop("token")):
            # The address without the token can be copied and stays in the history of the browser.
            # Browsers read `//name` as another host.
            path = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
            response = RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)
            response.set_cookie(
                _cookie_name(headers), access.token, max_age=COOKIE_SECONDS, httponly=True,
                samesite="lax",
            )  # fmt: skip
            return response
        kind, _, sent = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(sent.strip()):
            return None
        if self._is_token(_cookie(headers, _cookie_name(headers))):
            return None
        return PlainTextResponse(
            "the token is missing or wrong; open the address that `expdb serve` printed, or send "
            "the token in the header Authorization: Bearer TOKEN\n", 401
        )  # fmt: skip

    def _is_token(self, sent: str) -> bool:
        expected = self._access.token or ""
        return hmac.compare_digest(sent.encode("utf-8", "replace"), expected.encode())


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def _is_own_name(name: str, hosts: Collection[str]) -> bool:
    """Return whether a name leads to this server; an address needs no DNS."""
    if name in LOOPBACK_NAMES or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_from_here(headers: Headers, method: str) -> bool:
    """Return whether a request comes from a page of this server or from the user.

    Another site may only link to a page, which it cannot read.
    """
    site = headers.get("sec-fetch-site")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        return False
    if site in (None, "same-origin", "none"):
        return True
    is_link = headers.get("sec-fetch-mode") == "navigate"
    return method == "GET" and is_link and headers.get("sec-fetch-dest") == "document"


def _cookie_name(headers: Headers) -> str:
    """Return the name of the cookie, with the port, because cookies are shared by all ports."""
    try:
        port = urlsplit(f"//{headers.get('host', '')}").port or 80
    except ValueError:
        port = 80
    return f"expdb_token_{port}"


def _cookie(headers: Headers, name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
