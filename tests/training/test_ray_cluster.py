"""One run on a real Ray cluster, in a network namespace with nothing but loopback: equal, and not to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedstale as fs
from fedstale.store import Store
from tests.sweeps.test_ray import permitted

pytest.importorskip("ray")
NAMESPACE = ["unshare", "-n", "--pid", "--fork", "--kill-child", "--mount-proc"]
LOOPBACK = ["bash", "-c", 'ip link set lo up; exec "$@"', "ns"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not permitted(), reason="unshare -n is not permitted here: Ray would ask beyond loopback"),
]
USUAL = {"rule": "fedstale", "beta": 0.5, "p_min": 0.5, "rounds": 6, "batch_size": 8, "memory": "ram"}

KILLED = """
import sys
import numpy as np
import fedstale as fs
from fedstale.training import ray_engine

replaced, taken, rounds = [], [], []
collect, replace = ray_engine.RayEngine._collect, ray_engine.RayEngine._replace

def killing(self, queues, work, message):
    rounds.append([])
    for piece, trained in collect(self, queues, work, message):
        rounds[-1] += piece
        if len(rounds) == 3 and not taken:
            taken.append(len(piece))  # one piece of the round has come, more of this worker's are to come
            self._ray.kill(self._actors[0])  # as the system would when memory runs out: the round goes on
        yield piece, trained

def noted(self, worker, error):
    replaced.append(worker)
    replace(self, worker, error)

def made(self, *arguments):
    make(self, *arguments)
    self._pieces = 4

make, ray_engine.RayEngine.__init__ = ray_engine.RayEngine.__init__, made
ray_engine.RayEngine._collect, ray_engine.RayEngine._replace = killing, noted
run = fs.simulate("digits-mlp", engine="ray", workers=2, progress=False, **OPTIONS)
assert replaced == [0], replaced
for got, clients in zip(rounds, run.participants, strict=True):  # an update of each participant, and one only
    assert sorted(got) == list(range(len(clients))), got
np.save(sys.argv[1], run.model)
"""


def environment(home: Path) -> dict[str, str]:
    (home / "ray_bootstrap_config.yaml").write_text("cluster_name: local\nprovider: {type: local}\n")
    ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp", "RAY_raylet_start_wait_time_s": "300"}
    return {**os.environ, "HOME": str(home), **ray}


def test_an_actor_killed_in_the_middle_of_a_round(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED.replace("OPTIONS", repr(USUAL)))
    command = [*NAMESPACE, *LOOPBACK, sys.executable, str(script), str(tmp_path / "model.npy")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    alone = fs.simulate("digits-mlp", engine="vmap", progress=False, **USUAL)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.load(tmp_path / "model.npy"), alone.model, rtol=1e-5, atol=1e-6)


def test_a_killed_driver_is_resumed(tmp_path: Path) -> None:
    options = ["--rule", "fedstale", "--beta", "0.5", "--p-min", "0.5", "--rounds", "400", "--batch-size", "8"]
    run = [*LOOPBACK, sys.executable, "-m", "fedstale"]
    run += ["run", "digits-mlp", "--engine", "ray", "--workers", "2", *options]
    store = ["--store", str(tmp_path / "runs"), "--checkpoint-every", "5", "-q"]
    first = subprocess.Popen([*NAMESPACE, *run, *store], env=environment(tmp_path), start_new_session=True)
    try:
        until = time.monotonic() + 600
        while time.monotonic() < until and not list(tmp_path.glob("runs/**/checkpoint/state.safetensors")):
            assert first.poll() is None
            time.sleep(0.2)
    finally:
        os.killpg(first.pid, signal.SIGKILL)  # the namespace of processes ends with it
        first.wait()
    second = subprocess.run(
        [*NAMESPACE, *run, *store, "--resume"], env=environment(tmp_path), capture_output=True, text=True, timeout=900
    )
    assert second.returncode == 0, second.stderr
    with Store.open(tmp_path / "runs") as opened:
        (info,) = opened.runs()
        assert info.ended
        assert info.status == "finished"
        recorded = opened.run(info.id).metrics()["round"]
        found = opened.run(info.id).columns(["accuracy"])[1]["accuracy"]
        state = fs.State.load(opened.run(info.id).checkpoint)
    assert recorded.tolist() == list(range(400))  # every round once
    alone = fs.simulate(
        "digits-mlp", "fedstale", beta=0.5, p_min=0.5, rounds=400, batch_size=8, engine="vmap", progress=False
    )
    measured = alone.metrics["accuracy"][~np.isnan(alone.metrics["accuracy"])]
    assert len(found.values) == len(measured)
    np.testing.assert_allclose(found.values, measured, atol=0.02)
    assert state.round == 400
    assert state.model is not None
    apart = np.linalg.norm(state.model - alone.model) / np.linalg.norm(alone.model)
    assert apart < 1e-4  # the rounding of other groups of clients, after 400 rounds (7e-7 was seen)


JOINED = """
import sys
import numpy as np
import ray
import fedstale as fs

where = sys.argv[2]
run = fs.simulate("digits-mlp", engine="ray", workers=2, ray_address=where, progress=False, **OPTIONS)
joined = len([node for node in ray.nodes() if node["Alive"]]), ray.cluster_resources().get("ours", 0)
assert joined == (1, 7.0 if where == "auto" else 0), joined  # without an address nobody else's cluster is joined
np.save(sys.argv[1], run.model)
"""


def test_a_cluster_that_runs_already_is_joined_if_asked_for(tmp_path: Path) -> None:
    script = tmp_path / "joined.py"
    script.write_text(JOINED.replace("OPTIONS", repr(USUAL)))
    ray = f"{Path(sys.executable).parent}/ray"
    start = (
        f"{ray} start --head --num-cpus 2 --resources '{{\"ours\": 7}}' --include-dashboard=false --disable-usage-stats"
    )
    runs = [f"{sys.executable} {script} {tmp_path}/{where}.npy {where}" for where in ("auto", "local")]
    command = f"ip link set lo up && {start} && {' && '.join(runs)}; code=$?; {ray} stop --force; exit $code"
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", command], env=environment(tmp_path), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    alone = fs.simulate("digits-mlp", engine="vmap", progress=False, **USUAL)  # type: ignore[arg-type]
    for where in ("auto", "local"):
        np.testing.assert_allclose(np.load(tmp_path / f"{where}.npy"), alone.model, rtol=1e-5, atol=1e-6)
