"""Settings: defaults of the paper, TOML there and back, one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedstale as fs
from fedstale.simulation import from_toml, make_settings, to_toml


def test_defaults_are_the_papers() -> None:
    chosen = make_settings(p_min=0.02)
    assert (chosen.num_clients, chosen.total_rounds, chosen.server_lr) == (24, 500, 1.0)
    assert make_settings(p_min=0.3).total_rounds == 34
    assert make_settings(p_min=0.3, rounds=7).total_rounds == 7


def test_toml_there_and_back(tmp_path: Path) -> None:
    chosen = make_settings(
        task="mnist-cnn", beta="auto", p_min=0.05, partition="dirichlet", partition_options={"alpha": 0.3}, seed=4
    )
    (tmp_path / "run.toml").write_text(to_toml(chosen))
    assert from_toml(tmp_path / "run.toml") == chosen
    assert from_toml(tmp_path / "run.toml", seed=5) == chosen.replace(seed=5)
    assert make_settings(**chosen.record()) == chosen


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pmin": 0.1}, "unknown setting 'pmin': did you mean p_min"),
        ({"p_min": 0}, r"p_min = 0: input should be greater than 0"),
        ({"p_min": 1e-9}, r"p_min = 1e-09: the default, 10/p_min, would be 10,000,000,000 rounds"),
        ({"swap": 2}, "swap = 2: input should be less than or equal to 1"),
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": "many"}, "rounds = 'many'"),
        ({"weights": "samples"}, "weights = 'samples': input should be 'client' or 'sample'"),
        ({"epochs": 1, "local_steps": 5}, "epochs = 1: give local_steps or epochs, not both"),
    ],
)
def test_one_line_for_what_is_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(fs.InvalidInput, match=message) as caught:
        make_settings(**given)
    assert "\n" not in str(caught.value)


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(fs.InvalidInput, match="there is no file"):
        from_toml(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("task = ")
    with pytest.raises(fs.InvalidInput, match=r"bad\.toml cannot be read as TOML"):
        from_toml(tmp_path / "bad.toml")
    (tmp_path / "misspelt.toml").write_text("bata = 0.5")
    with pytest.raises(fs.InvalidInput, match=r"misspelt\.toml: unknown setting 'bata': did you mean beta"):
        from_toml(tmp_path / "misspelt.toml")


def test_every_description_can_begin_a_sentence() -> None:
    """The help of the command line begins them with a capital letter, which would make another symbol of η or β."""
    for name, field in fs.simulation.Settings.model_fields.items():
        assert (field.description or "")[:1].isascii(), name


def test_default_rule_is_the_tempered_one_and_fedstale_where_only_beta_is_given() -> None:
    assert make_settings().rule == "tempered"
    assert make_settings(beta=0.5).rule == "fedstale"
    assert make_settings(rule="tempered", beta=0.5).replace(seed=3).rule == "tempered"
    assert make_settings(rule=None, beta=None).rule == "tempered"
