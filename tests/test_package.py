"""What `import fedstale` costs and brings."""

from __future__ import annotations

import subprocess
import sys

import fedstale as fs


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_import_brings_numpy_and_nothing_else() -> None:
    """Heavy packages are imported when they are asked for; this is what keeps the import under 0.3 s."""
    extra = loaded("import fedstale") - loaded("import numpy") - set(sys.stdlib_module_names)
    assert {name for name in extra if not name.startswith("_")} == {"fedstale"}


def test_public_names_exist() -> None:
    assert all(hasattr(fs, name) for name in fs.__all__)
    assert len(set(fs.__all__)) == len(fs.__all__)
