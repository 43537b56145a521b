"""The board in a real browser, as people meet it.

One test, in steps, because one browser and one page serve them all, and because in the end every request that the page
made and every line of its console is looked at. Where no browser can be had it is skipped, with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .browser import PLOT, WIDE, until
from .conftest import HOSTILE, Live

if TYPE_CHECKING:
    from playwright.sync_api import Page


def a_running_run_is_shown_and_a_new_round_arrives_without_reload(page: Page, live: Live) -> None:
    page.evaluate("window.notReloaded = true")
    page.locator("[data-only]", has_text="live run").first.click()
    until(page, "document.querySelector('#legend').children.length === 1")
    until(page, f"{PLOT}.data.at(-1).x.length === 5")
    points = page.locator("#curve-graph .js-plotly-plot")
    height = page.evaluate("document.documentElement.scrollHeight")
    now = live.step()
    until(page, f"{PLOT}.data.at(-1).x.length === {now}")
    page.wait_for_selector(f"text=round {now} of 40")
    assert points.evaluate("plot => plot.data.at(-1).x.at(-1)") == now
    assert page.evaluate("window.notReloaded") is True
    assert page.evaluate("document.documentElement.scrollHeight") == height  # nothing jumped


def zoom_and_choice_outlive_a_refresh(page: Page, live: Live) -> None:
    box = page.locator("#curve-graph .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.8 * box["height"], steps=5)
    page.mouse.up()
    plot = page.locator("#curve-graph .js-plotly-plot")
    until(page, f"{PLOT}.layout.xaxis.autorange === false")
    zoomed = plot.evaluate("plot => plot.layout.xaxis.range")
    now = live.step()
    until(page, f"{PLOT}.data.at(-1).x.length === {now}")
    assert plot.evaluate("plot => plot.layout.xaxis.range") == zoomed
    assert page.locator("tr.picked").count() == 1
    plot.dblclick(position={"x": 200, "y": 100})


def a_click_on_a_heat_map_cell_shows_the_curves_behind_it(page: Page, live: Live) -> None:
    page.get_by_role("button", name="Heat map").click()
    cell = page.get_by_role("button", name="p_avg/p_min 5.5, swap 0.6: β_opt 0.5")
    cell.click()
    until(page, "document.querySelector('#legend').children.length === 4")
    assert page.locator("#legend .name").all_inner_texts() == [
        "FedStale β=0 (U-FedAvg)",
        "FedStale β=0.5",
        "FedStale β=1 (U-FedVARP)",
        "FedStale β=auto",
    ]
    until(page, "document.querySelectorAll('#curve-graph .trace .lines path').length >= 4")
    assert page.locator("#chosen-text").inner_text() == "8 runs in 4 curves"
    assert cell.get_attribute("aria-pressed") == "true"
    assert page.locator("#raster-empty").inner_text().startswith("Participants were not recorded")
    page.get_by_role("button", name="Seconds").click()
    page.wait_for_selector("#curve-plot.empty")
    page.get_by_role("button", name="Bytes").click()
    page.wait_for_selector("#curve-plot:not(.empty)")
    page.get_by_role("button", name="Rounds", exact=True).last.click()


def the_heat_map_by_keyboard(page: Page, live: Live) -> None:
    cell = page.get_by_role("button", name="p_avg/p_min 5.5, swap 0.6")
    cell.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith("p_avg/p_min 1.5, swap 0:")
    assert page.locator("[data-cell][tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-cell='0.5 0.0'][aria-pressed=true]")
    until(page, "document.querySelector('#curve-alt').textContent.includes('FedStale β=0.5')")
    until(page, "document.querySelector('#inspect-select').options.length === 8")


def the_table_by_keyboard(page: Page, live: Live) -> None:
    page.get_by_role("button", name="Runs", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector("#curve-plot.empty")
    page.keyboard.press("Home")
    page.get_by_label("Filter").focus()
    page.keyboard.type("script")
    until(page, "document.querySelectorAll('#rows tr').length === 1")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "checkbox":
            break
    page.keyboard.press("Space")
    page.wait_for_selector("[role=checkbox][aria-checked=true]")
    page.wait_for_selector("#curve-plot:not(.empty)")


def a_script_in_a_name_is_text(page: Page, live: Live) -> None:
    assert page.locator("#rows .name").inner_text() == HOSTILE
    assert page.locator("#legend .name").inner_text() == HOSTILE
    box = page.locator("#curve-graph .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#curve-graph .hoverlayer text")
    assert "<script>" in (page.locator("#curve-graph .hoverlayer").text_content() or "")
    assert page.evaluate("window.broken === undefined")
    assert page.locator("#board script, #rows b, #legend b, #inspect-box b").count() == 0


def panels_of_one_run(page: Page, live: Live) -> None:
    for name in ("raster", "staleness", "probability"):
        page.wait_for_selector(f"#{name}-plot:not(.empty):not(.waiting)")
        assert page.locator(f"#{name}-alt").inner_text()
    assert page.locator("#probability-graph .point").count() == 6
    page.get_by_role("button", name="Seconds").click()
    until(page, f"{PLOT}.data.at(-1).x.at(-1) === 15")
    page.get_by_role("button", name="Rounds", exact=True).last.click()


def sort_and_pages(page: Page, live: Live) -> None:
    page.get_by_label("Filter").fill("")
    page.wait_for_selector("text=1–20 of 68 runs")
    page.get_by_role("button", name="Result").click()
    page.wait_for_selector("th[aria-sort=descending]")
    best = max(info.summary["accuracy"] for info in live.board.source.runs.values())
    until(page, f"document.querySelector('#rows tr').innerText.includes('{best:.1%}')")
    page.get_by_role("button", name="Next").click()
    page.wait_for_selector("text=21–40 of 68 runs")


def dark_and_light(page: Page, live: Live) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = background()
    page.emulate_media(color_scheme="dark")
    until(page, f"getComputedStyle(document.body).backgroundColor !== '{light}'")
    dark = background()
    ink = page.evaluate("getComputedStyle(document.querySelector('#curve-graph .xtick text')).fill")
    assert min(int(part) for part in ink.removeprefix("rgb(").removesuffix(")").split(",")) > 150
    button = page.get_by_role("button", name="Dark colours")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert background() == light
    page.emulate_media(color_scheme="light")
    button.click()
    assert background() == dark
    button.click()


def a_narrow_screen_does_not_scroll_sideways(page: Page, live: Live) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for view in ("Heat map", "Runs"):
        page.get_by_role("button", name=view, exact=True).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size(WIDE)


def labels_for_those_who_do_not_see(page: Page, live: Live) -> None:
    problems = page.evaluate(
        """() => {
          const bad = [];
          const named = (e) => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.innerText.trim()
            || (e.labels && e.labels.length);
          document.querySelectorAll('button, select, input, [role=img], [role=region]').forEach((e) => {
            if (!e.closest('.modebar') && !named(e)) bad.push(e.outerHTML.slice(0, 120));
          });
          document.querySelectorAll('table').forEach((e) => { if (!e.caption) bad.push('table without caption'); });
          document.querySelectorAll('[aria-labelledby]').forEach((e) => e.getAttribute('aria-labelledby').split(' ')
            .forEach((id) => { if (!document.getElementById(id)) bad.push('no ' + id); }));
          for (const tag of ['main', 'header', 'h1']) if (!document.querySelector(tag)) bad.push('no ' + tag);
          if (document.documentElement.lang !== 'en') bad.push('no language');
          return bad;
        }"""
    )
    assert problems == []


def a_store_that_is_taken_away_is_said_and_the_page_lives_on(page: Page, live: Live) -> None:
    folder: Path = live.board.source.folder
    away = folder.with_name("away")
    folder.rename(away)
    page.wait_for_selector("#trouble:has-text('there is no store')")
    away.rename(folder)
    until(page, "document.querySelector('#trouble').textContent === ''")
    now = live.step()
    page.wait_for_selector(f"text=round {now} of 40")


def no_console_error_and_no_request_left_the_machine(page: Page, live: Live) -> None:
    """The last step: what all the others made the page do."""
    seen = live.seen
    assert [line for line in seen.console if line.startswith(("error", "warning"))] == []
    foreign = [url for url in seen.requests if urlsplit(url).scheme not in ("data", "blob")]
    assert len(foreign) > 20
    assert {f"{urlsplit(url).scheme}://{urlsplit(url).netloc}/" for url in foreign} == {live.board.url}


STEPS = (
    a_running_run_is_shown_and_a_new_round_arrives_without_reload,
    zoom_and_choice_outlive_a_refresh,
    a_click_on_a_heat_map_cell_shows_the_curves_behind_it,
    the_heat_map_by_keyboard,
    the_table_by_keyboard,
    a_script_in_a_name_is_text,
    panels_of_one_run,
    sort_and_pages,
    dark_and_light,
    a_narrow_screen_does_not_scroll_sideways,
    labels_for_those_who_do_not_see,
    a_store_that_is_taken_away_is_said_and_the_page_lives_on,
    no_console_error_and_no_request_left_the_machine,
)


def test_the_board_in_a_browser(page: Page, live: Live) -> None:
    for step in STEPS:
        print(step.__name__)  # shown by pytest when a step fails
        step(page, live)
