#!/usr/bin/env python3
"""Takes the picture of the live page: three tenants' requests, the last of them one whose drafter the router chose.

Needs Debian's chromium, the packages of tests/requirements.txt, and the Python stubs that the test `live_page` makes:

    PYTHONPATH=build/dev/e2e/stubs TANDEM_BIN_DIR=build/dev/bin tests/live/screenshot.py docs/images/live.png
"""

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "dashboards"))

from stack import TENANTS, Generation, Stack, calibration_prompts, request_for, wait_until  # noqa: E402

from browser import open_browser  # noqa: E402

STORY = "Once upon a time there was a little girl who lived in a house by the sea. One day"


def send(stack, tenant, text, request_id="", max_tokens=64):
    request = request_for(text, max_tokens, request_id=request_id)
    request.sampling.seed = 5
    return Generation(stack.channel, request, token=tenant["token"]).read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--width", type=int, default=1360)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--round", type=int, help="round to show; default: one with a large tree and a long path")
    args = parser.parse_args()
    stack = Stack()
    try:
        stack.start_all(
            verifier_flags=("--window-policy", "goodput", "--simulate-target-ms", "20"),
            router_flags=("--live-listen", "127.0.0.1:0", "--live-all"),
        )
        acme, beta, gamma = TENANTS
        # The router explores before it predicts.
        for prompt in (calibration_prompts() * 2)[:70]:
            send(stack, beta, prompt, max_tokens=24)
        with open_browser() as browser:
            view = {"width": args.width, "height": args.height}
            page = browser.new_page(viewport=view, color_scheme=args.scheme)
            page.goto(f"http://127.0.0.1:{stack.servers['router'].live_port}/")
            wait_until(lambda: "Live" in page.locator("#status").inner_text(), "the page")
            send(stack, gamma, "The weather in the north will be", "weather-7", max_tokens=40)
            send(stack, acme, "What is seven times eight?", "homework-12", max_tokens=40)
            send(stack, beta, "def add(a, b):", "code-31", max_tokens=56)
            send(stack, beta, STORY, "story-4", max_tokens=160)
            wait_until(lambda: "story-4; done" in page.locator("#output-names").inner_text(), "the story")
            running = page.locator("#tenants td:nth-child(4)")
            wait_until(lambda: running.all_inner_texts() == ["0"] * len(TENANTS), "the table's last change")
            rounds = page.evaluate("current().rounds.map((round) => round.accepted * round.nodes)")
            best = args.round or 1 + max(range(len(rounds)), key=lambda i: rounds[i])
            page.evaluate(f"showRound({best - 1})")
            wait_until(lambda: f"Round {best} of" in page.locator("#tree-title").inner_text(), "the round")
            page.evaluate("document.getElementById('text').scrollTop = 0")
            page.screenshot(path=args.output, full_page=True)
    finally:
        stack.close()


if __name__ == "__main__":
    sys.exit(main())
