"""`fedstale advise --times`: one clear answer, and one clear line where the file is something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedstale as fs
from fedstale.cli.app import app
from fedstale.cli.deadline import show_deadline

LOG = "round,client,seconds\n0,0,2\n0,1,9\n1,0,2.5\n1,1,\n\n# a comment\n2,0,2\n2,1,3\n"


def test_a_deadline_from_a_log(tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_text(LOG)
    said = CliRunner().invoke(app, ["advise", "--times", str(path)]).output
    assert "deadline: 3 s" in said
    assert "A guess: a client was asked in 3 rounds only." in said
    assert max(len(line) for line in said.splitlines()) <= 100
    found = json.loads(CliRunner().invoke(app, ["advise", "--times", str(path), "--json"]).output)
    assert found["deadline_advice"]["deadline"] == 3.0


def test_no_deadline_where_none_is_faster(tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_text("\n".join(f"{t},{i},3" for t in range(20) for i in range(4)))
    said = CliRunner().invoke(app, ["advise", "--times", str(path)]).output
    assert said.startswith("No deadline: wait for the slowest.")
    assert "guess" not in said


@pytest.mark.parametrize("text", ["", "round,client,seconds\n", "0,1\n", "0,1,soon\n", "a,b,c\n", "0,0,\n", "0,0,-1\n"])
def test_another_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "replies.csv"
    path.write_text(text)
    with pytest.raises(fs.InvalidInput) as caught:
        show_deadline(path, as_json=False)
    assert "\n" not in str(caught.value)
