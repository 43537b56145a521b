"""What no file of the project may do: run what data says, or read what can run something.

`found(path)` walks the syntax tree of a file, so that neither a comment nor an alias hides anything:
`from pickle import loads as x` is found as well as `pickle.loads`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "examples", "benchmarks", "docs")

MODULES = {
    "pickle": "unpickling runs what the file says",
    "cPickle": "unpickling runs what the file says",
    "_pickle": "unpickling runs what the file says",
    "dill": "unpickling runs what the file says",
    "cloudpickle": "unpickling runs what the file says",
    "shelve": "a shelf is pickled",
    "marshal": "no format for data from outside",
    "joblib": "joblib.load unpickles",
    "telnetlib": "no encryption",
    "ftplib": "no encryption",
    "xmlrpc": "XML bombs",
}
CALLS = {
    "eval": "runs a text",
    "exec": "runs a text",
    "compile": "prepares a text to be run",
    "__import__": "imports what a text says",
    "os.system": "a shell",
    "os.popen": "a shell",
    "os.execl": "another program",
    "os.execv": "another program",
    "subprocess.getoutput": "a shell",
    "subprocess.getstatusoutput": "a shell",
    "tempfile.mktemp": "somebody else may make the file first",
    "yaml.load": "may make objects: yaml.safe_load",
    "yaml.unsafe_load": "makes objects",
    "numpy.loads": "unpickles",
    "torch.hub.load": "runs a repository",
    "ssl._create_unverified_context": "no verification",
    "sqlite3.enable_load_extension": "loads a library",
    "pandas.read_pickle": "unpickles",
    "xml.etree.ElementTree.parse": "XML bombs",
    "xml.etree.ElementTree.fromstring": "XML bombs",
}
METHODS = {
    "extractall": "members may lead outside: read them by name",
    "extract": "members may lead outside: read them by name",
    "unpack_archive": "members may lead outside: read them by name",
    "enable_load_extension": "loads a library",
}


def files() -> list[Path]:
    """Every Python file that is shipped or run by hand; the templates of the Flower app among them."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "_build" not in path.parts]
    return sorted([*found, *(ROOT / "src").rglob("*.py.txt")])


def found(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) for a file."""
    text = path.read_text(encoding="utf-8").replace("@package@", "package")
    yield from wrong(ast.parse(text, str(path)), shipped=(ROOT / "src") in path.parents)


def wrong(tree: ast.Module, *, shipped: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (line, what is wrong) of a syntax tree; `shipped` code may not validate with `assert` either."""
    names = _imports(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for module in modules:
                if (reason := MODULES.get(module.partition(".")[0])) and not getattr(node, "level", 0):
                    yield node.lineno, f"{module}: {reason}"
        elif isinstance(node, ast.Call):
            yield from _call(node, names)
        elif shipped and isinstance(node, ast.Assert) and not _narrows(node):
            yield node.lineno, "assert: it vanishes with python -O; raise an error, or narrow a type"


def _imports(tree: ast.Module) -> dict[str, str]:
    """What each name of the file stands for: {"np": "numpy", "loads": "pickle.loads"}."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The full name of what is called, as far as it can be seen; "" where it cannot."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value, names)
        return f"{left}.{node.attr}" if left else ""
    return ""


def _call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    name = _dotted(node.func, names).removeprefix("builtins.")
    given = {word.arg: word.value for word in node.keywords}
    if name in CALLS:
        yield node.lineno, f"{name}: {CALLS[name]}"
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method in METHODS and not (method == "extractall" and _is(given.get("filter"), "data")):
        yield node.lineno, f"{method}: {METHODS[method]}"
    if name.startswith(("subprocess.", "asyncio.create_subprocess_shell")) and not _is(given.get("shell"), False, None):
        yield node.lineno, f"{name}(shell=…): a shell"
    if name == "asyncio.create_subprocess_shell":
        yield node.lineno, f"{name}: a shell"
    if name in ("numpy.load", "numpy.lib.format.read_array") and not _is(given.get("allow_pickle"), False, None):
        yield node.lineno, f"{name}(allow_pickle=…): unpickles"
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        yield node.lineno, "torch.load without weights_only=True: unpickles"
    if "verify" in given and _is(given["verify"], False):
        yield node.lineno, f"{name}(verify=False): no verification"
    if name == "hashlib.new" or (
        name in ("hashlib.md5", "hashlib.sha1") and not _is(given.get("usedforsecurity"), False)
    ):
        yield node.lineno, f"{name}: a hash that can be forged, or that data chooses"


def _is(node: ast.expr | None, *values: object) -> bool:
    """Whether an argument is one of these constants; None: whether it is absent."""
    if node is None:
        return None in values
    return isinstance(node, ast.Constant) and any(node.value is value or node.value == value for value in values)


def _narrows(node: ast.Assert) -> bool:
    """Whether an assertion only tells the type checker something that the code makes true: `assert x is not None`."""
    test = node.test
    if isinstance(test, ast.Compare):
        last = test.comparators[-1]
        return isinstance(test.ops[0], ast.IsNot) and isinstance(last, ast.Constant) and last.value is None
    return isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "isinstance"
