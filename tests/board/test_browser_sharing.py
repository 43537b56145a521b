"""The board's page as something to compare runs on and to share: address, colours, settings, axes, dark, telephone.

One test in steps, as `test_browser.py` has it, with a page and a store of its own.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest

from .browser import PLOT, WIDE, until
from .conftest import Live

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

NAMES = "[...document.querySelectorAll('#legend .name')].map((e) => e.innerText)"


def looks(page: Page) -> dict[str, str]:
    """How each curve is drawn, by its label."""
    found = page.evaluate(
        "[...document.querySelectorAll('#legend li')].map((e) => [e.querySelector('.name').innerText, "
        "e.querySelector('.swatch').style.background])"
    )
    return dict(found)


def count(page: Page, number: int) -> None:
    until(page, f"document.querySelectorAll('#legend li').length === {number}")


def choose(page: Page, text: str) -> None:
    """Choose all that a filter keeps, and nothing else."""
    page.get_by_role("button", name="Clear").click()
    until(page, "document.querySelectorAll('#legend li').length === 0")
    page.get_by_label("Filter").fill(text)
    until(page, f"new URLSearchParams(location.search).get('filter') === '{text}'")
    page.wait_for_timeout(900)  # what was typed is a step of its own in the history
    page.get_by_role("checkbox", name="Choose all").click()


def all_that_a_filter_keeps_is_chosen_and_taken_away(page: Page, live: Live) -> None:
    choose(page, "p_min=0.1 swap=0 lr=0.1 beta=0.5")
    count(page, 1)
    everything = page.get_by_role("checkbox", name="Choose all")
    until(page, "document.getElementById('all').getAttribute('aria-checked') === 'true'")
    assert page.locator("#chosen-text").inner_text() == "2 runs in 1 curve"
    everything.click()
    until(page, "document.getElementById('all').getAttribute('aria-checked') === 'false'")
    everything.click()
    page.locator("#rows [role=checkbox]").first.click()
    until(page, "document.getElementById('all').getAttribute('aria-checked') === 'mixed'")


def labels_and_settings_say_in_what_runs_differ(page: Page, live: Live) -> None:
    choose(page, "swap=0 beta=0.5")
    count(page, 4)
    assert page.evaluate(NAMES) == [
        f"FedStale β=0.5 · p_min {p_min} · lr {lr}" for lr in ("0.1", "1") for p_min in ("0.1", "0.5")
    ]
    rows = "[...document.querySelectorAll('.settings tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))"
    assert page.evaluate(rows) == [["p_min", "0.1", "0.5", "0.1", "0.5"], ["lr", "0.1", "0.1", "1", "1"]]
    page.get_by_role("button", name="All", exact=True).click()
    until(page, "document.querySelectorAll('.settings tbody tr').length > 30")
    found = {row[0]: row[1:] for row in page.evaluate(rows)}
    assert found["task"] == ["digits-mlp"] * 4
    assert found["seed"] == ["0, 1"] * 4
    assert page.locator(".settings .apart").count() == 2
    page.get_by_role("button", name="Differences").click()
    until(page, "document.querySelectorAll('.settings tbody tr').length === 2")


def the_rate_that_was_used_is_shown(page: Page, live: Live) -> None:
    page.get_by_label("Filter").fill("live")
    until(page, "document.querySelectorAll('#rows tr').length === 1")
    assert page.locator("#rows td").nth(3).inner_text() == "0.1"  # its config names none: that of the digits


def a_curve_keeps_its_colour_when_others_come_and_go(page: Page, live: Live) -> None:
    choose(page, "swap=0 beta=0.5")
    count(page, 4)
    before = looks(page)
    assert len(set(before.values())) == 4
    gone = page.evaluate(NAMES)[0]
    page.get_by_role("button", name=f"Take away {gone}").click()
    count(page, 3)
    after = looks(page)
    assert after == {label: before[label] for label in after}
    page.reload()
    page.wait_for_selector("#curve-graph .scatterlayer .trace")
    count(page, 3)
    assert looks(page) == after
    page.get_by_label("Filter").fill("swap=0 lr=0.1 beta=0")
    page.wait_for_timeout(900)
    page.get_by_role("checkbox", name="Choose all").click()
    count(page, 5)
    now = looks(page)
    assert {look for label, look in now.items() if "β=0.5" in label} == set(after.values())


def the_address_can_be_shared_reloaded_and_gone_back_to(page: Page, live: Live) -> None:
    choose(page, "swap=0.6 lr=0.1 p_min=0.1")
    count(page, 4)
    page.wait_for_timeout(900)
    page.get_by_role("button", name="Bytes").click()
    until(page, "location.search.includes('axis=bytes')")
    page.wait_for_timeout(900)
    page.get_by_label("y axis").select_option("log")
    page.wait_for_timeout(900)
    page.get_by_label("Smooth").select_option("3")
    until(page, "location.search.includes('smooth=3') && location.search.includes('scale=log')")
    until(page, f"{PLOT}.layout.yaxis.type === 'log' && {PLOT}.layout.xaxis.title.text.startsWith('bytes')")
    shared, labels = page.url, page.evaluate(NAMES)

    other = page.context.new_page()
    other.goto(shared)
    until(other, f"document.querySelectorAll('#legend li').length === 4 && {PLOT}?.layout.yaxis.type === 'log'")
    assert other.evaluate(NAMES) == labels
    assert other.get_by_label("Filter").input_value() == "swap=0.6 lr=0.1 p_min=0.1"
    assert other.get_by_label("Smooth").input_value() == "3"
    assert other.get_by_role("button", name="Bytes").get_attribute("aria-pressed") == "true"
    until(other, "document.querySelector('#curve-note').innerText.includes('mean of the last 3 recorded ones')")
    other.close()

    page.go_back()
    until(page, "location.search.includes('scale=log') && !location.search.includes('smooth')")
    page.go_back()
    until(page, "location.search.includes('axis=bytes') && !location.search.includes('scale')")
    until(page, f"{PLOT}.layout.yaxis.type !== 'log'")
    page.go_back()
    until(page, "!location.search.includes('axis')")
    until(page, f"{PLOT}.layout.xaxis.title.text === 'round'")
    assert page.evaluate(NAMES) == labels
    page.go_forward()
    until(page, f"{PLOT}.layout.xaxis.title.text.startsWith('bytes')")
    page.get_by_role("button", name="Rounds", exact=True).last.click()


def virtual_time_is_in_the_address_and_says_where_it_is_missing(page: Page, live: Live) -> None:
    button = page.get_by_role("button", name="Virtual time")
    until(page, "document.querySelector('[data-value=virtual_seconds]').className === 'absent'")
    assert button.get_attribute("title") == "not recorded by any of the chosen runs"
    button.click()
    page.wait_for_selector("#curve-plot.empty")
    assert page.locator("#curve-empty").inner_text().startswith("None of the chosen runs recorded virtual time")
    choose(page, "rule=mifa")
    until(page, f"{PLOT}.layout.xaxis.title?.text === 'virtual time (hours)'")
    assert "axis=virtual_seconds" in page.url
    page.reload()
    page.wait_for_selector("#curve-graph .scatterlayer .trace")
    until(page, f"{PLOT}.layout.xaxis.title?.text === 'virtual time (hours)'")
    assert page.get_by_role("button", name="Virtual time").get_attribute("aria-pressed") == "true"
    assert page.get_by_role("button", name="Virtual time").get_attribute("class") != "absent"
    page.get_by_role("button", name="Rounds", exact=True).last.click()
    choose(page, "swap=0.6 lr=0.1 p_min=0.1")
    count(page, 4)


def smoothing_is_the_mean_of_the_last_points(page: Page, live: Live) -> None:
    page.get_by_label("y axis").select_option("linear")
    until(page, f"{PLOT}.data.at(-1).y.length === 10")
    raw = np.array(page.evaluate(f"{PLOT}.data.at(-1).y"))
    page.get_by_label("Smooth").select_option("3")
    until(page, f"Math.abs({PLOT}.data.at(-1).y[1] - {raw[:2].mean()}) < 1e-5")
    smooth = np.array(page.evaluate(f"{PLOT}.data.at(-1).y"))
    np.testing.assert_allclose(smooth[2:], (raw[:-2] + raw[1:-1] + raw[2:]) / 3, rtol=1e-4)
    page.get_by_label("Smooth").select_option("1")


def the_heat_map_shows_errors_and_is_in_the_address(page: Page, live: Live) -> None:
    page.get_by_role("button", name="Heat map").click()
    cell = page.get_by_role("button", name="p_avg/p_min 5.5, swap 0.6: β_opt 0.5")
    cell.wait_for()
    assert "±0.0" in cell.inner_text()
    assert "pale" not in (cell.get_attribute("class") or "")
    until(page, "new URLSearchParams(location.search).get('view') === 'sweep'")
    page.get_by_label("Cells show").select_option("auto")
    until(page, "location.search.includes('shown=auto')")
    page.reload()
    page.wait_for_selector(".heat button")
    until(page, "document.querySelector('#shown-select').value === 'auto'")


def the_address_does_not_wait_for_the_server(page: Page, live: Live) -> None:
    held: list[Route] = []
    page.route("**/_dash-update-component*", lambda route: held.append(route))
    page.wait_for_timeout(1000)  # the last answers are here; the next will not come
    page.get_by_role("button", name="Runs", exact=True).click()
    assert "view=" not in page.evaluate("location.search")
    page.get_by_label("Filter").fill("swap=0.6")
    page.get_by_label("Smooth").select_option("5")
    query = page.evaluate("Object.fromEntries(new URLSearchParams(location.search))")
    assert (query["filter"], query["smooth"]) == ("swap=0.6", "5")
    page.unroute("**/_dash-update-component*")
    page.reload()  # nobody waits for what was held
    page.wait_for_selector("#curve-graph .scatterlayer .trace")
    assert page.get_by_label("Filter").input_value() == "swap=0.6"
    page.get_by_label("Smooth").select_option("1")


def nothing_white_while_it_loads_in_the_dark(page: Page, live: Live) -> None:
    from PIL import Image

    page.emulate_media(color_scheme="dark")
    held: list[Route] = []
    page.route("**/_dash-update-component*", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.wait_for_selector("#curve-plot")
    page.wait_for_timeout(1500)
    assert held  # every figure is still to come
    picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("L"))
    assert (picture > 200).mean() < 0.02  # letters, no boxes
    page.unroute("**/_dash-update-component*")
    page.emulate_media(color_scheme="light")
    page.reload()
    page.wait_for_selector("#curve-graph .scatterlayer .trace")


def status_is_a_word_on_a_telephone(page: Page, live: Live) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_label("Filter").fill("")
    page.wait_for_selector("text=1–20 of 68 runs")  # the rows come with it
    boxes = page.evaluate(
        "[...document.querySelectorAll('#rows .status')].map((e) => { const r = e.getBoundingClientRect(); "
        "return [e.innerText, parseFloat(getComputedStyle(e).fontSize), r.width, r.right]; })"
    )
    assert {text for text, *_ in boxes} == {"running", "finished"}
    assert all(size >= 11 and width > 40 and right <= 390 for _, size, width, right in boxes)
    page.set_viewport_size(WIDE)


STEPS = (
    all_that_a_filter_keeps_is_chosen_and_taken_away,
    labels_and_settings_say_in_what_runs_differ,
    the_rate_that_was_used_is_shown,
    a_curve_keeps_its_colour_when_others_come_and_go,
    the_address_can_be_shared_reloaded_and_gone_back_to,
    virtual_time_is_in_the_address_and_says_where_it_is_missing,
    smoothing_is_the_mean_of_the_last_points,
    the_heat_map_shows_errors_and_is_in_the_address,
    the_address_does_not_wait_for_the_server,
    nothing_white_while_it_loads_in_the_dark,
    status_is_a_word_on_a_telephone,
)


@pytest.mark.slow  # ten steps, half a minute
@pytest.mark.filterwarnings("ignore")
def test_the_board_is_compared_and_shared(page: Page, live: Live) -> None:
    for step in STEPS:
        print(step.__name__)  # shown by pytest when a step fails
        step(page, live)
    assert [line for line in live.seen.console if line.startswith("error")] == []
