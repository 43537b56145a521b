"""Files and numbers that nobody means, or that are made to do harm: one line, exit code 2, soon, in little memory."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedstale as fs
from fedstale.checks import MOST_CLIENTS
from fedstale.durable import is_locked
from fedstale.participation import Trace
from fedstale.simulation import build, make_settings
from fedstale.simulation.settings import Settings
from fedstale.simulation.settings_file import from_toml
from fedstale.sweeps import Grid
from fedstale.tensor_file import read_tensors, write_tensors

from .fork_server import Done, ForkServer

MEMORY = 3 << 30


def one_line(error: fs.InvalidInput) -> None:
    assert "\n" not in str(error)


def refused(done: Done) -> str:
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.count("\n") == 1, done.stderr[-2000:]
    return done.stderr


# Settings

HUGE = ["1e26", "1" + "0" * 26, "9" * 4000, "1_000_000_000_000"]


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", ["rounds", "num_clients", "local_steps", "epochs", "batch_size", "seed", "threads"])
def test_a_setting_that_nobody_means(name: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"{name} = {value}\n")
    if name == "seed" and value == HUGE[-1]:
        assert from_toml(file).seed == 10**12
        return
    with pytest.raises(fs.InvalidInput, match=name) as error:
        from_toml(file)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "text",
    ["rounds = " + "9" * 5000, "a = " + "[" * 5000, "a = " + "{a=" * 5000, "rounds = 0x" + "f" * 5000],
    ids=["digits", "lists", "tables", "hex"],
)
def test_a_toml_file_that_python_cannot_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(fs.InvalidInput, match=r"run\.toml") as error:
        from_toml(tmp_path / "run.toml")
    assert "\n" not in str(error.value)


def test_the_command_line_says_it_in_one_line(tmp_path: Path, fork_server: ForkServer) -> None:
    fedstale = partial(fork_server.fedstale, memory=MEMORY)
    (tmp_path / "run.toml").write_text("rounds = 1e26\n")
    store = ["--store", str(tmp_path / "store")]
    assert "rounds = 1e+26" in refused(fedstale("run", str(tmp_path / "run.toml"), *store))
    assert "num_clients" in refused(fedstale("run", "quadratic", "--num-clients", "1000000000", *store))
    assert "num_clients" in refused(fedstale("run", "quadratic", "--num-clients", str(MOST_CLIENTS), *store))


def test_a_grid_without_an_end_is_not_begun() -> None:
    axes = {name: list(np.linspace(0.1, 0.9, 1000)) for name in ("p_min", "swap", "lr", "beta")}
    with pytest.raises(fs.InvalidInput, match="1,000,000,000,000 combinations"):
        Grid("much", {}, axes).runs()


ODD: list[Any] = [
    -1, 0, 1e26, 10**30, 1e-320, -0.0, 5e-324, float("nan"), float("inf"), True, None, "", "x" * 99, "\x1b[2J", "../..",
    [], [1], {}, {"": 1}, {"a": {"b": []}}, "nan", "1e400", b"", "disk:", "lowrank:0", "clustered:99999999999999", "x+",
]  # fmt: skip


@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_taken_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """Whatever stands there, what comes is a simulation or an error of ours."""
    for value in ODD:
        try:
            chosen = make_settings(**{"task": "quadratic", "num_clients": 3, "rounds": 2, name: value})
            if chosen.num_clients * chosen.total_rounds < 10**4:
                build(chosen, folder=tmp_path / str(random.random())).state.close()
        except fs.InvalidInput as error:
            one_line(error)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bernoulli", {"p": [[0.5], [0.5], [0.5]]}),
        ("cyclic", {"period": 10**30}),
        ("time-varying", {"rounds": [0], "values": [0.5], "horizon": 10**12}),
        ("trace", {"path": 5}),
        ("trace", {"path": None}),
    ],
)
def test_an_option_of_a_process_that_nobody_means(name: str, options: dict[str, Any]) -> None:
    chosen = {"task": "quadratic", "num_clients": 3, "rounds": 2, "participation_options": options}
    with pytest.raises(fs.InvalidInput) as error:
        build(make_settings(participation=name, **chosen))
    one_line(error.value)


def test_other_options_that_nobody_means() -> None:
    for options in ({"selection": "uniform", "selection_options": {"m": 10**30}}, {"seed": 2**63}):
        with pytest.raises(fs.InvalidInput) as error:
            fs.simulate("quadratic", num_clients=3, rounds=2, **options)
        one_line(error.value)


# Logs


@pytest.mark.parametrize(
    "text",
    [
        "# num_rounds=10 num_clients=1000000000000\n0,1\n",
        "# num_rounds=10 num_clients=" + "9" * 5000 + "\n0,1\n",
        "# num_rounds=" + "9" * 30 + " num_clients=3\n0,1\n",
        "0,1000000000000\n",
        "0," + "9" * 5000 + "\n",
        "9" * 5000 + ",1\n",
        "9223372036854775807,1\n",
        "0,1\n" + "x" * 10**6,
        "\x00\x00,\x00\n",
        "0,1\r0,2\x1b[2J\n",
    ],
)
def test_a_log_with_numbers_that_nobody_means(text: str, tmp_path: Path, fork_server: ForkServer) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(fs.InvalidInput) as error:
        Trace.from_csv(file)
    assert len(str(error.value)) < 600
    if "9" * 31 not in text:
        return
    assert "\x1b" not in refused(fork_server.fedstale("advise", file, memory=MEMORY))


def test_advice_for_more_clients_than_there_are(fork_server: ForkServer) -> None:
    fedstale = partial(fork_server.fedstale, memory=MEMORY)
    assert "10,000,000 clients" in refused(fedstale("advise", "--p", "1000000000000x0.5"))
    assert refused(fedstale("advise", "--p", "9" * 4000 + "x0.5,1"))
    done = fedstale("advise", "--p", "3x0.5,1")
    assert done.returncode == 0
    assert "N = 4" in done.stdout


# Checkpoints


def header(path: Path, about: dict[str, Any], size: int, declared: int | None = None) -> None:
    text = json.dumps(about).encode()
    with open(path, "wb") as file:
        file.write((len(text) if declared is None else declared).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: header(path, {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, 2**42),
        lambda path: header(path, {"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 0]}}, 0),
        lambda path: header(path, {"a": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}, 0),
        lambda path: header(path, {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}, 4),
        lambda path: header(path, {"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, 2),
        lambda path: header(path, {}, 0, 2**64 - 1),
        lambda path: header(path, {"__metadata__": {"about": "[" * 10**5, "checksums": "[" * 10**5}}, 0),
        lambda path: path.write_bytes(b""),
    ],
    ids=["4 TB", "overflow", "no rows", "bfloat16", "float8", "header", "deep", "empty"],
)
def test_a_checkpoint_too_large_or_odd_to_read(make: Callable[[Path], Any], tmp_path: Path) -> None:
    make(tmp_path / "state.safetensors")
    with pytest.raises(fs.InvalidInput, match="is damaged") as error:
        fs.State.load(tmp_path)
    assert "\n" not in str(error.value)


def checkpoint(folder: Path, memory: str = "ram") -> fs.State:
    rule = fs.FedStale()
    state = rule.init(fs.Federation(3, 4), memory=memory, model=np.ones(4))
    rule.step(state, fs.Round(0, [1], np.ones((1, 4)), probabilities=0.5))
    state.save(folder)
    return state


def test_a_checkpoint_with_sound_checksums_and_no_sense(tmp_path: Path) -> None:
    """Every fact and every array in turn is replaced by something else: an error of ours, or a state."""
    checkpoint(tmp_path).close()
    file = tmp_path / "state.safetensors"
    tensors, about = read_tensors(file)
    odd: list[Any] = [None, -1, 10**30, 1e300, "x", "\x1b", [], {}, {"x": 1}, [[]], "../../..", True]
    arrays = [np.zeros(0), np.zeros((2, 2)), np.array(5), np.full(3, -7), np.full(4, np.nan), np.array([2**62] * 3)]
    for key in about:
        for value in odd:
            write_tensors(file, tensors, {**about, key: value})
            _loads_or_not(tmp_path)
        write_tensors(file, tensors, {name: value for name, value in about.items() if name != key})
        _loads_or_not(tmp_path)
    for key in tensors:
        for array in arrays:
            write_tensors(file, {**tensors, key: array}, about)
            _loads_or_not(tmp_path)
        write_tensors(file, {name: value for name, value in tensors.items() if name != key}, about)
        _loads_or_not(tmp_path)


def _loads_or_not(folder: Path) -> None:
    try:
        fs.State.load(folder).close()
    except fs.InvalidInput as error:
        one_line(error)


# Pipes in place of files


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_row_file_or_a_lock_is_not_waited_for(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "checkpoint", f"disk:{tmp_path / 'rows'}")
    state.close()
    for file in tmp_path.rglob("*.rows"):
        file.unlink()
        os.mkfifo(file)
    with pytest.raises(fs.InvalidInput, match="pipe"):
        fs.State.load(tmp_path / "checkpoint")
    os.mkfifo(tmp_path / "lock")
    assert is_locked(tmp_path / "lock")


# Files that may not grow


@pytest.mark.parametrize("limit", [0, 4096, 65536])
def test_a_limit_on_the_size_of_files_is_one_line(limit: int, tmp_path: Path) -> None:
    """`ulimit -f`: the system's word is EFBIG, not ENOSPC."""
    words = ["run", "quadratic", "--num-clients", "40", "--rounds", "300", "--quiet", "--memory", "disk"]
    words += ["--per-client", "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, "-m", "fedstale", *words],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    refused(done)
