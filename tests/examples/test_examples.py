"""The examples run, and say what they say they do. (own_task.py: tests/tasks; flower_quickstart: tests/flower.)"""

from __future__ import annotations

import ast
import runpy
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import fedstale as fs
from tests.enumeration import expectation
from tests.rules import test_every_rule as every

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


one_file = load("fedstale_in_one_file")
own_rule = load("own_rule")


def test_every_example_is_tested() -> None:
    known = {"fedstale_in_one_file.py", "own_rule.py", "own_task.py", "flower_quickstart", "baseline", "notebook.ipynb"}
    assert {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("_", "."))} == known


def test_one_file_needs_numpy_only_and_is_short() -> None:
    text = (EXAMPLES / "fedstale_in_one_file.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    tree = ast.walk(ast.parse(text))
    froms = {str(node.module).partition(".")[0] for node in tree if isinstance(node, ast.ImportFrom)}
    assert froms <= {"__future__", "collections", "typing", "numpy"}
    assert "\nimport numpy as np\n" in text
    assert text.count("\nimport ") == 1


@pytest.mark.parametrize(
    ("combine", "rule"),
    [
        (one_file.fedavg, fs.FedAvg()),
        (one_file.unbiased_fedavg, fs.UnbiasedFedAvg()),
        (one_file.fedstale(0.0), fs.UnbiasedFedAvg()),
        (one_file.fedstale(0.3), fs.FedStale(beta=0.3)),
        (one_file.fedstale(1.0), fs.UnbiasedFedVARP()),
    ],
    ids=["fedavg", "u-fedavg", "beta 0", "beta 0.3", "beta 1"],
)
def test_one_file_is_the_library(combine: one_file.Rule, rule: fs.Rule) -> None:  # type: ignore[name-defined]
    """The same rounds through the script's update rule and the library's: the same Δ to 1e-12, empty rounds, too."""
    d, rng = 7, np.random.default_rng(3)
    state = rule.init(fs.Federation(one_file.N, d), memory="ram:float64")
    stale = np.zeros((one_file.N, d))
    sizes = []
    for t in range(30):
        who = np.flatnonzero(rng.random(one_file.N) < one_file.P) if t not in (4, 11) else np.empty(0, np.int64)
        fresh = rng.normal(size=(len(who), d))
        expected = rule.combine(state, fs.Round(t, who, fresh, probabilities=one_file.P[who]))
        assert combine(fresh, who, one_file.P, stale) == pytest.approx(np.asarray(expected), abs=1e-12, rel=1e-12)
        stale[who] = fresh
        sizes.append(len(who))
    assert 0 in sizes
    assert max(sizes) > 12


def test_one_file_gradient_is_that_of_its_loss() -> None:
    x, y = one_file.make_data()
    w = np.random.default_rng(1).normal(size=one_file.FEATURES * one_file.CLASSES)

    def loss(at: np.ndarray) -> float:
        scores = x[3] @ at.reshape(one_file.FEATURES, one_file.CLASSES)
        log = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return float(-log[np.arange(len(y[3])), y[3]].mean() + one_file.DECAY / 2 * at @ at)

    slope = one_file.gradient(w[None], x[3:4], y[3:4])[0]
    for k in (0, 17, 49):
        step = 1e-6 * np.eye(len(w))[k]
        assert slope[k] == pytest.approx((loss(w + step) - loss(w - step)) / 2e-6, abs=1e-7)


@pytest.mark.slow
def test_one_file_shows_bias_and_variance(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "fedstale_in_one_file.py"), run_name="__main__")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    bias = {line[0]: float(line[1]) for line in lines}
    variance = {line[0]: float(line[2]) for line in lines}
    assert list(bias) == list(one_file.METHODS)
    assert bias["FedAvg"] > 5 * max(value for name, value in bias.items() if name != "FedAvg")
    assert variance["U-FedAvg"] == max(variance.values())
    assert variance["FedAvg"] < variance["FedStale(0.5)"] < variance["U-FedAvg"]


def test_one_file_runs_in_small(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(one_file, "T", 20)
    monkeypatch.setattr(one_file, "SEEDS", 1)
    one_file.main()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == list(one_file.METHODS)


def test_own_rule_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(own_rule, "SEEDS", 1)
    monkeypatch.setattr(own_rule, "ROUNDS", 12)
    monkeypatch.setattr(own_rule, "RULES", own_rule.RULES[-2:])
    own_rule.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith("fading ")


@pytest.mark.parametrize(
    ("half_life", "same"), [(1e15, fs.UnbiasedFedVARP()), (1e-3, fs.UnbiasedFedAvg())], ids=["long", "short"]
)
def test_own_rule_ends_at_known_ones(half_life: float, same: fs.Rule) -> None:
    fading = own_rule.Fading(half_life=half_life)
    pairs = zip(
        every.advance(fading, every.start(fading, "ram:float64"), 0, every.ROUNDS),
        every.advance(same, every.start(same, "ram:float64"), 0, every.ROUNDS),
        strict=True,
    )
    for one, other in pairs:
        assert one == pytest.approx(other, abs=2e-6)  # the history has float32


@pytest.mark.parametrize("memory", ["ram:float64", "ram:bfloat16"])
def test_own_rule_is_unbiased(memory: str) -> None:
    p = np.array([1.0, 0.8, 0.6, 0.5, 0.4, 0.1])
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(6, 4))
    rule = own_rule.Fading(half_life=3.0)

    def prepare() -> fs.State:
        state = rule.init(fs.Federation(6, 4), memory=memory)
        noise = np.random.default_rng(8)
        for t in (0, 1, 4, 5):  # rounds may be missing
            who = np.flatnonzero(noise.random(6) < 0.6)
            rule.combine(state, fs.Round(t, who, noise.normal(size=(len(who), 4)), probabilities=p[who]))
        return state  # type: ignore[no-any-return]

    assert np.abs(prepare().of_rule.arrays()["faded"]).max() > 0.01
    assert expectation(rule, prepare, updates, p) == pytest.approx(updates.mean(axis=0), abs=1e-12)


def test_own_rule_passes_the_shared_test(tmp_path: Path) -> None:
    rule = own_rule.Fading(half_life=4.0)
    for number, memory in enumerate(["ram", "ram:bfloat16", "disk:{}"]):
        (tmp_path / str(number)).mkdir()
        every.test_save_and_load_in_the_middle_changes_no_bit(rule, memory, tmp_path / str(number))
    (tmp_path / "disk").mkdir()
    every.test_disk_equals_ram(rule, tmp_path / "disk")
    every.test_a_refused_round_changes_nothing(rule)
    every.test_empty_rounds_and_unseen_clients(rule)
    every.test_one_client_alone(rule)
    every.test_a_rule_refuses_the_state_of_another(rule)
    with pytest.raises(fs.InvalidInput, match="half_life = 0"):
        own_rule.Fading(half_life=0.0)
