"""The generated app: complete, the same as the example, and it learns."""

from __future__ import annotations

import io
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedstale.checks import InvalidInput
from fedstale.cli.flower import app as cli
from fedstale.flower.new_app import write_app

from .grid import MemoryGrid

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_quickstart"


def files(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def test_the_example_is_what_the_command_writes(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["new", str(tmp_path / "flower_quickstart")])
    assert done.exit_code == 0, done.output
    assert files(tmp_path / "flower_quickstart") == files(EXAMPLE)


def test_an_app_has_what_flower_wants(tmp_path: Path) -> None:
    write_app(tmp_path / "my_app", name="Ward-7")
    project = tomllib.loads((tmp_path / "my_app" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "Ward-7"
    assert [name.partition(">")[0] for name in project["project"]["dependencies"]] == ["flwr"]
    assert project["tool"]["flwr"]["app"]["publisher"]
    for name in ("serverapp", "clientapp"):
        module, _, attribute = project["tool"]["flwr"]["app"]["components"][name].partition(":")
        assert (tmp_path / "my_app" / (module.replace(".", "/") + ".py")).read_text().count(f"\n{attribute} = ") == 1
    assert "@" not in "".join(
        text for name, text in files(tmp_path / "my_app").items() if name == "pyproject.toml" or name.endswith(".md")
    )


def test_an_app_is_in_the_format_of_flower_hub(tmp_path: Path) -> None:
    """As Flower itself checks it when it builds the archive; our own range of versions is the app's."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

    write_app(tmp_path / "my_app")
    text = (tmp_path / "my_app" / "pyproject.toml").read_text()
    project = tomllib.loads(text)
    found = normalize_and_validate_fab_format(project)
    assert found.fab_format_version == 1
    ours = tomllib.loads((EXAMPLE.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["project"]["dependencies"] == ours["optional-dependencies"]["flower"]
    assert project["project"]["requires-python"].startswith(ours["requires-python"])
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(tmp_path / "my_app"))) as archive:
        assert {"LICENSE", "README.md", "pyproject.toml", "my_app/task.py"} <= set(archive.namelist())


@pytest.mark.parametrize("name", ["7up", "a b", "class", "a--b", "../x", ""])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name"):
        write_app(tmp_path / "app", name=name)
    assert not (tmp_path / "app").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("dear to me")
    done = CliRunner().invoke(cli, ["new", str(tmp_path), "--name", "app"])
    assert isinstance(done.exception, InvalidInput)
    assert "not an empty folder" in str(done.exception)
    assert files(tmp_path) == {"mine.txt": "dear to me"}


def test_the_app_learns_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and clients of the example on the in-memory grid: accuracy rises, and a second server resumes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from flwr.app import Context, RecordDict

    torch.set_num_threads(1)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    client_app = import_module("flower_quickstart.client_app")
    server_app = import_module("flower_quickstart.server_app")
    config = dict(tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"])
    config |= {"output": str(tmp_path / "out"), "num-server-rounds": 3}
    contexts = {
        10 + i: Context(1, 10 + i, {"partition-id": i, "num-partitions": 4}, RecordDict(), dict(config))
        for i in range(4)
    }
    grid = MemoryGrid({node: lambda m, c=context: client_app.app(m, c) for node, context in contexts.items()})  # type: ignore[misc]
    (tmp_path / "out").mkdir()
    server_app.app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    server_app.app(grid, Context(1, 0, {}, RecordDict(), config | {"num-server-rounds": 5}))
    from fedstale.store import Store

    with Store.open(tmp_path / "out" / "runs", read_only=True) as store:
        (info,) = store.runs()
        run = store.run(info.id)
        accuracy = run.metrics()["accuracy"]
        assert info.status == "finished"
        assert len(accuracy) == 5
        assert accuracy[-1] > 0.8
        assert accuracy[-1] > accuracy[0]
        assert [list(who) for who in run.participants().values()] == [[0, 1, 2, 3]] * 5
        assert run.client_metrics("probability")[1].shape == (5, 4)
        assert run.client_metrics("staleness")[1].max() == 0
        assert {"beta", "participants", "known", "train/train-loss"} <= set(run.metric_names())
    assert (tmp_path / "out" / "model.safetensors").exists()
    for module in [name for name in sys.modules if name.startswith("flower_quickstart")]:
        monkeypatch.delitem(sys.modules, module)
