"""Access control: a request for this host, from our own page, with the token if there is one.

Checks the Host header (against DNS rebinding), the origin, and the token or its cookie. Decides by
headers alone, before anything else is read. Tokens are compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.base.errors import BadInput
from holdfast.dashboard.web.refusals import Forbidden, Unauthorized, WrongType

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[^\s:\[\]/@]{1,253})(?::([0-9]{1,5}))?", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,128}")
_OURS = ("same-origin", "none")
OPEN = ("/healthz",)  # reveals nothing, so needs no token


def make_token() -> str:
    """A new random token."""
    return secrets.token_urlsafe(24)


def check_token(token: str) -> str:
    """Return the token; raises BadInput if it is too short or not valid in a URL."""
    if not _TOKEN.fullmatch(token):
        raise BadInput(
            f"cannot use a token of {len(token)} characters such as this one",
            expected="8 to 128 letters, digits and . _ ~ -",
            hint="--token auto",
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_everywhere(host: str) -> bool:
    """Whether an address means all interfaces."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Visit:
    """The headers of a request that matter for access."""

    method: str
    path: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    query_token: str | None = None


class Guard:
    """Rejects requests without access."""

    def __init__(self, host: str, port: int, token: str | None, called: str | None = None) -> None:
        """`host` is the address listened on, `called` the name the user gave for it."""
        self.host, self.port, self.token = host, port, token
        self.cookie = f"holdfast_{port}"  # cookies ignore ports
        self._names = _names_of_this_host(host, host if called is None else called)

    def check(self, visit: Visit) -> None:
        """Raise Forbidden or Unauthorized before the request is handled."""
        self._check_host(visit)
        self._check_origin(visit)
        if visit.path not in OPEN:
            self._check_token(visit)

    def fits(self, token: str | None) -> bool:
        """Whether that is the token."""
        if self.token is None:
            return True
        given = (token or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.token.encode())

    def _check_host(self, visit: Visit) -> None:
        said = visit.headers.get("Host", "")
        match = _HOST.fullmatch(said)
        if match is not None and self._is_us(match[1].lower().rstrip(".")):
            return
        raise Forbidden(
            f"this server does not answer for the host {said[:80]!r}",
            expected=f"one of {', '.join(sorted(self._names))}",
            hint="the address that holdfast serve printed",
        )

    def _is_us(self, name: str) -> bool:
        address = _address(name)
        if name in self._names or address is None:
            return name in self._names
        # The owner of a DNS name can point it here; a numeric address is safe.
        return address.is_loopback if is_loopback(self.host) else is_everywhere(self.host)

    def _check_origin(self, visit: Visit) -> None:
        origin = visit.headers.get("Origin")
        ours = f"http://{visit.headers.get('Host', '')}".lower()
        if origin is not None and origin.lower() != ours:
            raise Forbidden(
                f"this server does not answer pages of {origin[:80]!r}",
                expected=f"requests of its own page, {ours}, or of programs that name no origin",
            )
        site = visit.headers.get("Sec-Fetch-Site", "none").lower()
        if site not in _OURS and not _is_a_link_to_the_page(visit):
            raise Forbidden(
                f"this server does not answer other sites (Sec-Fetch-Site: {site[:80]})",
                expected="requests of its own page",
            )

    def _check_token(self, visit: Visit) -> None:
        if self.token is None:
            return
        scheme, _, given = visit.headers.get("Authorization", "").partition(" ")
        if scheme:
            fits = scheme.lower() == "bearer" and self.fits(given.strip())
        elif visit.query_token is not None and (visit.method, visit.path) == ("GET", "/"):
            fits = self.fits(visit.query_token)
        else:
            fits = self.fits(visit.cookies.get(self.cookie))
        if not fits:
            raise Unauthorized(
                "this server needs its token, which the request does not have",
                expected="Authorization: Bearer TOKEN, or the cookie that /?token=TOKEN sets",
                hint="open the whole address that holdfast serve printed",
            )


def _is_a_link_to_the_page(visit: Visit) -> bool:
    """A link followed from another site: only shows the page."""
    headers = visit.headers
    return (
        (visit.method, visit.path) == ("GET", "/")
        and headers.get("Sec-Fetch-Mode") == "navigate"
        and headers.get("Sec-Fetch-Dest") == "document"
    )


def check_type(said: str) -> None:
    """Raise WrongType unless the body is JSON, which forms of other sites cannot send."""
    if said.partition(";")[0].strip().lower() != "application/json":
        raise WrongType(
            f"cannot take a body of the type {said[:80]!r}",
            expected="Content-Type: application/json",
        )


def _names_of_this_host(host: str, called: str) -> frozenset[str]:
    """Allowed Host headers: the address, and our host name if not on loopback."""
    own = (one.lower().strip("[]") for one in (host, called))
    names = {f"[{one}]" if ":" in one else one for one in own}
    if is_loopback(host) or is_everywhere(host):
        names |= {"localhost", "127.0.0.1", "[::1]"}
    if not is_loopback(host):
        name = socket.gethostname().lower()
        names |= {name, f"{name.partition('.')[0]}.local"}
    return frozenset(name for name in names if not is_everywhere(name))
