"""Decide which requests are answered, and add security headers to every response.

Pages of other sites must not read or change anything. The guard checks the `Host` header, because
DNS rebinding lets another site's name resolve to the address of this server. It also checks the
fetch metadata that browsers send with requests (https://www.w3.org/TR/fetch-metadata/).
"""

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

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
    """The access rules of a server.

    `hosts` are additional names of this server, and `token` is the shared secret. An authenticating
    proxy passes the name of the user in the header `user_header`.
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
    """Return the host name and the fully qualified domain name of this machine."""
    return frozenset({socket.gethostname().lower(), socket.getfqdn().lower()})


class Guard:
    """ASGI middleware that refuses unauthenticated requests and requests from other sites."""

    def __init__(self, app: Starlette, access: Access):
        self.app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._refuse(scope) or self.app
        await answer(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the response that refuses a request, or None if the request is allowed."""
        headers, method = Headers(scope=scope), scope["method"]
        host = _host_name(headers.get("host", ""))
        if not _is_own_name(host, self._access.hosts):
            return PlainTextResponse(
                f"unknown host name {host!r}; restart `expdb serve` with --allow-host and this "
                "name\n", 421
            )  # fmt: skip
        if b"%00" in scope.get("raw_path", b"") + scope["query_string"]:
            return PlainTextResponse("the URL must not contain NUL characters\n", 400)
        if not _is_same_site_or_link(headers, method):
            return PlainTextResponse("request from another site; open the page directly\n", 403)
        if method not in ("GET", "HEAD") and not self._access.write:
            return PlainTextResponse("this server is read-only; restart it with --write\n", 403)
        return self._authenticate(scope, headers)

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        access = self._access
        if access.user_header is not None and headers.get(access.user_header):
            return None
        if access.token is None:
            if access.user_header is None:
                return None
            return PlainTextResponse(
                f"the header {access.user_header} is missing; open the page through the proxy "
                "that sets it\n", 401
            )  # fmt: skip
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        if "token" in query and scope["method"] == "GET" and self._is_token(query.pop("token")):
            # Redirect to the address without the token, so that the token does not stay in the
            # history of the browser or in copied links. Browsers read `//name` as another host.
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
            "the token is missing or wrong; open the URL that `expdb serve` printed, with "
            "?token=TOKEN at its end, or send the header Authorization: Bearer TOKEN\n", 401
        )  # fmt: skip

    def _is_token(self, sent: str) -> bool:
        expected = self._access.token or ""
        return hmac.compare_digest(sent.encode("utf-8", "replace"), expected.encode())


_HOST = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE)


def _host_name(header: str) -> str:
    """Return the name or address in a `Host` header; empty if the header is invalid."""
    match = _HOST.fullmatch(header)
    return match[1].strip("[]").lower() if match else ""


def _is_own_name(name: str, hosts: Collection[str]) -> bool:
    """Return whether a host name is allowed; IP addresses are, as DNS rebinding needs a name."""
    if name in LOOPBACK_NAMES or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_site_or_link(headers: Headers, method: str) -> bool:
    """Return whether a request comes from a page of this server or from the user.

    Links from other sites are allowed, because the other site cannot read the linked page.
    """
    site = headers.get("sec-fetch-site")
    host = headers.get("host", "").lower()
    if any(origin.lower() not in (f"http://{host}", f"https://{host}")
           for origin in headers.getlist("origin")):  # fmt: skip
        return False
    if site in (None, "same-origin", "none"):
        return True
    is_link = headers.get("sec-fetch-mode") == "navigate"
    return method == "GET" and is_link and headers.get("sec-fetch-dest") == "document"


def _cookie_name(headers: Headers) -> str:
    """Return a cookie name that contains the port, because all ports of a host share cookies."""
    match = _HOST.fullmatch(headers.get("host", ""))
    port = match[2][1:] if match and match[2] else "80"
    return f"expdb_token_{port}"


def _cookie(headers: Headers, name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value
