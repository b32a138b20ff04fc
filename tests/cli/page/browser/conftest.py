"""A headless Chromium; without one, or without Playwright, these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 90_000
"""As that of tests/helpers/waiting.py: no statement about speed."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: Playwright's loop keeps other tests from having their own."""
    reason = "make test-browser installs Playwright"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.skip(f"there is no browser: none of {', '.join(_PROGRAMS)} is on the PATH")
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])


@dataclass
class Tab:
    """A tab that is open, and what it should not have done."""

    page: Page
    wrong: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        """Load the page, and wait until it is live."""
        self.page.goto(url)
        self.live()

    def live(self) -> None:
        self.page.locator("#status", has_text="live").wait_for()

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def until(self, condition: str, *arguments: Any) -> None:
        """Wait until a function of the page's script says so."""
        self.page.wait_for_function(condition, arg=[*arguments])

    def slots(self, kind: str = ":not(.free)") -> list[str]:
        """The texts of the slots that are drawn, but for free ones."""
        script = "all => all.map((e) => [...e.children].map((c) => c.textContent).join(' '))"
        found: list[str] = self.page.locator(f".slot{kind}").evaluate_all(script)
        return found


_REPORT = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`violated: ${event.violatedDirective} ${event.blockedURI}`))"""


@pytest.fixture
def tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A tab; ``pytest.mark.parametrize("tab", [{...}], indirect=True)`` gives options."""
    options = {"viewport": {"width": 1280, "height": 800}, **getattr(request, "param", {})}
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_REPORT)
    made = Tab(context.new_page())
    page = made.page
    page.on("pageerror", lambda error: made.wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: made.wrong.append(dialog.message))
    page.on("console", lambda line: made.wrong.append(line.text) if line.type == "error" else None)
    page.on("request", lambda sent: made.requests.append(sent.url))
    yield made
    context.close()
