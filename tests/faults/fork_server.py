"""A warm parent process that forks one child per job: starting Python and torch anew takes longer than a run.

The parent imports everything and computes nothing (no thread runs when it forks). Each child becomes the leader of its
own process group, sets its trap, and does the work. A job is a scenario, or a command of `fedstale` with its variables.
Jobs and answers are lines of JSON on standard input and output. How a child ended is read from `waitpid`: a kill counts
only when the system says that signal 9 ended it, an interrupt only when the child says so by its exit code, 130.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


Done = subprocess.CompletedProcess[str]
INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class ForkServer:
    """The test's side: `run` one job after the other."""

    def __init__(self) -> None:
        environment = {**os.environ, **ENVIRONMENT}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run(self, scenario: str, folder: Path, **job: Any) -> dict[str, Any]:
        """Do a job: {"signal": number or None, "code": exit code or None, "log": text, "counts": …}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job |= {"scenario": scenario, "folder": str(folder)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def fedstale(self, *words: str | Path, cwd: Path | str = ".", memory: int | None = None, **variables: str) -> Done:
        """Run a command as `python -m fedstale` would, for a minute at most, and with at most so much more memory."""
        with tempfile.TemporaryDirectory() as folder:
            job: dict[str, Any] = {"command": list(map(str, words)), "cwd": str(Path(cwd).absolute()), "memory": memory}
            answer = self.run("", Path(folder) / "command", variables={**os.environ, **variables}, **job)
            out, errors = (Path(folder, f"command.{name}").read_text("utf-8") for name in ("out", "log"))
        code = answer["code"] if answer["signal"] is None else -answer["signal"]
        return subprocess.CompletedProcess(["fedstale", *job["command"]], code, out, errors)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def child(job: dict[str, Any], log: Path, counts: Path) -> None:
    """Do the work of one job in this process; never returns."""
    os.setsid()
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(log.with_suffix(".out"), os.O_WRONLY | os.O_CREAT) if "command" in job else sink, 1)
    os.dup2(sink, 2)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    code = 1
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore Ctrl-C
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        if "command" in job:
            command(job)
        from .places import Trap
        from .scenarios import SCENARIOS

        random.seed(job.get("seed", 0))
        number = job.get("signal", signal.SIGKILL)
        trap = Trap(job.get("place"), job.get("crossing", 0), job.get("moment", "before"), number).set()
        SCENARIOS[job["scenario"]].go(Path(job["folder"]))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is through
        counts.write_text(json.dumps(trap.counts))
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(job: dict[str, Any]) -> None:
    """Be the command line."""
    from fedstale.cli.app import main

    os.environ.clear()
    os.environ.update(job["variables"])
    os.chdir(job["cwd"])
    signal.alarm(60)
    if job["memory"] is not None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + job["memory"],) * 2)
    sys.argv = ["fedstale", *job["command"]]
    main()
    sys.exit(0)


def children_of(process: int) -> list[int]:
    """Process ids of a process's children, the youngest last."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def strike(job: dict[str, Any], process: int) -> bool:
    """Hit a child of ours from outside when its time has come; True when somebody was hit."""
    if job.get("target") != "worker":
        number = job.get("signal", signal.SIGKILL)
        try:
            os.killpg(process, number)
        except ProcessLookupError:  # it has not even become the leader of its group
            os.kill(process, number)
        return True
    workers = [one for one in children_of(process) if b"multiprocessing" in command_of(one)]
    workers = [one for one in workers if b"spawn_main" in command_of(one)]
    if not workers:
        return False
    os.kill(random.choice(workers), signal.SIGKILL)
    return True


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def watch(job: dict[str, Any], process: int) -> dict[str, Any]:
    """Wait for a child, killing it (or one of its workers) after `delay` seconds where the job says so."""
    began, struck = time.monotonic(), False
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            break
        if "delay" in job and not struck and time.monotonic() - began >= job["delay"]:
            struck = strike(job, process)
        time.sleep(0.001 if "delay" in job else 0.005)
    seconds = time.monotonic() - began
    died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # workers that have not yet noticed
    return {"signal": died, "code": code, "struck": struck, "seconds": seconds}


def main() -> None:
    """Serve jobs until standard input ends."""
    import flwr.app  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    from fedstale.cli import app  # noqa: F401

    from . import absent, places, scenarios  # noqa: F401

    torch.set_num_threads(1)
    random.seed(os.getpid())
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        folder = Path(job["folder"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        log, counts = folder.with_suffix(".log"), folder.with_suffix(".counts")
        counts.unlink(missing_ok=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # what hits the child early waits until it is ready
        process = os.fork()
        if process == 0:
            child(job, log, counts)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        answer = watch(job, process)
        answer["log"] = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        answer["counts"] = json.loads(counts.read_text()) if counts.exists() else {}
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
