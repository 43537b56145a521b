"""From a store to a page in the browser: the app, and the server that a command runs until Ctrl-C."""

from __future__ import annotations

import errno
import logging
import socket
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from dash import Dash, set_props
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from ..checks import InvalidInput, printable
from ..store import StoreError
from . import page
from .callbacks import first_page, register
from .heat import HeatMaps
from .security import Hosts, protect
from .source import Source

_CONNECTIONS = 64
"""Connections that are answered at once."""
PATIENCE = 30.0
"""Seconds to wait for a client that has not finished its request."""
_logger = logging.getLogger("fedstale.board")


def make_app(source: Source, hosts: Hosts) -> Dash:
    """Make the Dash app over a source: everything served from here, nothing fetched, nothing written."""
    app = Dash(
        "fedstale.board",
        title="fedstale board",
        update_title="",
        index_string=page.INDEX,
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore="theme",  # the page loads it first: dark from the beginning
        serve_locally=True,
        compress=False,
        add_log_handler=False,
        include_pages_meta=False,
        enable_mcp=False,
        on_error=_failed,
    )
    # The names of callbacks and the components of a page are not secret; tracebacks are.
    app.enable_dev_tools(debug=False, dev_tools_ui=False, dev_tools_disable_version_check=True)
    app.layout = lambda: first_page(source)
    register(app, source, HeatMaps(source))
    protect(app.server, hosts, app.csp_hashes())
    return app


def _failed(error: Exception) -> None:
    """Say on the page what went wrong in a callback; the server goes on."""
    known = isinstance(error, StoreError)
    if not known:
        _logger.error("a callback failed", exc_info=error)
    text = (
        str(error) if known else f"The board could not do this: {type(error).__name__}. See its terminal for details."
    )
    set_props("trouble", {"children": text})


class _Plain(logging.Handler):
    """Log entries without codes: what a request or the store holds stands in them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print an entry, and its traceback, as printable text."""
        print(printable(self.format(record), keep="\n"), file=sys.stderr)


def _log_plainly(*loggers: logging.Logger) -> None:
    for logger in loggers:
        logger.handlers, logger.propagate = [_Plain()], False
        logger.setLevel(logging.ERROR)


class _Server(ThreadedWSGIServer):
    """A thread for each connection, and no more of them than `_CONNECTIONS`: who comes then is told to come again."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, where there is room for one."""
        if self._room.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                self._room.release()
                raise
            return
        with suppress(OSError):
            request.settimeout(0.1)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what went wrong with a connection."""
        _logger.error("a connection failed", exc_info=True)


class _Quiet(WSGIRequestHandler):
    """No line per request, and no waiting for ever for who says nothing."""

    timeout = PATIENCE

    protocol_version = "HTTP/1.1"
    server_version = "fedstale"
    sys_version = ""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Keep quiet."""


def listen(host: str, port: int) -> socket.socket:
    """Open the port, or say in one line why not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"host {host!r} is not an address of this machine ({error}): leave out --host") from None
    try:
        if sys.platform != "win32":
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} of {host} is in use: choose another with --port, or any free one with --port 0"
        elif error.errno == errno.EACCES:
            why = f"port {port} needs more rights: choose one above 1023 with --port"
        else:
            why = f"cannot listen on {host}, port {port}: {error.strerror}"
        raise InvalidInput(why) from None
    return opened


def url(host: str, port: int) -> str:
    """Where a browser on this machine finds the board."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}/"


class Board:
    """A board that listens; `serve` answers until Ctrl-C or `stop`.

    Parameters
    ----------
    store
        The store's folder (or its store.sqlite).
    host, port
        Where to listen; port 0 takes any free one.
    """

    def __init__(self, store: str | Path | None = None, host: str = "127.0.0.1", port: int = 8050) -> None:
        self.source = Source(store)
        try:
            self._socket = listen(host, port)
        except BaseException:
            self.source.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self.url = url(host, self.port)
        self.app = make_app(self.source, Hosts(host, self.port))
        _log_plainly(logging.getLogger("werkzeug"), self.app.server.logger, _logger)
        self._server = _Server(host, self.port, self.app.server, _Quiet, fd=self._socket.fileno())

    def serve(self) -> None:
        """Answer until Ctrl-C."""
        with closing(self.source), self._socket:
            self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """End `serve` from another thread."""
        self._server.shutdown()
