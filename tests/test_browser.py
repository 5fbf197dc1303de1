"""The page of a report in a real browser: seen, hovered over, zoomed, on a phone and on paper."""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ampsure import fit
from ampsure.report import examine, surrogate_report

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no Chromium with chromedriver: run `make browser`"
)
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def examination(flat_events):
    config = {"network": {"hidden": (16, 16)}, "posterior": {"members": 2}}
    surrogate = fit(flat_events, "repulsive", config=config, epochs=3, batch_size=128, seed=1)
    surrogate.process = replace(surrogate.process, name=NASTY)
    surrogate.provenance["device"] = NASTY
    return examine(surrogate, flat_events.split(1)[2][:190], f"a run {NASTY}", NASTY)


@pytest.fixture(scope="module")
def browser(examination, tmp_path_factory):
    """A browser that shows the page."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(surrogate_report(examination), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1280,900", f"user-data-dir={folder / 'profile'}",
    ):  # fmt: skip
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get((folder / "report.html").as_uri())
        yield driver
    finally:
        driver.quit()


def view_of(browser, name):
    view = browser.find_element(By.CSS_SELECTOR, f"#figure-{name} .view")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", view)
    return view


def view_box(view):
    return [float(v) for v in view.find_element(By.TAG_NAME, "svg").get_dom_attribute("viewBox").split()]


def test_every_figure_is_drawn_and_nothing_complains(browser):
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(svg => [svg.getBoundingClientRect().width,"
        "svg.getBoundingClientRect().height, svg.querySelectorAll('path').length, svg.getAttribute('aria-label')])"
    )
    assert len(sizes) >= 11
    for width, height, paths, words in sizes:
        assert min(width, height) > 200
        assert paths > 10
        assert len(words) > 20
    ids = browser.execute_script("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert browser.get_log("browser") == []  # neither errors nor violations of the page's own policy


def test_metadata_stays_text(browser):
    assert browser.title == f"Surrogate a run {NASTY}"
    assert browser.find_elements(By.CSS_SELECTOR, "img") == []
    assert NASTY in browser.find_element(By.CSS_SELECTOR, "table.facts").text


def test_hovering_tells_the_values(browser, examination):
    view = view_of(browser, "coverage")
    ActionChains(browser).move_to_element(view).perform()
    readout = view.find_element(By.CLASS_NAME, "readout")
    assert readout.is_displayed()
    first = readout.find_element(By.TAG_NAME, "div").text
    found, difference = (value.text for value in readout.find_elements(By.TAG_NAME, "b"))
    label, x = first.split(" = ")
    assert label == "nominal probability"
    coverage = examination.judgement.coverage
    expected = np.interp(float(x), coverage.levels, coverage.shares)
    assert float(found) == pytest.approx(expected, abs=2e-3)
    assert float(difference) == pytest.approx(expected - float(x), abs=2e-3)
    assert len(view.find_elements(By.CLASS_NAME, "cross")) == 2  # one in each panel
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not readout.is_displayed()


def test_steps_have_their_band(browser):
    view = view_of(browser, "across-mass")
    ActionChains(browser).move_to_element_with_offset(view, -40, 0).perform()
    readout = view.find_element(By.CLASS_NAME, "readout")
    assert readout.text.startswith("m(a a g) / GeV = ")
    labels, values = ([part.text for part in readout.find_elements(By.TAG_NAME, tag)] for tag in ("span", "b"))
    assert labels == ["σ_syst/A", "σ_stat/A", "median |Δ|", "core of the total pull"]
    assert all("[" in value for value in values)


def test_zooming_by_button_key_wheel_and_back(browser):
    view = view_of(browser, "pulls")
    home = view_box(view)
    zoom_in, zoom_out, whole = browser.find_elements(By.CSS_SELECTOR, "#figure-pulls button")
    zoom_in.click()
    assert view_box(view)[2] == pytest.approx(home[2] / 1.5)
    zoom_out.send_keys(Keys.ENTER)
    assert view_box(view) == home
    ActionChains(browser).click(view).perform()
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(view), 0, -300).perform()
    WebDriverWait(browser, 5).until(lambda _: view_box(view)[2] < 0.7 * home[2])  # wheels are heard a moment later
    near = view_box(view)
    ActionChains(browser).click_and_hold(view).move_by_offset(60, 40).release().perform()
    moved = view_box(view)
    assert moved[0] < near[0]
    assert moved[1] < near[1]
    view.send_keys(Keys.ARROW_RIGHT)
    assert view_box(view)[0] > moved[0]
    ActionChains(browser).double_click(view).perform()
    assert view_box(view) == home
    zoom_in.click()
    whole.click()
    assert view_box(view) == home


def test_the_wheel_scrolls_the_page_past_figures(browser):
    view = view_of(browser, "deviation")
    browser.execute_script("document.activeElement.blur()")
    before, home = browser.execute_script("return scrollY"), view_box(view)
    ActionChains(browser).scroll_from_origin(ScrollOrigin.from_element(view), 0, 200).perform()
    WebDriverWait(browser, 5).until(lambda _: browser.execute_script("return scrollY") > before)
    assert view_box(view) == home


def test_numbers_are_there_without_the_figure(browser):
    details = browser.find_element(By.CSS_SELECTOR, "#figure-pulls details")
    assert len(details.find_elements(By.CSS_SELECTOR, "tbody tr")) > 20


def test_a_phone_scrolls_down_only(browser):
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        width, widest = browser.execute_script(
            "return [document.documentElement.scrollWidth,"
            "Math.max(...[...document.querySelectorAll('figure')].map(f => f.getBoundingClientRect().right))]"
        )
        assert width <= 390
        assert widest <= 390
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_prints(browser):
    pdf = base64.b64decode(browser.print_page())
    assert pdf.startswith(b"%PDF")
    assert 3 <= pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") <= 20
