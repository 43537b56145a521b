"""The server: headers on every answer, foreign requests refused, nothing written, names as text; errors in one line."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedstale.board import make_app, server
from fedstale.board.callbacks import short
from fedstale.board.security import _LARGEST_BODY, Hosts
from fedstale.board.server import Board, listen
from fedstale.board.source import Source
from fedstale.checks import InvalidInput
from fedstale.cli.app import main
from fedstale.store import Store, StoreError

from .conftest import HOSTILE, fill_full

BASE = "http://127.0.0.1:8050"


@pytest.fixture
def app(source: Source) -> Any:
    return make_app(source, Hosts("127.0.0.1", 8050))


@pytest.fixture
def client(app: Any) -> Any:
    return app.server.test_client()


def ask(client: Any, app: Any, outputs: list[str], inputs: dict[str, Any]) -> Any:
    """Do what the browser does: call the callback that has these outputs."""
    for spec in client.get("/_dash-dependencies", base_url=BASE).get_json():
        names = re.findall(r"([\w-]+\.[\w-]+)", spec["output"])
        if set(outputs) <= set(names):
            break
    else:
        raise AssertionError(outputs)

    def filled(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, "value": inputs.get(f"{one['id']}.{one['property']}")} for one in listed]

    body = {
        "output": spec["output"],
        "outputs": [dict(zip(("id", "property"), name.split("."), strict=True)) for name in names],
        "inputs": filled(spec["inputs"]),
        "state": filled(spec["state"]),
        "changedPropIds": [],
    }
    answer = client.post("/_dash-update-component", json=body, base_url=BASE)
    return answer if answer.status_code != 200 else json.loads(answer.data)


PATHS = ["/", "/_dash-layout", "/_dash-dependencies", "/assets/board.js", "/assets/board.css", "/no/such/page"]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_carries_the_policy(client: Any, path: str) -> None:
    answer = client.get(path, base_url=BASE)
    policy = answer.headers["Content-Security-Policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts is not None
    assert "unsafe" not in scripts[1]
    assert "http" not in policy
    assert "*" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "base-uri 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Frame-Options"] == "DENY"


def test_inline_scripts_are_those_of_the_policy(client: Any) -> None:
    answer = client.get("/", base_url=BASE)
    page = answer.get_data(as_text=True)
    inline = re.findall(r"<script(?![^>]*\bsrc=)([^>]*)>(.*?)</script>", page, re.DOTALL)
    run = [text for attributes, text in inline if "application/json" not in attributes]
    assert run
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in answer.headers["Content-Security-Policy"]
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
    assert loaded
    assert all(link.startswith("/") and not link.startswith("//") for link in loaded)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8050", 200),
        ("localhost:8050", 200),
        ("LOCALHOST:8050", 200),
        ("[::1]:8050", 200),
        ("evil.example:8050", 403),
        ("127.0.0.1:9999", 403),
        ("127.0.0.1", 403),
        ("localhost:8050.evil.example", 403),
        ("127.0.0.1:8050@evil.example", 403),
        ("10.0.0.7:8050", 403),
        ("", 403),
    ],
)
def test_foreign_hosts_are_refused(client: Any, host: str, status: int) -> None:
    answer = client.get("/_dash-layout", headers={"Host": host})
    assert answer.status_code == status
    assert "Content-Security-Policy" in answer.headers


def test_requests_of_other_sites_are_refused(client: Any) -> None:
    for origin in ("http://evil.example", "null", "https://127.0.0.1:8050", "http://127.0.0.1:1"):
        answer = client.post("/_dash-update-component", json={}, headers={"Origin": origin}, base_url=BASE)
        assert answer.status_code == 403
    assert client.get("/", headers={"Origin": BASE}, base_url=BASE).status_code == 200


def test_a_wildcard_address_takes_addresses_but_no_foreign_names() -> None:
    hosts = Hosts("0.0.0.0", 80)
    assert hosts.allow("10.0.0.7")
    assert hosts.allow(f"{socket.gethostname()}:80")
    assert not hosts.allow("evil.example")
    assert not hosts.allow("10.0.0.7:81")
    named = Hosts("board.lan", 8050)
    assert named.allow("board.lan:8050")
    assert not named.allow("10.0.0.7:8050")


def test_no_route_writes(app: Any, client: Any, folder: Path) -> None:
    writing = {
        rule.rule for rule in app.server.url_map.iter_rules() if (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
    }
    assert writing == {"/_dash-update-component"}
    before = (folder / "store.sqlite").read_bytes()
    for spec in client.get("/_dash-dependencies", base_url=BASE).get_json():
        if spec.get("clientside_function"):
            continue
        outputs = re.findall(r"([\w-]+\.[\w-]+)", spec["output"])
        nonsense = {f"{one['id']}.{one['property']}": ["'; DROP TABLE run; --"] for one in spec["inputs"]}
        ask(client, app, outputs, nonsense)
    assert (folder / "store.sqlite").read_bytes() == before


def test_dev_tools_and_tracebacks_are_off(app: Any, client: Any) -> None:
    config = json.loads(re.search(r'_dash-config"[^>]*>(.*?)</script>', client.get("/", base_url=BASE).text)[1])  # type: ignore[index]
    assert config["ui"] is False
    assert config["disable_version_check"] is True
    assert not app.server.debug
    answer = client.post("/_dash-update-component", json={"output": "nothing.here"}, base_url=BASE)
    assert answer.status_code >= 400
    assert "Traceback" not in answer.text


def test_names_come_as_text(app: Any, client: Any) -> None:
    shown = ask(client, app, ["rows.children"], {"filter.value": "script"})["response"]
    text = json.dumps(shown, ensure_ascii=False)
    assert HOSTILE in text  # as a string, which the browser escapes
    page = client.get("/", base_url=BASE).text
    assert "<script>window.broken" not in page
    layout = client.get("/_dash-layout", base_url=BASE)
    assert layout.mimetype == "application/json"


def test_table_pages_and_sorts_on_the_server(app: Any, client: Any) -> None:
    first = ask(client, app, ["rows.children"], {"page.data": 0})["response"]
    assert first["page-text"]["children"] == "1–20 of 65 runs"
    assert len(first["rows"]["children"]) == 20
    last = ask(client, app, ["rows.children"], {"page.data": 99})["response"]
    assert last["page-text"]["children"] == "61–65 of 65 runs"
    again = ask(client, app, ["rows.children"], {"page.data": 0, "stamp-rows.data": first["stamp-rows"]["data"]})
    assert "rows" not in again["response"]  # nothing changed: nothing is sent


def test_heat_map_and_the_runs_behind_a_cell(app: Any, client: Any, source: Source) -> None:
    shown = ask(client, app, ["heat.children"], {"view.data": "sweep", "shown.data": "best"})["response"]
    text = json.dumps(shown["heat"], ensure_ascii=False)
    assert text.count("data-cell") == 4
    key = shown["map"]["data"]
    where = {"cell.data": "0.1 0.6", "map.data": key, "sweep.data": ""}
    output = [s for s in client.get("/_dash-dependencies", base_url=BASE).get_json() if s["inputs"][0]["id"] == "cell"]
    body = {
        "output": output[0]["output"],
        "outputs": {"id": "chosen", "property": output[0]["output"].split(".")[1]},
        "inputs": [{"id": "cell", "property": "data", "value": where["cell.data"]}],
        "state": [{"id": n, "property": "data", "value": where[f"{n}.data"]} for n in ("map", "sweep")],
        "changedPropIds": ["cell.data"],
    }
    answer = client.post("/_dash-update-component", json=body, base_url=BASE).get_json()
    (chosen,) = [part["data"] for part in answer["response"].values()]
    assert len(chosen) == 8
    assert {source.runs[id].config["swap"] for id in chosen} == {0.6}


def test_a_store_that_goes_is_said_on_the_page(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        fill_full(store)
    source = Source(tmp_path / "store")
    app = make_app(source, Hosts("127.0.0.1", 8050))
    client = app.server.test_client()
    (tmp_path / "store").rename(tmp_path / "gone")
    source._looked = 0.0
    said = ask(client, app, ["trouble.children"], {"view.data": "runs"})["response"]
    assert "there is no store" in said["trouble"]["children"]
    assert client.get("/", base_url=BASE).status_code == 200
    source.close()


def test_nothing_is_sent_when_nothing_changed(app: Any, client: Any) -> None:
    first = ask(client, app, ["stamp-runs.data"], {"view.data": "sweep", "chosen.data": []})["response"]
    assert first["counts"]["children"] == "65 runs, 65 finished"
    old = {f"{name}.data": first[name]["data"] for name in ("stamp-runs", "stamp-chosen", "stamp-map", "stamp-running")}
    again = ask(client, app, ["stamp-runs.data"], {"view.data": "sweep", "chosen.data": [], **old})
    assert again["response"] == {}


def test_what_cannot_be_read_is_said_and_the_server_goes_on(
    app: Any, client: Any, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise StoreError("the metrics of run x are damaged")

    chosen = [next(iter(source.runs))]
    monkeypatch.setattr(source, "series", damaged)
    answer = ask(client, app, ["curve-figure.data"], {"chosen.data": chosen})
    assert "the metrics of run x are damaged" in json.dumps(answer)
    monkeypatch.undo()
    assert "curve-figure" in ask(client, app, ["curve-figure.data"], {"chosen.data": chosen})["response"]


def test_the_folder_is_written_as_people_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert short(Path("/home/ada/study/runs")) == "~/study/runs"
    assert short(Path("/srv/runs")) == "/srv/runs"


def test_ports(folder: Path) -> None:
    board = Board(folder, port=0)
    assert board.port > 0
    assert board.url == f"http://127.0.0.1:{board.port}/"
    with pytest.raises(InvalidInput, match=f"port {board.port} of 127.0.0.1 is in use: choose another with --port"):
        Board(folder, port=board.port)
    thread = threading.Thread(target=board.serve)
    thread.start()
    board.stop()
    thread.join(10)
    assert not thread.is_alive()
    with pytest.raises(InvalidInput, match="not an address of this machine"):
        listen("no.such.host.invalid", 0)


@pytest.fixture
def serving(folder: Path) -> Iterator[Board]:
    board = Board(folder, port=0)
    thread = threading.Thread(target=board.serve)
    thread.start()
    yield board
    board.stop()
    thread.join(10)


def said(opened: socket.socket) -> bytes:
    return b"".join(iter(lambda: opened.recv(4096), b""))


def request_of(board: Board, *lines: str) -> bytes:
    return "\r\n".join([*lines, f"Host: 127.0.0.1:{board.port}", "", ""]).encode()


@pytest.mark.parametrize("header", [f"Content-Length: {_LARGEST_BODY + 1}", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_large_or_has_no_length_is_not_read(serving: Board, header: str) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as opened:
        opened.sendall(request_of(serving, "POST /_dash-update-component HTTP/1.1", header))
        assert said(opened).startswith(b"HTTP/1.1 413 ")


def test_connections_are_limited_and_room_is_made_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 3)
    board = Board(folder, port=0)
    thread = threading.Thread(target=board.serve)
    thread.start()
    before = threading.active_count()
    waiting = [socket.create_connection(("127.0.0.1", board.port), timeout=10) for _ in range(3)]
    try:
        with socket.create_connection(("127.0.0.1", board.port), timeout=10) as late:
            assert said(late).startswith(b"HTTP/1.1 503 ")
        assert threading.active_count() <= before + 3
        for one in waiting:
            one.sendall(request_of(board, "GET /_favicon.ico HTTP/1.1"))
            assert said(one).startswith(b"HTTP/1.1 ")
        for _ in range(100):  # a thread ends a moment after its last byte
            with socket.create_connection(("127.0.0.1", board.port), timeout=10) as again:
                again.sendall(request_of(board, "GET / HTTP/1.1"))
                if said(again).startswith(b"HTTP/1.1 200 "):
                    break
            time.sleep(0.05)
        else:
            pytest.fail("no room was made")
    finally:
        for one in waiting:
            one.close()
        board.stop()
        thread.join(10)


def test_who_says_nothing_is_not_waited_for_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server._Quiet, "timeout", 0.2)
    board = Board(folder, port=0)
    thread = threading.Thread(target=board.serve)
    thread.start()
    with socket.create_connection(("127.0.0.1", board.port), timeout=10) as silent:
        silent.sendall(b"GET / HT")
        assert said(silent) == b""
    board.stop()
    thread.join(10)


def test_what_a_request_or_the_store_holds_sends_no_codes_to_the_log(
    capfd: pytest.CaptureFixture[str], serving: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("run \x1b]0;owned\x07 \u202e")

    monkeypatch.setattr(server, "set_props", lambda *_: None)
    serving.app.server.view_functions = dict.fromkeys(serving.app.server.view_functions, broken)
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as opened:
        opened.sendall(request_of(serving, "GET /%1b%5b2J HTTP/1.1"))
        assert said(opened).startswith(b"HTTP/1.1 500 ")
    with socket.create_connection(("127.0.0.1", serving.port), timeout=10) as opened:
        opened.sendall(b"\x1b[2J\r\n\r\n")
        said(opened)
    server._failed(RuntimeError("\x1b[2J"))
    told = capfd.readouterr().err
    assert r"\x1b]0;owned" in told
    assert not set(told) & {"\x1b", "\x07", "\u202e"}


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedstale", "board", *arguments])
    monkeypatch.delenv("FEDSTALE_STORE", raising=False)
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_errors_of_the_command_are_one_line(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "store.sqlite").write_text("this is no database\n" * 100)
    (tmp_path / "text.txt").write_text("no store")
    monkeypatch.chdir(tmp_path)
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([], "there is no store at"),
            ([str(tmp_path / "none")], "there is no store at"),
            ([str(tmp_path / "wrong")], "damaged or no store"),
            ([str(tmp_path / "text.txt")], "is a file: give the folder"),
            ([str(folder), "--port", port], f"port {port} of 127.0.0.1 is in use"),
            ([str(folder), "--port", "0", "--host", "no.such.host.invalid"], "not an address of this machine"),
        ):
            assert command(monkeypatch, *arguments) == 2
            said = capsys.readouterr()
            assert said.out == ""
            (only,) = said.err.splitlines()
            assert words in only


def test_without_the_extra_the_command_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "fedstale.board" or name.startswith("fedstale.board.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash", None)
    assert command(monkeypatch, str(folder)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fedstale: dash is not installed: pip install 'dash>=")


@pytest.mark.parametrize(
    ("host", "outside"),
    [("127.0.0.1", False), ("127.1.2.3", False), ("::1", False), ("localhost", False), ("0.0.0.0", True), ("::", True),
     ("10.0.0.7", True), ("board.lan", True)],
)  # fmt: skip
def test_who_listens_to_others_is_warned(
    host: str, outside: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Still:
        def __init__(self, store: Path, host: str, port: int) -> None:
            self.source, self.url = SimpleNamespace(folder=store), f"http://{host}:{port}/"

        def serve(self) -> None:
            """End at once."""

    monkeypatch.setattr("fedstale.board.Board", Still)
    assert command(monkeypatch, str(folder), "--host", host) == 0
    said = capsys.readouterr()
    assert "(press Ctrl-C to stop)" in said.out
    assert said.err.count("\n") == int(outside)
    assert ("anyone who can reach" in said.err) == outside


def test_the_command_serves_until_ctrl_c(folder: Path) -> None:
    started = [sys.executable, "-m", "fedstale", "board", str(folder), "--port", "0"]
    with subprocess.Popen(
        started,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell lets its background jobs ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
        assert found is not None, said
        with socket.create_connection(("127.0.0.1", int(found[1])), 10) as link:
            link.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{found[1]}\r\nConnection: close\r\n\r\n".encode())
            assert link.recv(100).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")
