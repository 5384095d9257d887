"""The documents hang together: the index has every page, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md", *DOCS.rglob("*.md"))
)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Targets within the checkout."""
    text = _CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What a link may name after `#`: headings, small, without punctuation, and with hyphens for spaces."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        found = (ROOT / page).parent / target if target else ROOT / page
        assert found.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(found), f"{page} links to {link}, which has no such heading"


def test_the_index_has_every_page() -> None:
    linked = {(DOCS / link.partition("#")[0]).resolve() for link in links(Path("docs/README.md"))}
    # What lies deeper has an index of its own: adr/README.md, clients.md.
    pages = {*DOCS.glob("*.md"), DOCS / "adr" / "README.md"}
    missing = sorted(str(path.relative_to(ROOT)) for path in pages - linked - {DOCS / "README.md"})
    assert not missing, f"link these from docs/README.md, with a line on what each is for: {missing}"
    assert (DOCS / "README.md").resolve() in {(ROOT / link).resolve() for link in links(Path("README.md"))}
