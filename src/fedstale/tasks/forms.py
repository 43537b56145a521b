"""Data files in whatever form they come, as the one form that is kept: one hash tells whether the content is right.

The same table is handed around with and without a line of headings, with "?" or nothing for what is missing, with 63 or
63.0. A reader here takes the bytes of any of these and returns the table as text; `sources` pins the hash of that text.
"""

from __future__ import annotations

from collections.abc import Callable

from .download import SourceFailed

_HEART_FEATURES = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
)
"""The thirteen features of the heart disease data, in the order of its files; the fourteenth column is `target`."""
_WISDM_FEATURES = (
    *(f"{axis}{k}" for axis in "XYZ" for k in range(10)),
    *(f"{axis}{kind}" for kind in ("AVG", "PEAK", "ABSOLDEV", "STANDDEV") for axis in "XYZ"),
    "RESULTANT",
)
"""The 43 features of a window of WISDM, in the order of its file."""


def raw(data: bytes) -> bytes:
    """Return the file as it is."""
    return data


def heart(data: bytes) -> bytes:
    """Read a hospital's table, 14 numbers a line: UCI's `processed.*.data`, or the same with a line of headings."""
    lines = [line.split(",") for line in _text(data).splitlines() if line.strip()]
    if lines and lines[0][0].strip().lower() == "age":
        lines = lines[1:]
    return _table((*_HEART_FEATURES, "target"), [_numbers(line, 14) for line in lines])


def wisdm(data: bytes) -> bytes:
    """Read the windows of WISDM's transformed data (ARFF): a number, the user, 43 features and the activity."""
    text = _text(data)
    head, mark, body = text.partition("@data")
    if not mark:
        raise SourceFailed("it is no ARFF file: there is no @data")
    names = [line.split()[1].strip('"') for line in head.splitlines() if line.lower().startswith("@attribute")]
    if names[1:-1] != ["user", *_WISDM_FEATURES]:
        raise SourceFailed("its attributes are not those of WISDM's transformed data")
    lines = [line.split(",") for line in body.splitlines() if line.strip()]
    rows = [[*_numbers(line[1:-1], 44), line[-1].strip().strip('"')] for line in lines]
    return _table(("user", *_WISDM_FEATURES, "activity"), rows)


FORMS: dict[str, Callable[[bytes], bytes]] = {"raw": raw, "heart": heart, "wisdm": wisdm}


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SourceFailed("it is not a text file") from None


def _numbers(line: list[str], count: int) -> list[str]:
    if len(line) != count:
        raise SourceFailed(f"a line has {len(line)} values, expected {count}")
    try:
        return ["" if value.strip() in ("", "?") else f"{float(value):.10g}" for value in line]
    except ValueError:
        raise SourceFailed("a value is neither a number nor missing") from None


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> bytes:
    return "".join(",".join(row) + "\n" for row in (headings, *rows)).encode()
