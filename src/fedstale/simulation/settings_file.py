"""Settings as a TOML file that says what each of them means."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ..checks import InvalidInput
from .settings import Settings, make_settings


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; one that cannot be read gives one line that says why."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except RecursionError:
        raise InvalidInput(f"{path} cannot be read as TOML: it is nested too deeply") from None
    except (OSError, ValueError) as error:  # a number of too many digits is a plain ValueError
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from None


def from_toml(path: Path, **changes: Any) -> Settings:
    """Read settings from a TOML file; `changes` win over what stands there."""
    found = read_toml(path)
    try:
        return make_settings(**{**found, **changes})
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def to_toml(settings: Settings) -> str:
    """Write settings as TOML, each with what it means; what is not set stays out."""
    import tomli_w

    lines = ["# Settings of a fedstale run: fedstale run THIS-FILE"]
    by_kind = sorted(Settings.model_fields.items(), key=lambda item: isinstance(getattr(settings, item[0]), dict))
    for name, field in by_kind:  # tables last: what follows a table's heading would belong to it
        value = getattr(settings, name)
        if value is None or value == {}:
            continue
        lines.append(f"# {field.description}")
        lines.append(tomli_w.dumps({name: value}).rstrip())
    return "\n".join(lines) + "\n"
