"""Reading a report as a browser would, strictly: elements, attributes, text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, name: str) -> list[Element]:
        found = [self] if self.name == name else []
        for child in self.children:
            if isinstance(child, Element):
                found += child.all(name)
        return found

    def every(self) -> list[Element]:
        return [self, *(one for child in self.children if isinstance(child, Element) for one in child.every())]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(html: str) -> Element:
    """The document; elements that are not closed in order are an error."""
    assert html.startswith("<!doctype html>\n")
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def table(page: Element, caption: str) -> list[list[str]]:
    """The rows of the table whose caption begins like this, headings first."""
    for one in page.all("table"):
        if one.all("caption")[0].text.startswith(caption):
            return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in one.all("tr")]
    raise AssertionError(f"no table {caption!r}")
