"""The notebook runs from top to bottom, and is committed without outputs.

A notebook is a list of cells in JSON. They are run here in one process, as a kernel would, and what the last line of a
cell is worth is shown in the forms that a notebook asks for; Jupyter itself would be thirty packages for this one test.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.blocks import ROOT

NOTEBOOK = ROOT / "examples/notebook.ipynb"


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def run(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, unless a semicolon ends it."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if source.rstrip().endswith(";") or not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), namespace)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def test_it_is_small_and_has_no_outputs() -> None:
    assert NOTEBOOK.stat().st_size < 20_000
    for cell in cells():
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    module = ModuleType("notebook")  # where the classes of its cells are found
    monkeypatch.setitem(sys.modules, "notebook", module)
    namespace = module.__dict__
    shown = []
    for cell in cells():
        if cell["cell_type"] == "code":
            # The same cells with fewer rounds and one seed: what they show is not looked at here.
            source = "".join(cell["source"]).replace("rounds=60", "rounds=4").replace("rounds=40", "rounds=6")
            shown.append(run(source, namespace))
    plt.close("all")
    assert "<table>" in namespace["comparison"]._repr_html_()
    assert any("of the test samples" in value for value in shown if isinstance(value, str))
    labels = [record["method"] for record in namespace["mine"].records()]
    assert labels == ["FedAvg", "U-FedAvg", "Tempered FedStale", "square-root", "everybody, always"]
    assert (tmp_path / "notebook-runs" / "store.sqlite").exists()
