"""Grids: every combination once, and one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedstale.checks import InvalidInput
from fedstale.sweeps import Grid, from_file, lr_grid

GOOD = """
name = "swaps"
[settings]
task = "digits-mlp"
rounds = 5
[grid]
p_min = [0.5, 0.1]
seed = [0, 1]
cases = [{ rule = "fedavg" }, { rule = "fedstale", beta = "auto" }]
"""


def test_every_combination(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(GOOD)
    grid = from_file(file)
    runs = grid.runs()
    assert grid.name == "swaps"
    assert len(runs) == len(set(map(repr, runs))) == 8
    assert {(one.p_min, one.seed, one.rule, one.beta) for one in runs} == {
        (p, seed, rule, beta) for p in (0.5, 0.1) for seed in (0, 1)
        for rule, beta in (("fedavg", None), ("fedstale", "auto"))
    }  # fmt: skip
    assert all(one.rounds == 5 for one in runs)


def test_the_rates_of_the_task() -> None:
    runs = Grid("x", axes={"task": ["digits-mlp", "mnist-mlp"], "lr": "grid"}).runs()
    assert [one.lr for one in runs] == [*lr_grid("digits-mlp"), *lr_grid("mnist-mlp")]


def test_equal_runs_appear_once() -> None:
    assert len(Grid("x", axes={"seed": [0, 0, 1]}).runs()) == 2


def test_python_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.py"
    file.write_text("from fedstale.sweeps import Grid\ngrid = Grid('py', {}, {'seed': range(3)})\n")
    assert len(from_file(file).runs()) == 3
    file.write_text("grid = 3\n")
    with pytest.raises(InvalidInput, match="must set grid"):
        from_file(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\np_mim = [0.1]\n", "unknown setting 'p_mim': did you mean p_min"),
        ("[settings]\ntsak = 'digits'\n", "unknown setting 'tsak': did you mean task"),
        ("[gird]\nseed = [1]\n", "unknown heading 'gird': did you mean grid"),
        ("[grid]\nseed = 3\n", "seed = 3: must be a non-empty list"),
        ("[grid]\nseed = []\n", "must be a non-empty list"),
        ("[grid]\np_min = [2.0]\n", "p_min = 2.0: "),
        ("[settings]\nseed = 1\n[grid]\nseed = [1]\n", "give it once"),
        ("[grid]\ncases = [1]\n", "must be a list of tables"),
        ("[grid]\ntask = ['digits', 'nosuch']\nlr = 'grid'\n", "unknown task 'nosuch'"),
        ("settings = 3\n", "must be a table"),
        ("[grid\n", "cannot be read as TOML"),
    ],
)
def test_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"bad\.toml") as caught:
        from_file(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no file"):
        from_file(tmp_path / "absent.toml")


def test_a_grid_without_a_name_or_a_named_task_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one line of printable text"):
        Grid("two\nlines", {}, {"seed": [0]}).runs()
    with pytest.raises(InvalidInput, match="needs a named task"):
        lr_grid({"class": "Quadratic"})
