"""Writes a complete Flower app: `fedstale flower new DIR`."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path

from ..checks import fail

_TEMPLATE = files("fedstale.flower") / "template"
_IN_PACKAGE = ("server_app.py", "client_app.py", "task.py")


def write_app(folder: str | Path, *, name: str | None = None) -> list[Path]:
    """Write the app into a new or empty folder; return the files written.

    Parameters
    ----------
    folder
        Where to write. It may exist if it is empty.
    name
        The app's name, such as "my-app"; default: the folder's name.
    """
    folder = Path(folder).absolute()
    name = folder.name.replace("_", "-") if name is None else name
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*", name) or keyword.iskeyword(package):
        raise fail("name", name, "an app's name has letters, digits and single dashes, and begins with a letter")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise fail("folder", str(folder), "exists already and is not an empty folder")
    texts = {
        folder / "pyproject.toml": _text("pyproject.toml", name, package),
        folder / "README.md": _text("README.md", name, package),
        folder / "LICENSE": _text("LICENSE", name, package),
        folder / package / "__init__.py": f'"""The app {name}."""\n',
    }
    texts |= {folder / package / file: _text(file, name, package) for file in _IN_PACKAGE}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _text(file: str, name: str, package: str) -> str:
    text = (_TEMPLATE / f"{file}.txt").read_text(encoding="utf-8")
    return text.replace("@name@", name).replace("@package@", package)
