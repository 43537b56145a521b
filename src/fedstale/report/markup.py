"""HTML and SVG by function: whatever is not made here is text, and text is escaped. There is no other way in."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Make an element.

    Parameters
    ----------
    name
        The element's name.
    children
        What stands inside: `Markup` as it is, lists of it, None for nothing; everything else becomes text.
    attributes
        `class_` and `aria_label` become class and aria-label; None and False leave one out, True gives its name alone.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{written}>") if name in _VOID else Markup(f"<{name}{written}>{text(*children)}</{name}>")


_VOID = ("meta", "link", "br")


def text(*children: object) -> Markup:
    """Children one after the other, escaped where they are not markup."""
    return Markup("".join(_child(child) for child in children))


def table(
    caption: object,
    headings: Iterable[object],
    rows: Iterable[Markup],
    numbers: Iterable[str] = (),
    **attributes: object,
) -> Markup:
    """A table with a caption and one row of headings, in a box that scrolls by itself where the screen is narrow.

    Parameters
    ----------
    caption, headings, rows
        What it is, what its columns are, and the rows.
    numbers
        The headings that stand over numbers.
    attributes
        Of the table.
    """
    right = set(numbers)
    columns = [tag("th", heading, scope="col", class_="n" if heading in right else None) for heading in headings]
    head = tag("thead", tag("tr", columns))
    whole = tag("table", tag("caption", caption), head, tag("tbody", list(rows)), **attributes)
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=plain(caption))


def plain(content: object) -> str:
    """The text of some content without its tags."""
    import re
    from html import unescape

    return unescape(re.sub(r"<[^>]*>", "", content)) if isinstance(content, Markup) else str(content)


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (list, tuple)):
        return "".join(_child(item) for item in child)
    return escape(str(child), quote=False)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
