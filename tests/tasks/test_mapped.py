"""Samples in memory-mapped files: what was written comes back, nothing is half written, and names travel, not data."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedstale import training
from fedstale.checks import InvalidInput
from fedstale.tasks import Task, open_clients, write_clients

SIZES = (5, 1, 8, 3)


def clients() -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    for size in SIZES:
        yield rng.normal(size=(size, 2, 3)), rng.integers(3, size=size)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    found = write_clients(tmp_path / "train", clients())
    assert found.sizes.tolist() == list(SIZES)
    for i, (x, y) in enumerate(clients()):
        own_x, own_y = found.client(i)
        assert isinstance(own_x, torch.Tensor)
        assert isinstance(own_y, torch.Tensor)
        np.testing.assert_array_equal(own_x.numpy(), x.astype(np.float32))
        np.testing.assert_array_equal(own_y.numpy(), y)
    assert found.fingerprint() == open_clients(tmp_path / "train").fingerprint()


def test_several_inputs_by_name(tmp_path: Path) -> None:
    def made() -> Iterator[dict[str, Any]]:
        for n in (3, 2):
            yield {"ids": np.arange(2 * n).reshape(n, 2), "mask": np.ones((n, 2), dtype=bool), "label": np.arange(n)}

    found = write_clients(tmp_path, made())
    x = open_clients(tmp_path).x
    assert isinstance(x, dict)
    assert sorted(x) == ["ids", "mask"]
    assert x["mask"].dtype == torch.bool
    assert found.num_samples == 5


def test_it_travels_as_a_name(tmp_path: Path) -> None:
    found = write_clients(tmp_path, ((np.ones((4000, 50)), np.zeros(4000, dtype=int)) for _ in range(3)))
    sent = pickle.dumps(found)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent).offsets, found.offsets)


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    def other() -> Iterator[tuple[Any, Any]]:
        yield np.ones((2, 3)), np.zeros(2, dtype=int)
        yield np.ones((2, 4)), np.zeros(2, dtype=int)

    with pytest.raises(InvalidInput, match=r"clients\[1\].*must be of float32 and shape \(3,\)"):
        write_clients(tmp_path, other())
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidInput, match="at least one client"):
        write_clients(tmp_path, [])
    with pytest.raises(InvalidInput, match="does not hold clients' samples"):
        open_clients(tmp_path / "nowhere")
    write_clients(tmp_path, clients())
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-20])
    with pytest.raises(InvalidInput, match="does not hold clients' samples"):
        open_clients(tmp_path)


def test_training_is_that_of_data_in_memory(tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

    mapped = write_clients(tmp_path, clients())
    there = Task("there", mapped, mapped, model, functional.cross_entropy, 3, np.zeros(len(SIZES), dtype=np.int64))
    here = Task.from_datasets(model, functional.cross_entropy, list(clients()), list(clients()))
    local = training.LocalTraining(lr=0.1, steps=3, batch_size=4)
    engines = [training.make(task, local, engine="loop", threads=1) for task in (there, here)]
    first, second = (engine.updates(engine.initial, range(len(SIZES)), 0) for engine in engines)
    np.testing.assert_array_equal(first, second)


def test_images_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions like channels last: of data in files each batch is rearranged, instead of all of them in memory."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(9, 3, 6, 6)), rng.integers(2, size=9)) for _ in range(3)]

    class Convolutions(nn.Module):  # not a plain sequence: not run in blocks
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(64, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.last(functional.relu(self.first(x)).flatten(1))
            return found

    found = []
    here = Task.from_datasets(Convolutions, functional.cross_entropy, data, data).train
    for split in (here, write_clients(tmp_path, data)):
        task = Task("images", split, split, Convolutions, functional.cross_entropy, 2, np.zeros(3, dtype=np.int64))
        engine = training.make(task, training.LocalTraining(lr=0.1, steps=3, batch_size=4), engine="loop")
        samples: Any = engine.setup.train
        assert samples.channels_last
        found.append(np.array(engine.updates(engine.initial, [0, 2], 0)))
        assert samples.inputs(torch.arange(4)).is_contiguous(memory_format=torch.channels_last)
    x: Any = split.x
    assert samples._x.data_ptr() == x.data_ptr()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of a process's own memory")
def test_data_larger_than_what_the_process_takes(tmp_path: Path) -> None:
    """160 MB in files, trained and evaluated: of its own, without pages of files, the process takes far less."""
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np, sys, threading, time\n"
        "from torch import nn\n"
        "from torch.nn import functional\n"
        "import fedstale as fs\n"
        "from fedstale import tasks\n"
        "def own():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('RssAnon:'))\n"
        "def client(k):\n"
        "    rng = np.random.default_rng(k)\n"
        "    return rng.standard_normal((250, 4096), dtype=np.float32), rng.integers(2, size=250)\n"
        "data = tasks.write_clients(sys.argv[1], (client(k) for k in range(40)))\n"
        "model, groups = (lambda: nn.Linear(4096, 2)), np.arange(40) % 2\n"
        "task = tasks.Task('large', data, data, model, functional.cross_entropy, 2, groups)\n"
        "options = dict(p_min=0.5, lr=0.01, batch_size=16, progress=False)\n"
        "fs.simulate(task, rounds=1, **options)\n"
        "before, most = own(), [0]\n"
        "def watch():\n"
        "    while True:\n"
        "        most[0] = max(most[0], own())\n"
        "        time.sleep(0.01)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "fs.simulate(task, rounds=4, **options)\n"
        "print(most[0] - before, sum(x.nbytes for x in (data.x, data.y)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    taken, size = map(int, done.stdout.split())
    assert size > 160e6
    assert taken < size / 4, f"{taken / 1e6:.0f} MB of its own for {size / 1e6:.0f} MB"
