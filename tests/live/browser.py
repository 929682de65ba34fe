"""Debian's Chromium, for tests and pictures of the live page."""

import contextlib
import shutil

from playwright import sync_api

CHROMIUM = shutil.which("chromium")


@contextlib.contextmanager
def open_browser():
    """A browser that nobody sees. It reaches this machine only: no proxy, whatever the environment says."""
    if CHROMIUM is None:
        raise RuntimeError("chromium is not installed; deploy/install.sh installs it")
    with sync_api.sync_playwright() as playwright:
        # Tests may run as root, in containers without user namespaces and with a small /dev/shm.
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            browser.close()
