"""Parses the page of a report into elements, for tests."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.report.page import render_page


class Element(ElementTree.Element):
    """An element of a page."""

    def of_class(self, name: str) -> list[Element]:
        return [each for each in self.iter() if name in each.get("class", "").split()]

    def of_tag(self, tag: str) -> list[Element]:
        return list(self.iter(tag))

    @property
    def words(self) -> str:
        """The text in it, with single spaces."""
        return " ".join(" ".join(self.itertext()).split())


def parse_page(page: str) -> Element:
    """Parses a page, which is well-formed XML too, without its style and its script."""
    builder = ElementTree.TreeBuilder(element_factory=Element)
    markup = re.sub("<(style|script)>.*?</", r"<\1></", page, flags=re.DOTALL)
    return ElementTree.fromstring(markup, ElementTree.XMLParser(target=builder))


def page_of(
    plan: Plan | GraphPlan, made_with: dict[str, str] | None = None, **others: Any
) -> Element:
    """Renders a plan, or a plan of one graph; `others` are arguments of `render_page`."""
    if isinstance(plan, GraphPlan):
        plan = Plan((plan,), made_with=made_with or {})
    return parse_page(render_page(plan, **{"title": "A network", **others}))


def labels_of(element: Element) -> list[str]:
    """The labels of values in an element: measured, modelled and so on."""
    return texts_of(element, "label")


def texts_of(page: Element, name: str) -> list[str]:
    """The texts of all elements of a class."""
    return [each.words for each in page.of_class(name)]


def rows_of(table: Element) -> list[str]:
    """The texts of the rows of a table, without its heading."""
    return [row.words for row in table.of_tag("tbody")[0].of_tag("tr")]
