"""The sweep on a real Ray cluster, in a network namespace with nothing but loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedstale.store import Store
from fedstale.sweeps import from_file, results, sweep, write_csv

pytest.importorskip("ray")
NAMESPACE = ["unshare", "-n", "bash", "-c", 'ip link set lo up; exec "$@"', "ns"]

GRID = 'name = "ray"\n[settings]\nrounds = 6\n[grid]\np_min = [0.5, 0.3]\nbeta = [0.0, "auto"]\nseed = [0, 1]\n'


def permitted() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not permitted(), reason="unshare -n is not permitted here: Ray would ask beyond loopback")
def test_the_same_on_ray(tmp_path: Path) -> None:
    file = tmp_path / "ray.toml"
    file.write_text(GRID)
    (tmp_path / "ray_bootstrap_config.yaml").write_text("cluster_name: local\nprovider: {type: local}\n")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": "/tmp",  # sockets must have short names
        "FEDSTALE_DATA": os.environ.get("FEDSTALE_DATA", ""),
    }
    if not environment["FEDSTALE_DATA"]:
        del environment["FEDSTALE_DATA"]
    command = [sys.executable, "-m", "fedstale", "sweep", str(file), "--ray", "local", "-q"]
    out = ["--store", str(tmp_path / "ray"), "--out", str(tmp_path / "ray.csv")]
    done = subprocess.run([*NAMESPACE, *command, *out], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "8 runs: 0 already in the store, 8 run now" in done.stdout
    runs = from_file(file).runs()
    with Store.open(tmp_path / "here") as store:
        sweep(runs, store, name="ray")
        write_csv(tmp_path / "here.csv", results(store, runs))
    assert (tmp_path / "ray.csv").read_text() == (tmp_path / "here.csv").read_text()
