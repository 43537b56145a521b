"""Who may ask, and what the answer allows the browser to do.

The board has no login: it answers whoever reaches it. Bound to 127.0.0.1 that is this machine, and two doors remain,
which are shut here: a page of another site that reaches it by a name of its own for 127.0.0.1 (DNS rebinding; its Host
header gives it away), and text in the store that a browser would take for code (the content-security policy).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

_LARGEST_BODY = 4 << 20
"""Bytes of a request: the state of the page is some kilobytes."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class Hosts:
    """The Host headers that are answered.

    Parameters
    ----------
    host, port
        Where the board listens.
    """

    def __init__(self, host: str, port: int) -> None:
        self._port = port
        self._wildcard = host in ("0.0.0.0", "::", "")  # noqa: S104
        names = [*_LOOPBACK, f"[{host}]" if ":" in host else host]
        if self._wildcard:
            names.append(socket.gethostname())
        self._names = {name.lower() for name in names if name}

    def allow(self, header: str | None) -> bool:
        """Whether a Host header (or the host of an Origin) is one of ours, with our port."""
        if not header:
            return False
        try:
            parts = urlsplit(f"//{header}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.username is not None or parts.path or port != self._port:
            return False
        shown = f"[{name}]" if ":" in name else name
        # An address cannot be rebound: only a name can be made to point elsewhere.
        return shown in self._names or (self._wildcard and _address(name))


def _address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def reached_from_outside(host: str) -> bool:
    """Whether a board that listens on this address may be reached from other machines."""
    return not (ipaddress.ip_address(host).is_loopback if _address(host) else host == "localhost")


def _policy(script_hashes: Sequence[str]) -> str:
    """Return the content-security policy: nothing but the board's own files.

    Dash starts itself by one line of inline script, which is allowed by its hash. Plotly writes style elements and
    style attributes, for which there is no hash that could be known before: styles may be inline, scripts may not.
    Images as data: and blob: are the raster and the saved pictures.
    """
    return "; ".join(
        [
            "default-src 'none'",
            " ".join(["script-src 'self'", *script_hashes]),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def protect(server: Any, hosts: Hosts, script_hashes: Sequence[str]) -> None:
    """Refuse foreign requests and put the headers on every answer of a Flask server."""
    from flask import Response, request

    headers = {
        "Content-Security-Policy": _policy(script_hashes),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }

    server.config["MAX_CONTENT_LENGTH"] = _LARGEST_BODY

    @server.before_request
    def refuse() -> Response | None:
        origin = request.headers.get("Origin")
        own = origin is None or (origin.startswith("http://") and hosts.allow(origin.removeprefix("http://")))
        if not own or not hosts.allow(request.headers.get("Host")):
            return Response("This board answers only to its own address.\n", 403, mimetype="text/plain")
        if (request.content_length or 0) > _LARGEST_BODY or "Transfer-Encoding" in request.headers:
            return Response("This request is too large.\n", 413, mimetype="text/plain")
        return None

    @server.after_request
    def add(response: Response) -> Response:
        for name, value in headers.items():
            response.headers[name] = value
        return response
