"""The page as readers see it, in the system's Chromium: nothing is loaded or complained about, it fits a phone, it is
accessible in light and dark, and it prints."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import find_chromium
from page_inputs import HOSTILE, grouped, make_run, write_both, write_run
from playwright.sync_api import sync_playwright

from specprobe.page.make import make_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS = ("one run", "without a verdict", "two runs", "hostile names")
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The files of pages of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    run, advice = write_both(folder, "before", grouped(make_run()))
    after = write_run(folder / "after.json", make_run(better=1.0))
    hostile, hostile_advice = write_both(folder, "hostile", make_run(name=HOSTILE))
    # No recommendation is kept for it, wherever tests run.
    alone = write_run(folder / "alone.json", make_run(seed=99))
    made = {
        "one run": make_page([run], [], [advice]),
        "without a verdict": make_page([alone], [], []),
        "two runs": make_page([run, after], [], [advice]),
        "hostile names": make_page([hostile], [], [hostile_advice]),
    }
    paths = {kind: folder / f"{kind.replace(' ', '-')}.html" for kind in made}
    for kind, page in made.items():
        paths[kind].write_text(page.html, encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def chromium():
    path = find_chromium()
    with sync_playwright() as playwright:
        # CI runs as root, where Chromium's sandbox cannot start; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def look(chromium, pages):
    """A page of a kind at a width and in a colour scheme, and what the browser said and asked for."""
    opened = []

    def open_page(kind: str, width: int = 1280, scheme: str = "light"):
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(pages[kind].as_uri())
        return page, said, asked

    yield open_page
    for page in opened:
        page.close()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_loaded_and_nothing_is_complained_about(look, pages, kind):
    page, said, asked = look(kind)
    page.wait_for_timeout(300)
    assert said == []
    assert asked == [pages[kind].as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_fits_its_width_and_so_do_figures(look, kind, width):
    page, _, _ = look(kind, width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = """[...document.querySelectorAll('figure svg, .card, pre, .warnings')]
              .filter(one => one.getBoundingClientRect().right > innerWidth).length"""
    assert page.evaluate(wide) == 0


@pytest.mark.parametrize("kind", ["one run", "two runs"])
def test_the_text_of_figures_lies_inside_them_and_is_large_enough_on_a_phone(look, kind):
    page, _, _ = look(kind, 390)
    outside = """[...document.querySelectorAll('figure svg')].flatMap(svg => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => {
            const own = text.getBoundingClientRect();
            return own.left < box.left - 2 || own.right > box.right + 8 || own.bottom > box.bottom + 1;
        }).map(text => text.textContent);
    })"""
    assert page.evaluate(outside) == []
    heights = "[...document.querySelectorAll('figure svg text')].map(text => text.getBoundingClientRect().height)"
    assert min(page.evaluate(heights)) >= 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_is_accessible(look, kind, scheme):
    page, _, _ = look(kind, 390 if kind == "two runs" else 1280, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_dark_is_dark_in_figures_too(look):
    shade = "getComputedStyle(document.querySelector('figure svg text')).fill"
    light, dark = (look("one run", scheme=scheme)[0].evaluate(shade) for scheme in ("light", "dark"))
    assert light != dark
    background = "getComputedStyle(document.body).backgroundColor"
    assert look("one run", scheme="dark")[0].evaluate(background) == "rgb(20, 23, 27)"


def test_the_skip_link_is_first_and_tables_can_be_scrolled_by_keyboard(look):
    page, _, _ = look("one run", 390)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    unreachable = "[...document.querySelectorAll('.scroll')].filter(one => one.tabIndex !== 0).length"
    assert page.evaluate(unreachable) == 0


@pytest.mark.parametrize("kind", ["one run", "two runs"])
def test_the_page_prints(look, kind):
    page, _, _ = look(kind, scheme="dark")
    pdf = page.pdf(format="A4", prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 2
    page.emulate_media(media="print", color_scheme="dark")
    # On white paper, whatever the screen is like.
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_picture_of_the_page_shows_something_everywhere(look, width, scheme):
    page, _, _ = look("one run", width, scheme)
    assert len(page.screenshot(full_page=True)) > 50_000
    blank = """[...document.querySelectorAll('section, figure')]
               .filter(one => one.getBoundingClientRect().height < 40).length"""
    assert page.evaluate(blank) == 0
