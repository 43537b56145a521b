"""Sweeps and the benchmark on a real Ray cluster, in a network namespace with nothing but loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.bench import read, rerun
from fedstale.bench.verify import difference
from fedstale.store import Store
from fedstale.sweeps import from_file, results, sweep, write_csv

pytest.importorskip("ray")
NAMESPACE = ["unshare", "-n", "bash", "-c", 'ip link set lo up; exec "$@"', "ns"]

GRID = 'name = "ray"\n[settings]\nrounds = 6\n[grid]\np_min = [0.5, 0.3]\nbeta = [0.0, "auto"]\nseed = [0, 1]\n'


def permitted() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


ray = pytest.mark.skipif(not permitted(), reason="unshare -n is not permitted here: Ray would ask beyond loopback")


def on_ray(folder: Path, *command: str) -> str:
    """Run a command of fedstale with a cluster of its own; return what it says."""
    (folder / "ray_bootstrap_config.yaml").write_text("cluster_name: local\nprovider: {type: local}\n")
    environment = {
        **os.environ,
        "HOME": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",  # sockets must have short names
        "FEDSTALE_DATA": os.environ.get("FEDSTALE_DATA", ""),
    }
    if not environment["FEDSTALE_DATA"]:
        del environment["FEDSTALE_DATA"]
    whole = [*NAMESPACE, sys.executable, "-m", "fedstale", *command, "--ray", "local", "-q"]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=900, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@ray
def test_the_same_on_ray(tmp_path: Path) -> None:
    file = tmp_path / "ray.toml"
    file.write_text(GRID)
    said = on_ray(tmp_path, "sweep", str(file), "--store", str(tmp_path / "ray"), "--out", str(tmp_path / "ray.csv"))
    assert "8 runs: 0 already in the store, 8 run now" in said
    runs = from_file(file).runs()
    with Store.open(tmp_path / "here") as store:
        sweep(runs, store, name="ray")
        write_csv(tmp_path / "here.csv", results(store, runs))
    assert (tmp_path / "ray.csv").read_text() == (tmp_path / "here.csv").read_text()


@pytest.mark.slow
@ray
def test_the_benchmark_on_ray(tmp_path: Path) -> None:
    """What it writes is what `bench verify` finds here, bit for bit."""
    asked = ("--quick", "--settings", "digits/bursts", "--rules", "tempered")
    said = on_ray(tmp_path, "bench", "run", *asked, "--store", "ray", "--out", "ray.csv")
    assert "1 setting in" in said
    lines = {line.rule: line for line in read([tmp_path / "ray.csv"])}
    assert {"tempered", "u-fedavg"} <= lines.keys()
    for rule in ("tempered", "u-fedavg"):
        assert difference(lines[rule]) is None
        assert all(check.holds for check in rerun(lines[rule], 1))
