"""The site: every page, every file that a page links to, and a report of all links.

Pages are `docs/**/*.md` and `*.md` at the root of the repository. A link to another file of the
repository, or to a folder, leads to a page that shows its content.
"""

from __future__ import annotations

import html
import os
import posixpath
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from string import Template
from urllib.parse import unquote, urlsplit

from celu.version import __version__
from handbook.notebook import render
from handbook.page import Page

_COMMENT = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
# The navigation of every page; other pages are linked from these.
NAVIGATION = (
    ("docs/index.md", "celu"),
    ("docs/quickstart.md", "Quick start"),
    ("docs/from-csv.md", "From a CSV to a validated model"),
    ("docs/concepts.md", "Concepts"),
    ("docs/two-companies.md", "Two companies"),
    ("docs/two-companies-guest.md", "— guest"),
    ("docs/two-companies-host.md", "— host"),
    ("docs/data.md", "Data"),
    ("docs/python.md", "Python API"),
    ("docs/notebook.ipynb", "— notebook"),
    ("docs/models.md", "Built-in models"),
    ("docs/own-model.md", "Your own model"),
    ("docs/choosing.md", "Choosing settings"),
    ("docs/baseline.md", "What federation adds"),
    ("docs/serving.md", "Use the model"),
    ("docs/operations.md", "Operations"),
    ("docs/scaling.md", "Scaling"),
    ("docs/deployment.md", "Deployment"),
    ("docs/gateway.md", "Gateways"),
    ("docs/security.md", "Security"),
    ("docs/privacy.md", "Privacy"),
    ("docs/stability.md", "Stability"),
    ("docs/licences.md", "Dependencies and licences"),
    ("docs/results.md", "Results"),
    ("docs/paper.md", "The paper, reproduced"),
    ("docs/method.md", "Correcting stale derivatives"),
    ("docs/reference.md", "Reference"),
    ("ARCHITECTURE.md", "Architecture"),
    ("CONTRIBUTING.md", "Contributing"),
    ("CHANGELOG.md", "Changelog"),
)
_TEMPLATE = Template(Path(__file__).with_name("template.html").read_text(encoding="utf-8"))
_IMAGES = (".svg", ".png")
_MAX_SHOWN_BYTES = 200_000  # of a file that a page links to


@dataclass
class Report:
    """Counts of pages and links, and the external and dead links."""

    num_pages: int = 0
    num_links: int = 0
    external: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)


def build(root: Path, out: Path) -> Report:
    """Build the site of the repository at `root` into the folder `out`, replacing it."""
    pages = {page.path: page for page in _read(root)}
    report = Report(num_pages=len(pages))
    linked: set[PurePosixPath] = set()
    for page in pages.values():
        for link, line in page.links():
            report.num_links += 1
            if urlsplit(link).scheme:
                report.external.add(link)
                continue
            problem = _problem(root, pages, page, link)
            if problem is not None:
                report.dead.append(f"{page.path}:{line}: {link}: {problem}")
            elif (target := _target(page, link)) not in pages:
                linked.add(target)
    shutil.rmtree(out, ignore_errors=True)
    for page in pages.values():

        def resolve(link: str, page: Page = page) -> str:
            return link if urlsplit(link).scheme else _address(page, link)

        _write(out, page.path, page.title, page.html(resolve))
    for folder in [target for target in linked if (root / target).is_dir()]:
        linked |= {folder / name for name in _files(root / folder)} - pages.keys()
    for target in linked:
        if target.suffix in _IMAGES:
            file = out / _file(target)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / target, file)
        else:
            _write(out, target, target.name, _render_file(root / target, target))
    return report


def _read(root: Path) -> list[Page]:
    paths = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    return [
        Page(
            PurePosixPath(path.relative_to(root)),
            _COMMENT.sub("", path.read_text(encoding="utf-8")),
        )
        for path in paths
    ]


def _target(page: Page, link: str) -> PurePosixPath:
    """The path in the repository that a link points to; the page itself for an anchor."""
    path = unquote(urlsplit(link).path)
    if not path:
        return page.path
    return PurePosixPath(posixpath.normpath(page.path.parent / path))


def _problem(root: Path, pages: dict[PurePosixPath, Page], page: Page, link: str) -> str | None:
    target, anchor = _target(page, link), urlsplit(link).fragment
    if target.is_absolute() or ".." in target.parts or not (root / target).exists():
        return "no such file in the repository"
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{target} has no heading with this anchor"
    return None


def _file(path: PurePosixPath) -> PurePosixPath:
    """The path of a page or file in the site, whose root is docs/."""
    if path.parts[0] == "docs":
        path = PurePosixPath(*path.parts[1:])
    else:
        path = PurePosixPath("repository", path)
    if path.suffix in _IMAGES:
        return path
    if not path.suffix:  # a folder; a page may have the same name
        return path / "index.html"
    return (
        path.with_suffix(".html") if path.suffix == ".md" else path.with_name(f"{path.name}.html")
    )


def _address(page: Page, link: str) -> str:
    """A link relative to the page in the site."""
    fragment = urlsplit(link).fragment
    here = _file(page.path)
    there = os.path.relpath(_file(_target(page, link)), here.parent)
    return f"{there}#{fragment}" if fragment else there


def _item(page: PurePosixPath, to: PurePosixPath, text: str, *, current: bool = False) -> str:
    """A list item of a page that links to another one."""
    address = os.path.relpath(_file(to), _file(page).parent)
    attribute = ' aria-current="page"' if current else ""
    return f'<li><a href="{address}"{attribute}>{html.escape(text)}</a></li>'


def _files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))


def _render_file(path: Path, target: PurePosixPath) -> str:
    """The content of a file or folder of the repository as the body of a page."""
    heading = f"<h1><code>{html.escape(str(target))}</code></h1>"
    if path.is_dir():
        links = "".join(_item(target, target / name, name) for name in _files(path))
        return f"{heading}<ul>{links}</ul>"
    if path.suffix == ".ipynb":
        return render(path.read_text(encoding="utf-8"))
    text = path.read_bytes()[:_MAX_SHOWN_BYTES].decode("utf-8", "replace")
    return f"{heading}<pre><code>{html.escape(text)}</code></pre>"


def _write(out: Path, path: PurePosixPath, title: str, body: str) -> None:
    pages = [(PurePosixPath(name), text) for name, text in NAVIGATION]
    items = [_item(path, page, text, current=page == path) for page, text in pages]
    file = out / _file(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = _TEMPLATE.substitute(
        title=html.escape(title),
        navigation="\n".join(items),
        body=body,
        version=__version__,
        source=html.escape(str(path)),
    )
    with file.open("x", encoding="utf-8") as new:  # "x": two pages must not have the same path
        new.write(text)
