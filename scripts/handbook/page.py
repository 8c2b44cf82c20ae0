"""One page: parses Markdown, gives its headings anchors, and renders HTML.

Anchors are the ones that repository hosts generate, so a link works there and in the site.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.token import Token

Link = tuple[str, int]  # target, and line of the page


class Page:
    """A Markdown page; `path` is relative to the repository."""

    def __init__(self, path: PurePosixPath, text: str) -> None:
        self.path = path
        self._markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
        self._tokens = self._markdown.parse(text)
        self.anchors: set[str] = set()
        self.title = path.name
        self._add_anchors()

    def _add_anchors(self) -> None:
        seen: Counter[str] = Counter()
        for token, inline in zip(self._tokens, self._tokens[1:], strict=False):
            if token.type != "heading_open":
                continue
            heading = "".join(part.content for part in inline.children or [])
            slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            anchor = f"{slug}-{seen[slug]}" if seen[slug] else slug
            seen[slug] += 1
            token.attrSet("id", anchor)
            self.anchors.add(anchor)
            if token.tag == "h1":
                self.title = heading

    def links(self) -> Iterator[Link]:
        """The targets of all links and images, with their lines."""
        for token, attribute, line in self._references():
            yield str(token.attrs[attribute]), line

    def html(self, resolve: Callable[[str], str]) -> str:
        """The page's body, with each link replaced by `resolve(link)`."""
        for token, attribute, _ in self._references():
            token.attrSet(attribute, resolve(str(token.attrs[attribute])))
        body: str = self._markdown.renderer.render(self._tokens, self._markdown.options, {})
        return body.replace("<table>", '<div class="wide"><table>').replace(
            "</table>", "</table></div>"
        )

    def _references(self) -> Iterator[tuple[Token, str, int]]:
        for block in self._tokens:
            line = block.map[0] + 1 if block.map else 0
            for token in block.children or []:
                for attribute in ("href", "src"):
                    if attribute in token.attrs:
                        yield token, attribute, line
