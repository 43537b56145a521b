"""The licences of everything that each extra installs, from the metadata of the installed packages.

`python -m tests.faults.licences > docs/licences.md` writes the page; the test compares it with what is installed and
refuses a licence that is not in `ALLOWED`.
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("", "sim", "flower", "ray", "board", "track", "parquet", "docs", "dev")
ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",  # files of theirs that one changes stay open; using them asks nothing of us
    "PSF-2.0",
    "Public Domain",
    "Python-2.0",
    "Unlicense",
    "Zlib",
}
"""Licences under which a package may be a dependency: none asks anything of code that imports it."""
SAID = {
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache-2.0 License": "Apache-2.0",
    "BSD 2-Clause": "BSD-2-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "PSF": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
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
    todo = [_needs("fedstale", {extra}, only_extra=bool(extra))]
    while todo:
        for name, extras in todo.pop():
            key = f"{name}[{','.join(sorted(extras))}]"
            if key in found or name == "fedstale":
                continue
            try:
                found[key] = distribution(name)
            except PackageNotFoundError:  # for another system or Python
                continue
            todo.append(_needs(name, extras))
    packages = {plain(one.metadata["Name"]): one for one in found.values()}
    return [packages[name] for name in sorted(packages)]


def _needs(name: str, extras: set[str], *, only_extra: bool = False) -> list[tuple[str, set[str]]]:
    needed = []
    for text in distribution(name).requires or ():
        one = Requirement(text)
        plain_ok = one.marker is None or one.marker.evaluate({"extra": ""})
        if (plain_ok and not only_extra) or (
            not plain_ok and one.marker is not None and any(one.marker.evaluate({"extra": extra}) for extra in extras)
        ):
            needed.append((plain(one.name), set(one.extras)))
    return needed


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
