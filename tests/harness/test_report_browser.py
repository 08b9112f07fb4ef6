"""The site in headless Chromium: it opens from disk without an error, fits both widths, sorts, filters and enlarges.

Chromium is the system's own (Debian: ``apt install chromium``); without it these tests are skipped.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_site import build

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (1280, 390)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH; on Debian: apt install chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("report"))[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to run as root
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that fails its test on any message in the console and on any request that leaves the disk."""
    context = browser.new_context(viewport={"width": WIDTHS[0], "height": 900})
    opened, trouble = context.new_page(), []
    opened.on("console", lambda message: trouble.append(message.text))
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("requestfailed", lambda request: trouble.append(request.url))
    opened.on("request", lambda request: None if request.url.startswith(("file:", "data:")) else trouble.append(request.url))
    yield opened
    context.close()
    assert trouble == []


def pages(site: Path) -> list[str]:
    """One of each kind, the widest tables, and what is not made."""
    names = ["index", "paper-ppd", "paper-specdec", "claims", "ledger", "experiments", "regenerate", "audit"]
    names += ["table-2", "table-10", "table-14", "table-20", "table-30", "figure-leviathan-2", "figure-optimized-1"]
    return [f"{name}.html" for name in names] + sorted(path.name for path in site.glob("experiment-*.html"))


def test_pages_open_without_error_and_fit_both_widths_and_schemes(site: Path, page: Any) -> None:
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0)"
    names = pages(site)
    assert len(names) == 17
    for name in names:
        page.goto((site / name).as_uri())
        assert page.evaluate("[...document.images].every((image) => !image.complete || image.naturalWidth > 0)"), name
        for width, scheme in zip(WIDTHS, ("light", "dark"), strict=True):
            page.set_viewport_size({"width": width, "height": 844})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
            assert (page.evaluate(shade) > 600) == (scheme == "light"), name


def test_columns_sort_up_and_down_with_what_is_missing_last(site: Path, page: Any) -> None:
    page.goto((site / "table-10.html").as_uri())
    keys = "(table) => [...table.tBodies[0].rows].map((row) => row.cells[3].dataset.sort)"
    table = page.locator("table.filterable")
    measured = table.locator("th button", has_text="measured")
    for expected in ("ascending", "descending", "ascending"):
        measured.click()
        assert table.locator("th").nth(3).get_attribute("aria-sort") == expected
        found = table.evaluate(keys)
        numbers = [float(key) for key in found if key != "none"]
        assert numbers == sorted(numbers, reverse=expected == "descending")
        assert found[len(numbers) :] == ["none"] * (len(found) - len(numbers))
        assert len(numbers) > 100
    table.locator("th button").first.click()
    heads = table.evaluate("(table) => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent)")
    assert heads[0].startswith("CNNDM")
    assert table.locator("th[aria-sort]").count() == 1


def test_the_ledger_filters_by_words(site: Path, page: Any) -> None:
    page.goto((site / "ledger.html").as_uri())
    page.locator("input[type=search]").fill("EnDe BELOW hardware")
    shown = page.evaluate(
        "[...document.querySelectorAll('tbody tr')].filter((row) => !row.hidden).map((row) => row.textContent)"
    )
    assert shown
    assert all(word in text for text in shown for word in ("EnDe", "below", "hardware"))
    assert f"{len(shown)} of " in page.locator(".filter").inner_text()


def test_figures_enlarge_and_close(site: Path, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((site / "figure-leviathan-2.html").as_uri())
    small = page.locator("a.zoom img").bounding_box()["width"]
    page.locator("a.zoom").click()
    assert page.locator("dialog img").bounding_box()["width"] > 2 * small
    page.locator("dialog button").click()
    page.locator("dialog").wait_for(state="detached")  # browsers tell of the closing in a task of its own
    assert page.url.endswith("figure-leviathan-2.html")


def test_a_claim_opens_where_a_table_points_to_it(site: Path, page: Any) -> None:
    page.goto((site / "table-10.html").as_uri())
    page.locator(".contradiction a").first.click()
    page.locator("details:target[open] table").wait_for()
    assert page.locator("details:target[open] table").first.is_visible()


def test_pages_print_on_paper(site: Path, page: Any) -> None:
    """Everything is visible: no scrolling box cuts a table, no generation stays closed, no navigation is printed."""
    page.goto((site / "table-10.html").as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert not page.locator("nav").is_visible()
    page.goto((site / next(name for name in pages(site) if name.startswith("experiment-") and "broken" not in name)).as_uri())
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every((one) => one.open)")
