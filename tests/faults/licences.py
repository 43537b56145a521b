"""The licences of everything that each extra installs, from the metadata of the installed packages.

`python -m tests.faults.licences > docs/licences.md` writes the page; the test compares it with what is installed and
refuses a licence that is not in `ALLOWED`. pip-licenses would do what `licence` below does in ten lines, no more:
it lists what is installed, not what an extra needs; "MIT AND GPL-3.0-only" is one name for it; and `--allow-only` lets
a package pass if one of its classifiers is allowed, docutils with its GPL among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("", "sim", "flower", "ray", "board", "track", "parquet", "fast", "pandas", "docs", "dev")
ALLOWED = {
    *("0BSD", "BSD", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MIT-CMU"),
    *("Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSL-1.0", "PSF-2.0", "Zlib"),
    *("CC0-1.0", "Public Domain"),
    "MPL-2.0",  # files of theirs that one changes stay open; using them asks nothing of us
}
"""Licences under which a package may be a dependency: none asks anything of code that imports it."""
SAID = {
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""What packages write in words, by its SPDX name."""
READ = {
    # Its metadata add the GPL, which COPYING.rst gives for one file only, tools/editors/emacs/rst.el: not in the wheel.
    "docutils": "Public Domain AND BSD-2-Clause",
}
"""Packages whose metadata say something else than their own licence files do."""


def closure(extra: str) -> list[Distribution]:
    """Every installed package that fedstale with this extra needs, in the order of their names."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    todo = [(name, wanted) for name, wanted in _needs("fedstale", extra) if name != "fedstale"]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another system or Python
            continue
        todo += _needs(name, wanted)
        todo += _needs(name, "") if wanted else []
    return [found[name] for name in sorted(found)]


def _needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """What a package asks for (name, extra) because of one of its extras; because of none, if that is empty."""
    for one in map(Requirement, distribution(name).requires or ()):
        always = one.marker is None or one.marker.evaluate({"extra": ""})
        if always if not extra else not always and one.marker and one.marker.evaluate({"extra": extra}):
            yield from ((plain(one.name), wanted) for wanted in one.extras or ("",))


def plain(name: str) -> str:
    """The normal form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> str:
    """The package's licence as an SPDX name where its metadata can be read as one."""
    about = package.metadata
    if plain(about["Name"]) in READ:
        return READ[plain(about["Name"])]
    if expressions := about.get_all("License-Expression"):
        return str(expressions[0])
    first = str((about.get_all("License") or [""])[0]).strip().split("\n")[0].strip().strip('"')
    if first in SAID or first in ALLOWED:
        return SAID.get(first, first)
    said = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    return " AND ".join(SAID.get(one, one) for one in said if one != "OSI Approved") or first or "not stated"


def allowed(expression: str) -> bool:
    """Whether an SPDX expression can be met with allowed licences: one side of an OR, every part of an AND."""
    if expression in ALLOWED:
        return True
    sides = re.split(r"\s+(?:OR|or)\s+", expression.strip("()"))
    parts = [re.split(r"\s+(?:AND|and)\s+|/", side.strip("() ")) for side in sides]
    return any(all(part.strip("() ") in ALLOWED for part in side) for side in parts)


def page() -> str:
    """The page docs/licences.md."""
    lines = [
        "# Licences of the dependencies",
        "",
        "Written by `python -m tests.faults.licences` from the metadata of the installed packages (the versions of",
        "`constraints.txt`), with everything that they need in turn. fedstale itself is under Apache-2.0. Nothing of",
        "this is shipped with fedstale; pip fetches it. A test refuses a dependency whose licence is not in its list",
        "of permissive ones.",
        "",
    ]
    seen: set[str] = set()
    for extra in EXTRAS:
        packages = [one for one in closure(extra) if plain(one.metadata["Name"]) not in seen]
        seen |= {plain(one.metadata["Name"]) for one in packages}
        more = f"`fedstale[{extra}]`: what it adds to the above" if extra else "`fedstale`: always installed"
        lines += [f"## {more}", "", "| package | version | licence |", "|---|---|---|"]
        lines += [f"| {one.metadata['Name']} | {one.version} | {licence(one)} |" for one in packages]
        lines += ["" if packages else "| (nothing more) | | |\n"]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
