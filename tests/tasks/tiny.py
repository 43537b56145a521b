"""A data set of nine pictures, a site on this machine that serves it, and stand-ins for package managers."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from fedstale.tasks.sources import DATA_SETS, IDX_NAMES, Client, Content, DataSet, DownloadSource

from .test_idx import idx_bytes

RNG = np.random.default_rng(0)
TINY = dict(
    zip(
        IDX_NAMES,
        [
            idx_bytes(RNG.integers(0, 256, (6, 2, 2), dtype=np.uint8)),
            idx_bytes(np.arange(6, dtype=np.uint8)),
            idx_bytes(RNG.integers(0, 256, (3, 2, 2), dtype=np.uint8)),
            idx_bytes(np.array([2, 1, 0], dtype=np.uint8)),
        ],
        strict=True,
    )
)
FILES = tuple(Content(name, len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in TINY.items())


class Site(http.server.BaseHTTPRequestHandler):
    """Serves TINY gzipped under /good/, reversed under /bad/, nothing else."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        _, folder, name = self.path.split("/")
        raw = TINY[name.removesuffix(".gz")]
        if folder not in ("good", "bad"):
            self.send_error(404)
            return
        body = gzip.compress(raw if folder == "good" else raw[::-1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def official(base: str) -> DownloadSource:
    urls = tuple(f"{base}/{name}.gz" for name in IDX_NAMES)
    return DownloadSource("url", urls, 500, dict(zip(urls, IDX_NAMES, strict=True)), "gzip")


def package(client: Client = "npm", name: str = "tiny@1.0.0") -> DownloadSource:
    return DownloadSource(client, (name,), 500, {f"package/{name}": name for name in IDX_NAMES})


def register(monkeypatch: pytest.MonkeyPatch, *sources: DownloadSource) -> None:
    entry = DataSet("tiny", "a data set of nine pictures", (1, 2, 2), 6, 3, FILES, sources)
    monkeypatch.setitem(DATA_SETS, "tiny", entry)


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, script: str) -> None:
    """Put an executable of that name first (and alone with the shell's tools) on PATH."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    path = programs / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")


def tiny_tarball(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in TINY.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(raw)
            archive.addfile(info, BytesIO(raw))
    return path
