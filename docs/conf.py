"""How the documentation is built: Sphinx, MyST for Markdown, furo; nothing is fetched, now or by a reader's browser."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "src"))

import class_pages  # noqa: E402
import generated  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx.addnodes import pending_xref  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.environment import BuildEnvironment  # noqa: E402

import fedstale  # noqa: E402

project = "fedstale"
author = "the fedstale authors"
copyright = "the fedstale authors, Apache-2.0"  # Sphinx's name for it
release = version = fedstale.__version__
language = "en"
smartquotes = False  # "auto" is to be copied as it stands

extensions = [
    *("myst_parser", "sphinx_click", "sphinx_copybutton"),
    *(f"sphinx.ext.{name}" for name in ("autodoc", "napoleon", "viewcode", "mathjax")),
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # the pages of classes are written in the latter
exclude_patterns = ["_build"]
nitpicky = True
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist", "attrs_block", "dollarmath", "amsmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
napoleon_google_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fedstale {release}"
html_static_path = ["_static"]
html_css_files = ["fedstale.css"]
html_copy_source = False
mathjax_path = "tex-svg.js"  # of the package sphinx-mathjax-offline: one file, without fonts, beside the pages
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .go"
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_theme_options: dict[str, Any] = {"navigation_with_keys": True}


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname.startswith("reference/classes/"):
        return
    text = source[0] if source[0].lstrip().startswith(("#", "<!--", "```")) else f"# {_title(docname)}\n\n{source[0]}"
    # Commands stand without a prompt, which the lexer for sessions would take for output.
    source[0] = re.sub(r"^```console$", "```bash", generated.expand(text), flags=re.MULTILINE)
    source[0] = re.sub(r"^```math$", "```{math}", source[0], flags=re.MULTILINE)  # as GitHub has it


def _title(docname: str) -> str:
    """The title of a page that a command wrote without one, such as the table of claims of a task."""
    return docname.rpartition("/")[2].replace("-", ": ", 1).capitalize()


def _real_names(app: Sphinx) -> None:
    """Load what packages load on demand: autodoc looks at what is there.

    A function that shows every setting in an editor is described as it is written, with **options: autodoc looks for
    the defaults in its source.
    """
    for package in generated.PACKAGES:
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            setattr(module, name, thing)
            if inspect.isfunction(thing):
                vars(thing).pop("__signature__", None)


def _docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Let docstrings write mathematics as the paper does: a bar is a bar, as in |S|, and no substitution."""
    if what == "module":
        lines[:] = _module_docstring(lines)
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[number] = "".join(p if p.startswith("`") else re.sub(r"(?<!\\)([|])", r"\\\1", p) for p in parts)


def _signature(app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returns: str) -> Any:
    """Write a default that has no literal (a factory, a function) as …, so that the rest can be read."""
    while signature and re.search(r"<[^<>]*>", signature):
        signature = re.sub(r"<[^<>]*>", "...", signature)
    return signature, returns


def _example(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Put a rule's formula after its first words, and a class's example before its members."""
    if what == "class" and name.startswith("fedstale.rules.") and (formula := _formula(thing)):
        first = lines.index("") if "" in lines else len(lines)
        lines[first:first] = ["", ".. math::", "", f"   {formula}", ""]
    package, _, short = name.rpartition(".")
    if what in ("class", "exception") and (session := class_pages.examples(package).get(short)):
        lines += ["", "Examples", "--------", *session.splitlines(), ""]


def _formula(rule: Any) -> str:
    """The formula of a rule, where it is the rule that the table of methods means."""
    name = str(vars(rule).get("name", ""))
    found = class_pages.formulas().get(name, "")
    return found if not found or "leftarrow" in found else rf"\Delta = {found}"


def _mathjax(app: Sphinx) -> None:
    """Put MathJax beside the pages: its package would put all of its 24 MB there."""
    package = Path(import_module("sphinx-mathjax-offline").__file__ or "").parent
    target = Path(app.outdir) / "_static" / mathjax_path
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(package / "static" / "mathjax" / mathjax_path, target)


_OWN: dict[str, list[str]] = {}


def _keep(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Keep what an attribute's docstring says: napoleon would read the words before a colon as its type."""
    if what in ("attribute", "property", "data"):
        _OWN[name] = list(lines)


def _restore(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if name in _OWN:
        lines[:] = _OWN.pop(name)


def _module_docstring(lines: list[str]) -> list[str]:
    """The prose of a module's docstring: the examples some end with are on the pages, and tested there."""
    prose = []
    for line in lines:
        if re.match(r"(    \S|from |with |strategy = |name = |grid = |\[)", line):
            break
        prose.append(line)
    return prose


def _options(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Leave out the defaults of switches that are off and of options that are empty; a folder is its name."""
    kept = (line for line in lines if line.strip() not in (":default: ``False``", ":default: ``''``"))
    lines[:] = [re.sub(r"\w+Path\('(.*)'\)", r"\1", line) for line in kept]


def _missing(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Element | None:
    """Resolve a name by where it is defined to the page of its public name; leave names of other projects as text.

    What remains is a name of fedstale that no page describes: that is a warning.
    """
    if node.get("refdomain") != "py":
        return None
    target = str(node.get("reftarget", ""))
    public = PUBLIC.get(target)
    if public is None and "." in target:
        owner, _, member = target.rpartition(".")
        public = f"{PUBLIC[owner]}.{member}" if owner in PUBLIC else None
    if public is not None and public != target:
        domain = env.domains.python_domain
        found = domain.resolve_xref(env, node["refdoc"], app.builder, "obj", public, node, content)
        if found is not None:
            return found
    foreign = not target.startswith("fedstale.")
    return content if foreign or _private(target) else None


def _private(target: str) -> bool:
    """Whether a name of fedstale belongs to no public list: types that appear in signatures only."""
    name = target.rpartition(".")[2]
    return not any(target.startswith(package + ".") and name in NAMES[package] for package in NAMES)


NAMES = {package: generated.public_names(package) for package in generated.PACKAGES}
PUBLIC: dict[str, str] = {}
"""From where a public thing is defined to the name under which it is described."""
for _package in reversed(generated.PACKAGES):
    for _name in NAMES[_package]:
        _thing = getattr(import_module(_package), _name)
        if inspect.isclass(_thing) or inspect.isfunction(_thing):
            PUBLIC.setdefault(f"{_thing.__module__}.{_thing.__qualname__}", f"{_package}.{_name}")
            PUBLIC.setdefault(f"fedstale.{_name}", f"{_package}.{_name}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the above."""
    class_pages.write()
    app.connect("builder-inited", _real_names)
    app.connect("builder-inited", _mathjax)
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring, priority=100)
    app.connect("autodoc-process-docstring", _keep, priority=200)
    app.connect("autodoc-process-docstring", _example, priority=300)
    app.connect("autodoc-process-docstring", _restore, priority=900)
    app.connect("autodoc-process-signature", _signature)
    app.connect("sphinx-click-process-options", _options)
    app.connect("missing-reference", _missing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
