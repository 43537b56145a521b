"""What `simulate` returns, as a notebook meets it: a short repr, a plot, a table, the model of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedstale as fs
from fedstale.checks import InvalidInput, UnknownName
from fedstale.simulation import Result


@pytest.fixture(scope="module")
def run() -> Result:
    return fs.simulate("digits", "fedstale", p_min=0.5, rounds=6, evaluate_every=3, local_steps=2)


@pytest.fixture(scope="module")
def quadratic() -> Result:
    return fs.simulate("quadratic", "fedavg", num_clients=3, p_min=0.5, rounds=4, lr=0.02)


def test_repr_is_one_short_line(run: Result, quadratic: Result) -> None:
    assert repr(run).startswith("<Result FedStale β=auto: finished, 6 of 6 rounds, accuracy ")
    assert repr(quadratic).startswith("<Result FedAvg: finished, 4 of 4 rounds, excess_loss ")
    assert max(len(repr(run)), len(repr(quadratic))) < 100


def test_repr_of_a_run_that_diverged() -> None:
    wild = fs.simulate("digits", "fedavg", p_min=0.5, rounds=9, lr=1e30)
    assert wild.diverged_in is not None
    assert f"diverged in round {wild.diverged_in}" in repr(wild)
    assert "accuracy" not in repr(wild)


@pytest.mark.parametrize("ask", ["final", "tail"])
def test_a_metric_that_no_run_has_is_refused(run: Result, ask: str) -> None:
    with pytest.raises(UnknownName, match="unknown metric 'acc': did you mean accuracy"):
        getattr(run, ask)("acc")
    with pytest.raises(UnknownName, match="acuracy_group1"):
        run.plot("acuracy_group1")


def test_a_metric_that_this_run_has_not_is_nan(run: Result) -> None:
    for name in ("rounds_lost", "accuracy_group7", "excess_loss"):
        assert np.isnan(run.final(name))


def test_pandas(run: Result) -> None:
    frame = run.to_pandas()
    assert list(frame.index) == [0, 1, 2, 3, 4, 5]
    assert frame.index.name == "round"
    assert set(frame.columns) == set(run.metrics)
    assert frame["accuracy"].dropna().iloc[-1] == run.final("accuracy")


def test_without_pandas_one_line(run: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"^pandas is not installed: pip install "):
        run.to_pandas()


def test_model_state_is_what_was_trained(run: Result, quadratic: Result) -> None:
    module = fs.tasks.make("digits").build(seed=99)
    module.load_state_dict(run.model_state())
    assert np.array_equal(fs.training.flatten(module), run.model)
    assert all(isinstance(value, torch.Tensor) for value in run.model_state().values())
    with pytest.raises(InvalidInput, match="has no torch model"):
        quadratic.model_state()


def test_constants_of_a_model_are_those_of_the_run() -> None:
    """What does not require a gradient is no part of the vector: it comes from the run's seed."""

    def model() -> torch.nn.Module:
        made = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        made[0].requires_grad_(False)
        return made

    some = np.random.default_rng(0)
    data: Any = [(some.normal(size=(8, 4)), some.integers(0, 2, 8)) for _ in range(3)]
    task = fs.tasks.Task.from_datasets(model, torch.nn.functional.cross_entropy, data, data, batch_size=4)
    state = fs.simulate(task, "fedavg", rounds=2, p_min=0.5, seed=3).model_state()
    untrained = task.build(3).state_dict()
    assert torch.equal(state["0.weight"], untrained["0.weight"])
    assert not torch.equal(state["1.weight"], untrained["1.weight"])


def test_plot(run: Result, quadratic: Result) -> None:
    import matplotlib.pyplot as plt

    before = dict(plt.rcParams)
    axis = run.plot()
    assert axis.get_ylabel() == "Test accuracy"
    (line,) = axis.lines
    assert list(line.get_xdata()) == [3, 6]
    by_bytes = run.plot(x="bytes").lines[0].get_xdata()
    np.testing.assert_allclose(by_bytes, np.cumsum(run.metrics["bytes_up"] + run.metrics["bytes_down"])[[2, 5]])
    assert run.plot("accuracy_group1", ax=axis) is axis
    assert len(axis.lines) == 2
    assert axis.get_ylabel() == "Test accuracy, rare clients"
    assert quadratic.plot().get_yscale() == "log"
    assert dict(plt.rcParams) == before, "the user's own settings stay"
    plt.close("all")


def test_a_notebook_goes_on_showing_figures(tmp_path: Path) -> None:
    """Matplotlib's backend turns it on when it is first imported, and that must outlive the first plot."""
    backend = "import matplotlib\nfrom matplotlib.backends.backend_agg import *\nmatplotlib.interactive(True)\n"
    (tmp_path / "shows_figures.py").write_text(backend)
    program = (
        "import fedstale as fs, matplotlib as m\nfs.simulate('quadratic', rounds=3).plot()\nprint(m.is_interactive())"
    )
    places = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "MPLBACKEND": "module://shows_figures", "PYTHONPATH": places}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "True"
