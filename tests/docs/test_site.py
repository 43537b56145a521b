"""The documentation as a site: complete, without warnings, without a broken link, and nothing is fetched to read it."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tests.board import browser

from . import in_browser
from .blocks import PAGES, ROOT

DOCS = ROOT / "docs"
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


pytest.importorskip("torch")
pytest.importorskip("flwr")
sys.path.insert(0, str(DOCS))  # it is no package
generated: Any = import_module("generated")
class_pages: Any = import_module("class_pages")
MODULES = [module for package in generated.PACKAGES for module in generated.modules(package)]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    tokens = MarkdownIt("commonmark").parse(generated.expand(page.read_text(encoding="utf-8")))
    headings = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {slug("".join(child.content for child in heading.children or ())) for heading in headings}


def links(page: Path) -> Iterator[str]:
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                yield str(child.attrs.get("href") or child.attrs.get("src"))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    from urllib.parse import unquote

    for link in links(page):
        target, _, anchor = unquote(link).partition("#")
        if re.match(r"https?:|mailto:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(file), f"{page}: {link}: {file.name} has {sorted(anchors(file))}"


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Some β: heading!\n\n[a](missing.md) [b](#nowhere)\n\n| x |\n|---|\n| [c](gone.md) |\n")
    assert list(links(page)) == ["missing.md", "#nowhere", "gone.md"]
    assert anchors(page) == {"some-β-heading"}


def test_every_page_is_in_the_contents() -> None:
    """Sphinx warns of a page that no list of contents has; this says it without a build."""
    listed = set()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", generated.expand(page.read_text("utf-8")), re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {found.resolve() for entry in entries for found in page.parent.glob(f"{entry}.md")}
    pages = {page.resolve() for page in DOCS.rglob("*.md") if "_build" not in page.parts}
    assert pages - listed == {DOCS / "index.md"}
    assert listed <= pages


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    names = generated.public_names(module)
    assert names
    for name in names:
        thing = getattr(import_module(module), name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            assert inspect.getdoc(thing), f"{module}.{name}"


@pytest.mark.parametrize("package", list(generated.PACKAGES))
def test_every_package_has_its_page(package: str) -> None:
    page = generated.expand((DOCS / "reference/api" / f"{package.rpartition('.')[2]}.md").read_text(encoding="utf-8"))
    if package == "fedstale":
        for name in generated.public_names(package):
            assert name in page
        return
    for module in generated.modules(package):
        assert f".. automodule:: {module}\n" in page
        for name in class_pages.named(module)[0]:
            assert f"{name} <../classes/{module}.{name}>" in page
    module = import_module(package)
    for name in generated.public_names(package):
        thing = getattr(module, name)
        assert inspect.isclass(thing) or inspect.isroutine(thing) or f".. py:data:: {name}\n" in page, name


def test_every_picture_of_the_gallery_is_made_by_the_code_on_the_page() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(images/(gallery-[\w-]+\.png)\)", text))
    assert (
        shown == set(re.findall(r'savefig\("([\w-]+\.png)"', text)) == {p.name for p in DOCS.glob("images/gallery-*")}
    )
    assert all((DOCS / "images" / name).stat().st_size < 60_000 for name in shown)


def commands(name: str = "fedstale", command: Any = generated.command) -> Iterator[tuple[str, Any]]:
    """Every command of the command line that does something, with its full name."""
    if not hasattr(command, "commands"):
        yield name, command
    for word, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {word}", inner)


def test_every_command_and_every_parameter_says_what_it_is() -> None:
    assert {"fedstale compare", "fedstale run", "fedstale runs show", "fedstale flower new"} <= dict(commands()).keys()
    for name, command in commands():
        assert command.help, name
        for parameter in command.params:
            if parameter.param_type_name == "argument":  # described in the text of its command
                for word in re.findall(r"\w+", parameter.metavar or parameter.name.upper()):
                    assert re.search(rf"\b{word}\b", command.help), f"{name}: {word}"
            else:
                assert parameter.help, f"{name}: {parameter.name}"


def test_every_setting_says_what_it_is() -> None:
    from fedstale.simulation import Settings

    page = generated.settings()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"| `{name}` |" in page
    assert "| `p_min` | number | `0.1` | > 0, ≤ 1 |" in page
    assert '`"client"`, `"sample"`' in page


def test_every_registered_name_is_listed() -> None:
    from fedstale import beta, participation, rules, tasks

    page = generated.registries()
    for registry in (rules.RULES, participation.PROCESSES, participation.SELECTIONS, participation.ESTIMATORS):
        for name in registry:
            assert f"| `{name}` |" in page
    for name in (*beta.NAMES, *tasks.names()):
        assert f"| `{name}` |" in page
    empty = [line for line in page.splitlines() if re.match(r"\| `[^`]+` \|\s+\|", line) and "iid" not in line]
    assert not empty, "a name without a word about what it does"


def test_the_documentation_imports_nothing_from_elsewhere() -> None:
    for file in [*DOCS.glob("*.py"), *(DOCS / "_static").glob("*")]:
        assert "http" not in file.read_text(encoding="utf-8"), file


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    described = inventory(tmp_path / "objects.inv")
    for name, command in commands():
        for flag in (flag for parameter in command.params for flag in parameter.opts):
            assert f"{name.replace(' ', '-')}.{flag}" in described, f"{name} {flag}"
    for module in MODULES:
        for name in generated.public_names(module):
            thing = getattr(import_module(module), name)
            home = generated.home(thing) if module == "fedstale" else module
            assert f"{home}.{name}" in described or name == "__version__", f"{module}.{name}"
    only_exported(tmp_path / "objects.inv")

    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:script|img|link|iframe|source|video)\b[^>]*>", text):
            assert not re.search(r"(?:src|href)=[\"'](?:https?:)?//", tag), f"{page.name}: {tag}"
    every_class_has_its_page(tmp_path)
    mathematics_is_drawn_here(tmp_path)
    the_search_knows(tmp_path, "notebook", "pandas", "custom", "model", "gpu", "simulator")
    if not browser.install():
        in_browser.check(tmp_path)
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def every_class_has_its_page(site: Path) -> None:
    """With an example, a link to its source, and buttons that copy."""
    for module in MODULES:
        for name in class_pages.named(module)[0]:
            page = (site / "reference" / "classes" / f"{module}.{name}.html").read_text(encoding="utf-8")
            assert "[source]" in page or issubclass(getattr(import_module(module), name), Exception), name
            assert "&gt;&gt;&gt; " in page, name
            assert "copybutton.js" in page


def mathematics_is_drawn_here(site: Path) -> None:
    """MathJax lies beside the pages, and those with a formula load it from there."""
    assert (site / "_static" / "tex-svg.js").stat().st_size > 1_000_000
    for name in ("methods", "paper", "foundation", "howto/which-rule", "reference/classes/fedstale.rules.FedStale"):
        page = (site / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(r'<script [^>]*src="[./]*_static/tex-svg.js', page), name
        assert 'class="math notranslate' in page


def the_search_knows(site: Path, *words: str) -> None:
    """Sphinx's index has the words that people look for; they are stored by their stems."""
    from sphinx.search.en import SearchEnglish

    text = (site / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))["terms"]
    for word in words:
        assert SearchEnglish({}).stem(word) in terms, word


def only_exported(file: Path) -> None:
    """Refuse a described name that no package exports; the paper's modules list none, and are described whole."""
    modules = inventory(file, "py:module")
    things = [(module, name) for module in modules for name in generated.public_names(module)]
    exported = {f"{module}.{name}" for module, name in things} | {name for name in modules if ".paper." in name}
    for module, name in things:  # autodoc also lists where a thing was defined
        thing = getattr(import_module(module), name)
        exported.add(f"{getattr(thing, '__module__', module)}.{name}")
    for name in inventory(file, "py:") - modules:
        assert any(name == known or name.startswith(f"{known}.") for known in exported), name


def inventory(file: Path, *kinds: str) -> set[str]:
    """The names that the site describes."""
    packed = file.read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ")[0] for line in lines if line.split(" ")[1].startswith(kinds or ("py:", "std:cmdoption"))}
