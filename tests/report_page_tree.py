"""Parses the page of a report into elements, for tests."""

from __future__ import annotations

import dataclasses
import html.parser
from collections.abc import Callable
from typing import Any

from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.report.page import render_page

_VOID = {"meta", "br", "path", "rect", "line", "input"}


@dataclasses.dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = dataclasses.field(default_factory=list)

    def all(self, matches: Callable[[Element], bool]) -> list[Element]:
        found = [self] if matches(self) else []
        children = [child for child in self.children if isinstance(child, Element)]
        return found + [each for child in children for each in child.all(matches)]

    def of_class(self, name: str) -> list[Element]:
        return self.all(lambda each: name in each.attributes.get("class", "").split())

    def of_tag(self, tag: str) -> list[Element]:
        return self.all(lambda each: each.tag == tag)

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(parts).split())


class Tree(html.parser.HTMLParser):
    """Builds the tree; refuses tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(page)
        assert self._open == [self.root], "not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def page_of(
    plan: Plan | GraphPlan, made_with: dict[str, str] | None = None, **others: Any
) -> Element:
    """Renders a plan, or a plan of one graph; `others` are arguments of `render_page`."""
    if isinstance(plan, GraphPlan):
        plan = Plan((plan,), made_with=made_with or {})
    return Tree(render_page(plan, **{"title": "A network", **others})).root


def labels_of(element: Element) -> list[str]:
    """The labels of values in an element: measured, modelled and so on."""
    return [each.text for each in element.of_class("label")]


def cards_of(page: Element) -> dict[str, Element]:
    """The totals of a page, by name."""
    return {each.of_class("name")[0].text: each for each in page.of_class("card")}


def texts_of(page: Element, name: str) -> list[str]:
    """The texts of all elements of a class."""
    return [each.text for each in page.of_class(name)]


def rows_of(table: Element) -> list[Element]:
    """The rows of a table, without its heading."""
    return table.of_tag("tbody")[0].of_tag("tr")
