"""`python -m handbook`: regenerate the reference, build the site, fail on dead links."""

import sys
from pathlib import Path

from handbook.reference import update_pages
from handbook.site import build

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Update docs/reference.md and build into site/; return 1 if a link is dead."""
    for path in update_pages(ROOT / "docs"):
        print(f"regenerated {path.relative_to(ROOT)}: commit it")
    out = ROOT / "site"
    report = build(ROOT, out)
    for link in sorted(report.external):
        print(f"external, not checked: {link}")
    for dead in report.dead:
        print(f"dead: {dead}", file=sys.stderr)
    print(f"{report.num_pages} pages, {report.num_links} links, {len(report.dead)} dead")
    if not report.dead:
        print(f"open {out / 'index.html'}")
    return bool(report.dead)


if __name__ == "__main__":
    sys.exit(main())
