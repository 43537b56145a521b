"""Every command and every code block of README and documentation is run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import ELSEWHERE, PAGES, ROOT, Block, Escaped, blocks, inline_commands, shape
from .runner import FEDSTALE, Runner, check_install, check_options, parse_fedstale, prepare, resolve

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each page begins in an empty folder, without the settings of this machine; Flower thinks that it is in a run."""
    pytest.importorskip("torch")
    pytest.importorskip("flwr")
    from flwr.supercore.task_identity import TaskIdentity

    paths = sys.path[:]
    for name in ("FEDSTALE_STORE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield
    sys.path[:] = paths
    for name in ("_task_id", "_run_id", "_node_id"):
        setattr(TaskIdentity, name, None)


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_runs(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    _run(page, Runner(tmp_path))


LONG = [page for page in PAGES if "<!-- long run:" in page.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("page", LONG, ids=[str(page.relative_to(ROOT)) for page in LONG])
def test_long_runs_in_full(page: Path, tmp_path: Path) -> None:
    prepare(tmp_path)
    _run(page, Runner(tmp_path, full=True))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_in_running_text_exist(page: Path) -> None:
    for text in inline_commands(page):
        words = [word for word in text.split() if word not in ("…", "...")]
        try:
            command, rest = resolve(FEDSTALE, [w for w in words[1:] if not w.isupper()])
        except AssertionError:
            assert words[1] in FEDSTALE.commands, f"{page}: {text}"
            assert len(words) == 2, f"{page}: {text}"
            continue
        check_options(Block(page, 0, "console", text), command, rest)


@pytest.mark.slow
def test_options_of_other_programs_exist() -> None:
    """What the pages say to SuperLink, SuperNode and Ray is what these programs take."""
    helps: dict[str, str] = {}
    folder = Path(sys.executable).parent
    for block in (block for page in PAGES for block in blocks(page)):
        for line in block.lines() if block.mark in ELSEWHERE and block.language == "console" else ():
            program, *words = shlex.split(line, comments=True)
            if not program.startswith(("flower-", "ray")):
                continue
            command = " ".join([program, *words[:1]] if program == "ray" else [program])
            if command not in helps:
                asked = [str(folder / program), *command.split()[1:], "--help"]
                helps[command] = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
            for word in words:
                if word.startswith("--"):
                    option = word.partition("=")[0]
                    assert re.search(rf"{option}\b", helps[command]), f"{block.where}: {command} has no {option}"
    assert {"flower-superlink", "flower-supernode", "ray start"} <= set(helps)


@pytest.mark.parametrize(
    "text",
    [
        "```\nfedstale compare\n```\n",
        "```pyton\nx = 1\n```\n",
        "    fedstale compare\n",
        "- item\n\n  ```\n  x\n  ```\n",
        "<!-- skip -->\n```python\nx = 1\n```\n",
        "<!-- needs cluster: tests/no_such_test.py -->\n```console\nfedstale compare\n```\n",
        "```{raw} html\nx\n```\n",
        "````{note}\n```python\nx\n```\n````\n",
        "<!-- output: nearly -->\n```text\nx\n```\n",
        "<!-- long run: -x -->\n```python\nx = 1\n```\n",
    ],
)
def test_no_block_escapes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(Escaped):
        blocks(page)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\n1 / 0\n```\n", "division"),
        ("```console\nfedstale advise --p nonsense\n```\n", "must be numbers"),
        ("```console\nfedstale compair\n```\n", "unknown command"),
        ("```console\nrm -r x\n```\n", "not run by this test"),
        ("```console\nls no-such-file\n```\n", "no-such-file"),
        ("```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```\n", "shows"),
        ("```python\nprint('a 1')\n```\n\n<!-- output: shape -->\n```text\nb 2\n```\n", "shows"),
        ("```toml\nx =\n```\n", "Invalid value"),
        ("<!-- needs install -->\n```console\nmake coffee\n```\n", "make coffee"),
        ("<!-- needs install -->\n```console\npip install 'fedstale[nonsense]'\n```\n", "no extra nonsense"),
        ("<!-- needs install -->\n```console\nfedstale run\n```\n", "does not install"),
        ("<!-- serves: page.md -->\n```console\nfedstale run --no-such-option\n```\n", "no-such-option"),
        ("<!-- serves: page.md -->\n```console\nflwr run . --no-such-option\n```\n", "no-such-option"),
    ],
)
def test_what_is_wrong_is_found(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(Exception, match=message):
        _run(page, Runner(tmp_path))


def _run(page: Path, runner: Runner) -> None:
    for block in blocks(page):
        runner.run(block)


def test_shape_forgets_numbers_only() -> None:
    assert shape("│ FedAvg │ 88.6% ± 0.6% │") == shape("FedAvg    9% ")
    assert shape("FedAvg 1") != shape("FedStale 1")


def test_the_parsers_are_the_real_ones() -> None:
    parse_fedstale(["compare", "--p-min", "0.1"])
    with pytest.raises(Exception, match="p-mini"):
        parse_fedstale(["compare", "--p-mini", "0.1"])
    check_install(Block(ROOT / "README.md", 1, "console", ""), ["make", "demo"])
