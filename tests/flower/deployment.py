"""Real Flower processes for the slow tests; runs as a program inside a namespace of its own.

`python -m tests.flower.deployment SCENARIO FOLDER` writes FOLDER/report.json. `inside` starts it in a network
namespace that has nothing but loopback and in a process namespace, so that nothing leaves the machine and
nothing outlives the scenario.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
LOOPBACK = ["bash", "-c", 'ip link set lo up; exec "$@"', "ns"]
PORT = 8000
TIMEOUT, LONGER = 45, 60
"""Seconds of a round, and of the training of a device that is too slow for it."""
PATIENCE = 900.0  # seconds for anything: a round takes 10 s on an idle machine, and many times that on a busy one


def possible() -> bool:
    """Whether this machine lets us make namespaces."""
    try:
        return subprocess.run([*NAMESPACE, *LOOPBACK, "true"], capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def inside(scenario: str, folder: Path, timeout: float) -> dict[str, Any]:
    """Run a scenario in its namespaces and return its report; a scenario of its own file is named by its module."""
    words = [scenario] if "." in scenario else ["tests.flower.deployment", scenario]
    command = [*NAMESPACE, *LOOPBACK, sys.executable, "-m", *words, str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "scenario.log", "w") as log:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        options: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, **quiet}, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, stdout=log, stderr=log, timeout=timeout, **options)
    if done.returncode:
        logs = "\n".join(f"--- {file.name}\n{file.read_text()[-3000:]}" for file in sorted(folder.glob("*.log")))
        raise AssertionError(f"scenario {scenario} failed:\n{logs}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def wait(what: str, condition: Callable[[], Any], timeout: float, every: float = 0.5) -> Any:
    """Wait until the condition holds, and return its value."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if value := condition():
            print(f"{time.strftime('%X')} {what}", flush=True)
            return value
        time.sleep(every)
    raise TimeoutError(f"{what}: not within {timeout} s")


class Machine:
    """The processes of one scenario and their files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = folder / "digits"
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        bootstrap = folder / "home" / "ray_bootstrap_config.yaml"
        bootstrap.parent.mkdir(parents=True)
        bootstrap.write_text("cluster_name: local\nprovider: {type: local}\n")
        subprocess.run([BIN / "python", "-c", _NEW, str(self.app)], check=True)

    def environment(self, name: str) -> dict[str, str]:
        """Every process has a Flower home of its own, and none calls home."""
        return {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "FLWR_HOME": str(self.folder / f"flwr-{name}"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
        }

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process that stays."""
        log = open(self.folder / f"{name}.log", "ab")  # noqa: SIM115 - the process keeps it
        process = subprocess.Popen(
            [BIN / command[0], *command[1:]],
            env=self.environment(name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self.started[name] = process
        return process

    def flwr(self, *command: str) -> dict[str, Any]:
        """Run a flwr command; what it prints as JSON."""
        done = subprocess.run(
            [BIN / "flwr", *command, "--format", "json"],
            env=self.environment("cli"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.app,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            raise RuntimeError(f"flwr {command}: {done.stdout}{done.stderr}") from None
        if not found.get("success", True):
            raise RuntimeError(f"flwr {command}: {found}")
        return found

    def patiently(self, *command: str) -> dict[str, Any]:
        """Ask again where a SuperLink on a busy machine does not answer in Flower's time."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.flwr(*command)
            except RuntimeError as error:
                if "unavailable" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(5.0)

    def superlink(self, *options: str) -> None:
        """Start the SuperLink and tell the CLI where it is."""
        home = self.folder / "flwr-cli"
        home.mkdir(exist_ok=True)
        trust = f'root-certificates = "{self.folder}/ca.crt"' if options else "insecure = true"
        link = f'[superlink]\ndefault = "dep"\n[superlink.dep]\naddress = "127.0.0.1:{PORT}"\n{trust}\n'
        (home / "config.toml").write_text(link)
        where = ["--host", "127.0.0.1", "--port", str(PORT)]
        self.start("superlink", "flower-superlink", *where, *(options or ["--insecure"]))
        wait("the SuperLink answers", self._answers, PATIENCE)

    def _answers(self) -> bool:
        try:
            self.flwr("list", "dep")
        except RuntimeError:
            return False
        return True

    def supernode(self, number: int, *options: str, of: int = 3) -> subprocess.Popen[bytes]:
        """Start a device."""
        return self.start(
            f"node{number}",
            "flower-supernode",
            *(options or ["--insecure"]),
            "--superlink",
            f"127.0.0.1:{PORT}",
            "--host",
            "127.0.0.1",
            "--port",
            str(9100 + number),
            "--node-config",
            f"partition-id={number} num-partitions={of}",
        )

    def run(self, output: str, link: str = "dep", federation: str = "", **config: Any) -> str:
        """Submit the app; return the run's id."""
        values = {"output": str(self.folder / output), "min_nodes": 3, **config}
        text = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in values.items())
        more = ["--federation-config", federation] if federation else []
        found = self.flwr("run", ".", link, "-c", text, *more)
        return str(found["run-id"])

    def status(self, run: str, link: str = "dep") -> str:
        """How a run stands, such as "finished:completed"."""
        found = self.patiently("list", link, "--run-id", run)
        return str(found["runs"][0]["status"])

    def log(self, run: str) -> str:
        """What the ServerApp of a run has logged."""
        command: list[str | Path] = [BIN / "flwr", "log", run, "dep", "--show"]
        done = subprocess.run(
            command, env=self.environment("cli"), stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=self.app
        )
        return str(done.stdout + done.stderr)

    def finish(self, run: str, output: str, link: str = "dep") -> str:
        """Wait for the end of a run; its model tells sooner than Flower's command line, which is slow to ask."""
        asked = time.monotonic()

        def over() -> str:
            nonlocal asked
            if not (self.folder / output / "model.safetensors").exists() and time.monotonic() < asked + 30:
                return ""
            asked = time.monotonic()
            status = self.status(run, link)
            return status if status.startswith("finished") else ""

        return str(wait(f"run {run} ended", over, PATIENCE, every=1.0))

    def rounds(self, output: str) -> int:
        """How many rounds the checkpoint of a run has."""
        file = self.folder / output / "checkpoint" / "state.safetensors"
        return self.about(output)["round"] if file.exists() else 0

    def about(self, output: str) -> dict[str, Any]:
        """What a checkpoint says: round, identities, and the last round of each client."""
        from fedstale.tensor_file import read_tensors

        tensors, about = read_tensors(self.folder / output / "checkpoint" / "state.safetensors")
        facts = json.loads(about["notes"]["flower"])
        known = len(facts["identities"])  # one more row stands for all who are not known
        return {
            "round": about["round"],
            "identities": facts["identities"],
            "last_seen": tensors["last_seen"].tolist()[:known],
            "model": tensors["model"].tobytes().hex(),
        }

    def story(self, output: str) -> dict[str, Any]:
        """What the fedstale store has of a run: accuracy and participants by round."""
        from fedstale.store import Store

        with Store.open(self.folder / output / "runs", read_only=True) as store:
            run = store.run(store.runs()[0].id)
            metrics = run.metrics()
            return {
                "stored": run.info().status,
                "rounds": metrics["round"].tolist(),
                "accuracy": metrics["accuracy"].tolist(),
                "participants": {str(t): np.asarray(who).tolist() for t, who in run.participants().items()},
                **{name: metrics[name].tolist() for name in _COUNTED if name in metrics},
            }

    def rewrite(self, file: str, *changes: tuple[str, str]) -> None:
        """Change lines of the app; a line that is not there is an error."""
        path = self.app / "digits" / f"{file}.py"
        text = path.read_text()
        for old, new in changes:
            if old not in text:
                raise ValueError(f"{file}.py does not hold {old!r}")
            text = text.replace(old, new)
        path.write_text(text)


_COUNTED = ("late", "memory_lost", "upload_vectors")
_NEW = "import sys; from fedstale.flower.new_app import write_app; write_app(sys.argv[1])"


def server_processes() -> list[int]:
    """The ServerApp processes in this namespace."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.endswith(b"flwr-serverapp") for word in words):
                found.append(int(entry.name))
    return found


def insecure(machine: Machine) -> dict[str, Any]:
    """Three devices, three runs: uninterrupted; server killed and resumed; device killed and restarted."""
    machine.superlink()
    for number in range(3):
        machine.supernode(number)
    first = machine.finish(machine.run("whole", num_server_rounds=5), "whole")
    report: dict[str, Any] = {"whole": {"status": first, **machine.about("whole"), **machine.story("whole")}}

    machine.run("killed", num_server_rounds=5)
    wait("two rounds are saved", lambda: machine.rounds("killed") >= 2, PATIENCE)
    for pid in server_processes():
        os.kill(pid, signal.SIGKILL)
    report["killed_after"] = machine.rounds("killed")
    second = machine.finish(machine.run("killed", num_server_rounds=5), "killed")
    report["killed"] = {"status": second, **machine.about("killed"), **machine.story("killed")}

    run = machine.run("device", num_server_rounds=6, min_nodes=2)
    wait("the device has answered twice", lambda: machine.rounds("device") >= 2, PATIENCE)
    before = machine.about("device")
    machine.started["node2"].kill()
    machine.started["node2"].wait()
    wait("a round without it is saved", lambda: machine.rounds("device") >= before["round"] + 1, PATIENCE)
    machine.supernode(2)
    third = machine.finish(run, "device")
    report["device"] = {"status": third, **machine.about("device"), **machine.story("device")}
    return report


def secure(machine: Machine) -> dict[str, Any]:
    """TLS and node authentication; clients told apart by their keys; a node without a registered key is kept out."""
    machine.app.joinpath("digits", "server_app.py").write_text(
        machine.app.joinpath("digits", "server_app.py")
        .read_text()
        .replace('identity="metric:client-id"', 'identity="key"')
    )
    certificates(machine.folder)
    folder = machine.folder
    keys = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    options = [str(folder / word) if not word.startswith("--") else word for word in keys]
    machine.superlink(*options, "--enable-supernode-auth", "--database", str(folder / "state.db"))
    trust = ["--root-certificates", str(folder / "ca.crt"), "--max-retries", "3"]
    for number in range(4):
        name = str(folder / f"key{number}")
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", name], check=True)
        if number < 3:
            machine.flwr("supernode", "register", f"{name}.pub", "dep", "--name", f"device {number}")
        machine.supernode(number, *trust, "--auth-supernode-private-key", name)
    stranger = machine.started["node3"].wait(timeout=PATIENCE)
    run = machine.run("secure", num_server_rounds=4)
    wait("a round is saved", lambda: machine.rounds("secure") >= 1, PATIENCE)
    before = machine.about("secure")
    machine.started["node2"].send_signal(signal.SIGINT)
    machine.started["node2"].wait(timeout=PATIENCE)
    machine.supernode(2, *trust, "--auth-supernode-private-key", str(folder / "key2"))
    status = machine.finish(run, "secure")
    return {
        "status": status,
        "stranger": stranger,
        "why": (folder / "node3.log").read_text(),
        "before": before,
        **machine.about("secure"),
        **machine.story("secure"),
    }


def keyless(machine: Machine) -> dict[str, Any]:
    """Devices without keys, one of which restarts: without a reported id a ghost, with one the same client."""
    client, server = (machine.app / "digits" / name for name in ("client_app.py", "server_app.py"))
    good_client, good_server = client.read_text(), server.read_text()
    machine.superlink()
    for number in range(3):
        machine.supernode(number)

    def restarting(output: str) -> dict[str, Any]:
        run = machine.run(output, num_server_rounds=6, min_nodes=2)
        wait("the device has answered", lambda: machine.rounds(output) >= 2, PATIENCE)
        before = machine.rounds(output)
        machine.started["node2"].kill()
        machine.started["node2"].wait()
        wait("a round without it is saved", lambda: machine.rounds(output) >= before + 1, PATIENCE)
        machine.supernode(2)
        return {"status": machine.finish(run, output), **machine.about(output)}

    client.write_text(good_client.replace(', "client-id": partition', ""))
    server.write_text(good_server.replace('identity="metric:client-id"', 'identity="auto"'))
    run = machine.run("refused", num_server_rounds=6)
    refused = machine.finish(run, "refused")
    why = machine.log(run)
    server.write_text(good_server.replace('identity="metric:client-id"', 'identity="node"'))
    ghosts = restarting("ghosts")
    client.write_text(good_client)
    server.write_text(good_server)
    return {"refused": refused, "why": why, "ghosts": ghosts, "known": restarting("known")}


def late(machine: Machine) -> dict[str, Any]:
    """One of three devices needs longer than a round lasts: its replies come in later rounds."""
    machine.rewrite(
        "client_app",
        ("from typing import cast\n", "import time\nfrom typing import cast\n"),
        ("server_round = cast", f"time.sleep({LONGER} if partition == 2 else 0.0)\n    server_round = cast"),
    )
    machine.rewrite("server_app", ("evaluate_fn=global_evaluate,", f"evaluate_fn=global_evaluate, timeout={TIMEOUT},"))
    machine.superlink()
    for number in range(3):
        machine.supernode(number)
    status = machine.finish(machine.run("late", num_server_rounds=5), "late")
    return {"status": status, **machine.about("late"), **machine.story("late")}


def held(machine: Machine) -> dict[str, Any]:
    """The same federation with rows at the server and at the clients; then a device restarts and has lost its own."""
    machine.superlink()
    for number in range(3):
        machine.supernode(number)
    first = machine.finish(machine.run("rows", num_server_rounds=4), "rows")
    report: dict[str, Any] = {"rows": {"status": first, **machine.about("rows"), **machine.story("rows")}}
    machine.rewrite(
        "client_app",
        ("app = ClientApp()", "from fedstale.flower import memory_mod\n\napp = ClientApp(mods=[memory_mod])"),
    )
    machine.rewrite("server_app", ('identity="metric:client-id"', 'memory="clients", identity="metric:partition-id"'))
    second = machine.finish(machine.run("held", num_server_rounds=4), "held")
    report["held"] = {"status": second, **machine.about("held"), **machine.story("held")}
    run = machine.run("lost", num_server_rounds=6, min_nodes=2)
    wait("the device has answered twice", lambda: machine.rounds("lost") >= 2, PATIENCE)
    before = machine.rounds("lost")
    machine.started["node2"].kill()
    machine.started["node2"].wait()
    wait("a round without it is saved", lambda: machine.rounds("lost") >= before + 1, PATIENCE)
    machine.supernode(2)
    third = machine.finish(run, "lost")
    report["lost"] = {"status": third, **machine.about("lost"), **machine.story("lost")}
    return report


def certificates(folder: Path) -> None:
    """A certificate authority of our own and a certificate for loopback."""
    commands = [
        "openssl ecparam -name prime256v1 -genkey -noout -out ca.key",
        "openssl req -x509 -new -key ca.key -days 2 -subj /CN=test-ca -out ca.crt",
        "openssl ecparam -name prime256v1 -genkey -noout -out server.key",
        "openssl req -new -key server.key -subj /CN=localhost -out server.csr",
        "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile san.txt "
        "-out server.pem",
    ]
    (folder / "san.txt").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)


def simulation(machine: Machine) -> dict[str, Any]:
    """Flower's simulation with 24 nodes on Ray."""
    many = "num-supernodes=24 client-resources-num-cpus=1"
    (machine.folder / "flwr-cli").mkdir()
    run = machine.run("sim", "local", many, num_server_rounds=5, min_nodes=24, fraction_train=0.5)
    status = machine.finish(run, "sim", "local")
    return {"status": status, **machine.about("sim"), **machine.story("sim")}


def baseline(machine: Machine) -> dict[str, Any]:
    """The baseline by `flwr run .`, made short by its own settings."""
    shutil.copytree(ROOT / "examples" / "baseline", machine.folder / "baseline")
    machine.app = machine.folder / "baseline"
    (machine.folder / "flwr-cli").mkdir()
    table = machine.folder / "table.csv"
    short = f'num-server-rounds=3 num-clients=6 betas="0 1" swaps="0" seeds="0" output="{table}"'
    nodes = "num-supernodes=6 client-resources-num-cpus=1"
    run = str(machine.flwr("run", ".", "local", "-c", short, "--federation-config", nodes)["run-id"])

    def over() -> str:
        status = machine.status(run, "local")
        return status if status.startswith("finished") else ""

    status = wait("the baseline ended", over, PATIENCE, every=5.0)
    return {"status": status, "table": table.read_text() if table.exists() else ""}


def main() -> None:
    """Run one scenario."""
    scenario, folder = sys.argv[1], Path(sys.argv[2])
    machine = Machine(folder)
    try:
        known = (insecure, secure, simulation, keyless, late, held, baseline)
        report = {function.__name__: function for function in known}[scenario](machine)
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    finally:
        for process in machine.started.values():
            process.kill()


if __name__ == "__main__":
    main()
