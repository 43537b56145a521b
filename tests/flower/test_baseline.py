"""examples/baseline: in the form of a Flower Baseline, and it runs."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message, RecordDict

from .grid import MemoryGrid

BASELINE = Path(__file__).parents[2] / "examples" / "baseline"


def test_it_has_the_fields_and_sections_of_a_baseline() -> None:
    text = (BASELINE / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert [line.partition(":")[0] for line in front.splitlines()] == ["title", "url", "labels", "dataset"]
    sections = [line[3:] for line in body.splitlines() if line.startswith("## ")]
    wanted = ["About this baseline", "Experimental Setup", "Environment Setup", "Running the Experiments"]
    assert sections == [*wanted, "Expected Results"]
    for words in ("What’s implemented", "Datasets", "Hardware Setup", "Contributors", "Task", "Model", "Dataset"):
        assert f"**{words}:**" in body


def test_its_app_is_in_the_format_of_flower_hub() -> None:
    from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

    project = tomllib.loads((BASELINE / "pyproject.toml").read_text(encoding="utf-8"))
    assert normalize_and_validate_fab_format(project).fab_format_version == 1
    assert (BASELINE / "LICENSE").exists()


def test_without_its_nodes_it_ends_and_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare `flwr run .` has two nodes: it waited for the others for ever."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(BASELINE))
    server_app = import_module("fedstale_baseline.server_app")
    monkeypatch.setattr(server_app, "PATIENCE", 0.0)
    project = tomllib.loads((BASELINE / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    with pytest.raises(RuntimeError, match=r"2 nodes are connected, and num-clients is 24.*num-supernodes=24"):
        server_app.app(MemoryGrid({1: lambda _: None, 2: lambda _: None}), Context(1, 9, {}, RecordDict(), config))
    for module in [name for name in sys.modules if name.startswith("fedstale_baseline")]:
        monkeypatch.delitem(sys.modules, module)


def test_it_runs_and_prints_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(BASELINE))
    client_app, server_app = (import_module(f"fedstale_baseline.{name}_app") for name in ("client", "server"))
    project = tomllib.loads((BASELINE / "pyproject.toml").read_text(encoding="utf-8"))
    config = dict(project["tool"]["flwr"]["app"]["config"])
    config |= {"num-clients": 4, "num-server-rounds": 12, "betas": "0 1", "seeds": "0", "p-min": 0.5}
    config |= {"output": str(tmp_path / "results.csv"), "swaps": "0"}
    contexts = {
        i: Context(1, i, {"partition-id": i, "num-partitions": 4}, RecordDict(), dict(config)) for i in range(4)
    }

    def node(message: Message, context: Context) -> Message:
        try:
            reply: Message = client_app.app(message, context)
        except RuntimeError as error:
            return Message(Error(2, str(error)), reply_to=message)
        return reply

    grid = MemoryGrid({i: lambda m, c=context: node(m, c) for i, context in contexts.items()})  # type: ignore[misc]
    server_app.app(grid, Context(1, 9, {}, RecordDict(), config))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "| swap | β = 0 | β = 1 |"
    assert "±" not in printed[2]  # one seed has no error; it used to be 0.0
    lines = (tmp_path / "results.csv").read_text().splitlines()
    assert lines[0] == "swap,beta,seed,accuracy"
    assert all(float(line.rpartition(",")[2]) > 0.6 for line in lines[1:])
    for module in [name for name in sys.modules if name.startswith("fedstale_baseline")]:
        monkeypatch.delitem(sys.modules, module)
