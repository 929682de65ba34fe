"""The live page in a real browser: what it shows of generations, by mouse and keyboard, on narrow screens, and what it
says when something breaks."""

import concurrent.futures
import http.client
import json
import math
import pathlib
import re
import sys
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from processes import (  # noqa: E402
    DRAFTERS,
    MODELS,
    PATIENCE_SECONDS,
    TARGET,
    ProcessTest,
    fixed_port,
    request_for,
    wait_until,
)
from tandem.v1 import generation_pb2, types_pb2, verifier_pb2_grpc  # noqa: E402

from browser import CHROMIUM, open_browser  # noqa: E402

PATIENCE_MS = 1000 * PATIENCE_SECONDS
LISTEN = "--live-listen"
ANY_PORT = "127.0.0.1:0"
HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>&amp;\"'"

# What must not reach beyond the right edge: everything but what lies in boxes that scroll by themselves.
OVERFLOWING = """() => [...document.querySelectorAll("body *")]
    .filter((node) => node.closest(".scroll, .text, #generations") === null || node.matches(".scroll, .text, #generations"))
    .filter((node) => node.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
    .map((node) => node.outerHTML.slice(0, 120))"""

# WCAG's contrast of a node's text with what is behind it.
CONTRAST = """(node) => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [R, G, B] = [r, g, b].map((c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  let behind = node;
  const background = (of) => channels(getComputedStyle(of).backgroundColor);
  while (behind.parentElement && (background(behind)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [luminance(channels(getComputedStyle(node).color)), luminance(background(behind))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


def asking(text="Once upon a time", max_tokens=32, **fields):
    """A request that may be shown."""
    return request_for(text, max_tokens, output=types_pb2.OutputOptions(live_page=True), **fields)


LOCAL = types_pb2.DRAFT_SOURCE_LOCAL


def tokens_by_source(stats):
    """Draft tokens and accepted ones: the drafters', then the verifier's own."""
    sums = []
    for local in (False, True):
        entries = [entry for entry in stats.by_source if (entry.source == LOCAL) == local]
        sums.append((sum(entry.draft_tokens for entry in entries), sum(entry.accepted_tokens for entry in entries)))
    return sums


def shown_percent(share):
    """As JavaScript rounds."""
    return f"{math.floor(100 * share + 0.5)} %"


class HostileVerifier(verifier_pb2_grpc.VerifierServicer):
    """Says one round of markup, with a tree, and then ends with a status that is markup too."""

    def __init__(self):
        self.requests = []

    def Generate(self, request, context):
        self.requests.append(request)
        response = generation_pb2.GenerateResponse
        yield response(started=generation_pb2.GenerationStarted(request_id=request.request_id, max_tokens=32))
        chunk = generation_pb2.GenerationChunk(tokens=[5, 6, 7], text=HOSTILE, kind=generation_pb2.ROUND_KIND_HIT)
        chunk.window, chunk.draft_tokens = 2, 3
        sources = (generation_pb2.TOKEN_SOURCE_ACCEPTED, generation_pb2.TOKEN_SOURCE_ACCEPTED)
        chunk.shares.add(source=99, drafter=HOSTILE, draft_tokens=3, accepted_tokens=2)
        for source, size in zip((*sources, generation_pb2.TOKEN_SOURCE_TARGET), (10, 20, len(HOSTILE) - 30)):
            chunk.details.add(source=source, text_bytes=size)
        for parent, token, accepted in ((0, 5, True), (1, 6, True), (1, 8, False)):
            chunk.round.tree.add(parent=parent, token=token, score=0.5, accepted=accepted)
        yield response(chunk=chunk)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, HOSTILE)


@unittest.skipIf(CHROMIUM is None, "chromium is not installed; deploy/install.sh installs it")
class LivePageTest(ProcessTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(open_browser())

    def serve(self, *flags, address=ANY_PORT, target_ms=8, **options):
        """For a target so slow that drafts come in time on machines that are busy."""
        verifier_flags = ("--simulate-target-ms", str(target_ms))
        self.start_stack(flags=(LISTEN, address, *flags), verifier_flags=verifier_flags, **options)

    def open(self, width=1280, height=900, **options):
        """The page of the router; what it complains of fails the test unless `self.complaints` is emptied."""
        context = self.browser.new_context(viewport={"width": width, "height": height}, **options)
        self.addCleanup(context.close)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        self.complaints = []
        self.shown = []
        page.on("console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{self.router.live_port}/")
        self.wait_status(page, "Live")
        return page

    def wait_status(self, page, *words):
        def has_words():
            text = page.locator("#status").inner_text()
            return all(word in text for word in words)

        try:
            wait_until(has_words, f"the status {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {page.locator('#status').inner_text()!r}") from error

    def wait_shown(self, page, *words):
        """Until the generation that is shown says all this of itself."""
        names = page.locator("#output-names")
        wait_until(lambda: all(word in names.inner_text() for word in words), f"{words}, not {names.inner_text()!r}")

    def show(self, page, request):
        """Sends a request and waits until the page has shown all of it."""
        generation = self.generate(request).read()
        self.wait_shown(page, generation.started.request_id, "done")
        self.shown.append(generation)
        return generation

    def show_drafted(self, page, max_tokens=32):
        """The same for one of which drafts were accepted and others were not: a starved drafter may miss whole requests."""
        for _ in range(10):
            generation = self.show(page, asking(max_tokens=max_tokens))
            if 0 < generation.accepted < generation.stats.draft_tokens:
                return generation
        raise AssertionError("no drafts were accepted in ten requests")

    def test_shows_a_generation_as_it_was(self):
        self.serve()
        page = self.open()
        self.assertIn("None yet", page.locator("#nothing").inner_text())
        generation = self.show_drafted(page, max_tokens=48)

        tokens = page.locator("#text .token")
        self.assertEqual(page.locator("#text").text_content(), generation.text)
        self.assertEqual(tokens.count(), len(generation.tokens))
        self.assertEqual(page.locator("#text .token.accepted").count(), generation.accepted)
        self.assertEqual(page.locator("#text .token.bonus").count(), len(generation.tokens) - generation.accepted)
        figures = page.locator("#figures").inner_text()
        self.assertIn(f"{len(generation.tokens)}", figures)
        self.assertIn(f"{generation.stats.rounds}", figures)
        for drafted, accepted in tokens_by_source(generation.stats):
            self.assertIn(shown_percent(accepted / drafted) if drafted else "–", figures)
        # What the verifier guessed by itself is told apart, in the text and in the trees.
        guessed = sum(entry.accepted_tokens for entry in generation.stats.by_source if entry.source == LOCAL)
        self.assertEqual(page.locator("#text .token.local").count(), guessed)

        self.check_rounds(page, generation)
        self.assertIn("general-1m", page.locator("#why").inner_text())
        self.assertIn("the tenant's own drafter", page.locator("#why").inner_text())
        self.assertIn("general-1m", page.locator("#candidates tr.chosen").inner_text())
        self.assertEqual(page.locator("#candidates tbody tr").count(), 1 + len(DRAFTERS))
        self.check_table(page)
        self.assertEqual(self.complaints, [])

    def test_shows_a_heads_trees(self):
        """Of a drafter that reads the target's hidden states, under a name that the router knows."""
        head = ("--model", f"{DRAFTERS[0]}={MODELS}/tandem-eagle3-15m", "--head-target", MODELS / TARGET)
        self.drafter = self.start_drafter(models=DRAFTERS[1:], flags=head).wait_ready()
        self.verifier = self.start_verifier().wait_ready()
        self.connect_router([self.verifier.address], self.drafter.address, flags=(LISTEN, ANY_PORT))
        page = self.open()
        generation = self.show_drafted(page, max_tokens=48)
        self.assertGreater(self.verifier.metric("tandem_feature_bytes_total", drafter=DRAFTERS[0]), 0)
        self.assertEqual(page.locator("#text").text_content(), generation.text)
        self.assertEqual(page.locator("#text .token.accepted").count(), generation.accepted)
        self.check_rounds(page, generation)
        self.check_table(page)
        self.assertEqual(self.complaints, [])

    def check_rounds(self, page, generation):
        """Goes through the rounds, first to last: trees, their accepted paths, windows."""
        rounds = generation.stats.rounds
        page.keyboard.press("Home")
        accepted = candidates = committed = 0
        windows = [0] * len(generation.stats.window_histogram)
        for number in range(1, rounds + 1):
            title = page.locator("#tree-title")
            wait_until(lambda: f"Round {number} of {rounds}" in title.inner_text(), f"round {number}")
            facts = page.locator("#round-facts").inner_text()
            windows[int(re.search(r"window (\d+)", facts)[1])] += 1
            on_path = page.locator("#tree .node.accepted").count()
            self.assertEqual(page.locator("#tree .edge.accepted").count(), on_path)
            self.assertIn(f"{on_path} accepted", facts)
            here = page.locator("#text .token.selected")
            committed += here.count()
            accepted += on_path
            candidates += on_path + page.locator("#tree .node.rejected").count()
            # The tree's accepted path is what the text has of this round.
            self.assertEqual(page.locator("#text .token.selected.accepted").count(), on_path)
            label = page.locator("#tree svg").get_attribute("aria-label")
            for text in page.locator("#text .token.selected.accepted").all_text_contents():
                if text:
                    self.assertIn(json.dumps(text, ensure_ascii=False), label)
            page.keyboard.press("ArrowRight")
        self.assertEqual(accepted, generation.accepted)
        self.assertEqual(candidates, generation.stats.draft_tokens)
        self.assertEqual(committed, len(generation.tokens))
        self.assertEqual(windows, list(generation.stats.window_histogram))
        self.assertGreater(page.locator("#chart .bar-accepted").count(), 0)
        self.assertIsNotNone(page.locator("#chart .rate-line").get_attribute("d"))

    def check_table(self, page):
        row = page.locator("#tenants tbody tr", has_text="acme")
        by_drafter = [tokens_by_source(generation.stats)[0] for generation in self.shown]
        drafted = sum(tokens for tokens, _ in by_drafter)
        rate = shown_percent(sum(accepted for _, accepted in by_drafter) / drafted) if drafted else "–"
        tokens = sum(len(generation.tokens) for generation in self.shown)
        expected = ["acme", "pinned", "general-1m", "0", str(len(self.shown)), "0", str(tokens)]
        # The table comes some time after the end of a generation.
        wait_until(
            lambda: rate in row.inner_text() and row.locator("td").all_inner_texts()[:7] == expected,
            f"{rate} and {expected} in {row.inner_text()}",
        )

    def test_shows_only_what_asks_for_it(self):
        self.serve()
        page = self.open()
        self.generate(request_for(max_tokens=8)).read()
        done = page.locator("#tenants tbody tr", has_text="acme").locator("td").nth(4)
        wait_until(lambda: done.inner_text() == "1", "the request in the table")
        self.assertEqual(page.locator("#generations li").count(), 0)
        self.show(page, asking(max_tokens=8))
        self.assertEqual(page.locator("#generations li").count(), 1)
        self.assertTrue(page.locator("#prompt-box").is_hidden())

    def test_the_output_is_the_same_watched_or_not(self):
        self.serve("--live-all")
        request = request_for(max_tokens=24)
        unwatched = self.generate(request).read().output
        self.open()
        watched = self.generate(request).read()
        self.assertEqual(watched.output, unwatched)

    def test_markup_stays_text(self):
        verifier = HostileVerifier()
        server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        verifier_pb2_grpc.add_VerifierServicer_to_server(verifier, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        flags = (LISTEN, ANY_PORT, "--live-all", "--live-prompts")
        self.connect_router([f"127.0.0.1:{port}"], "127.0.0.1:1", flags=flags)
        page = self.open()
        request_id = "<img/src=x/onerror=window.pwned=3>"
        generation = self.generate(request_for(HOSTILE, request_id=request_id))
        self.assert_fails(generation, grpc.StatusCode.INVALID_ARGUMENT)
        self.wait_shown(page, request_id, "INVALID_ARGUMENT")
        self.assertEqual(page.locator("#text").text_content(), HOSTILE)
        self.assertIn(HOSTILE, page.locator("#prompt").text_content())
        self.assertIn(HOSTILE, page.locator("#notes").text_content())
        self.assertEqual(page.locator("#tree .node.accepted").count(), 2)
        self.assertEqual(page.locator("#tree .node.rejected").count(), 1)
        self.assertTrue(verifier.requests[0].output.round_tree)
        # Nothing of it has become part of the page, and nothing has run.
        self.assertEqual(page.locator("script").count(), 1)
        self.assertEqual(page.locator("img").count(), 0)
        self.assertIsNone(page.evaluate("window.pwned ?? null"))
        # Not that it could: what is not a file of the page's own may not run.
        page.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = "window.pwned = 4";
            document.body.append(script);
        }""")
        self.assertIsNone(page.evaluate("window.pwned ?? null"))

    def test_keyboard(self):
        self.serve()
        page = self.open()
        generation = self.show(page, asking(max_tokens=32))
        rounds = generation.stats.rounds
        self.assertGreater(rounds, 3)
        title = page.locator("#tree-title")

        def expect(number):
            wait_until(lambda: f"Round {number} of {rounds}" in title.inner_text(), f"round {number}")

        expect(rounds)
        for key, number in (("ArrowLeft", rounds - 1), ("Home", 1), ("ArrowLeft", 1), ("ArrowRight", 2), ("End", rounds)):
            page.keyboard.press(key)
            expect(number)
        page.keyboard.press("f")
        self.assertEqual(page.locator("#follow").get_attribute("aria-pressed"), "true")
        self.check_pause(page)

        # Everything can be reached, in the order in which it is read, and it can be seen where one is.
        page.evaluate("document.activeElement.blur()")
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.id || document.activeElement.closest('[id]')?.id"))
            if reached[-1] != "" and page.evaluate("document.activeElement !== document.body"):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                self.assertNotEqual(outline, "none", reached[-1])
        wanted = ["follow", "pause", "generations", "text", "first", "previous", "tree", "tree-table-box", "tenants"]
        self.assertEqual([name for name in dict.fromkeys(reached) if name in wanted], wanted)
        # Buttons do by key what they do by mouse.
        page.locator("#first").focus()
        page.keyboard.press("Enter")
        wait_until(lambda: "Round 1 of" in title.inner_text(), "the first round")
        # Boxes that scroll keep their keys.
        page.locator("#tree").focus()
        page.keyboard.press("ArrowRight")
        self.assertIn("Round 1 of", title.inner_text())
        self.assertEqual(self.complaints, [])

    def check_pause(self, page):
        page.keyboard.press("p")
        self.wait_status(page, "Paused")
        paused = self.generate(asking(max_tokens=8)).read()
        self.wait_status(page, "Paused", "updates waiting")
        self.assertNotIn(paused.started.request_id, page.locator("#output-names").inner_text())
        page.keyboard.press("p")
        self.wait_status(page, "Live")
        self.wait_shown(page, paused.started.request_id, "done")
        self.assertEqual(page.locator("#text").text_content(), paused.text)

    def test_nothing_overflows_on_any_screen(self):
        self.serve("--live-all", "--live-prompts", drafter_policy="DRAFTER_POLICY_AUTO")
        page = self.open(360, 740)
        self.show(page, asking(max_tokens=48, text="Long" + "word" * 60))
        self.show(page, asking(max_tokens=48, request_id="r" * 128))
        page.locator("#tree-table-box summary").click()
        page.locator("#prompt-box summary").click()
        for width in (360, 320, 600, 900, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 740})
            for state in ("wide chart", "drawn anew"):
                del state  # Once before the chart follows, once after.
                page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            self.assertEqual(page.evaluate(OVERFLOWING), [], f"at {width} pixels")
        # Large enough for fingers.
        page.set_viewport_size({"width": 360, "height": 740})
        for box in page.locator("button:visible").all():
            size = box.bounding_box()
            self.assertGreaterEqual(min(size["width"], size["height"]), 36)

    def test_can_be_read_by_everybody(self):
        self.serve()
        backgrounds = set()
        for scheme in ("light", "dark"):
            page = self.open(color_scheme=scheme, reduced_motion="reduce")
            self.show_drafted(page)
            backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            for selector in ("#text .token.accepted", "#text .token.bonus", "#status", "#output-names", "#tenants th", "#pause",
                             "#candidates tr.chosen td", "#generations small", "footer"):
                contrast = page.locator(selector).first.evaluate(CONTRAST)
                self.assertGreaterEqual(contrast, 4.5, f"{selector}, {scheme}")
            # Not by colour alone.
            line = "(node) => getComputedStyle(node).textDecorationLine"
            self.assertEqual(page.locator("#text .token.bonus").first.evaluate(line), "underline")
            self.assertEqual(page.locator("#text .token.accepted").first.evaluate(line), "none")
            dash = "(node) => getComputedStyle(node).strokeDasharray"
            page.evaluate("showRound(current().rounds.findIndex((round) => round.accepted > 0))")
            self.assertEqual(page.locator("#tree .edge.accepted").first.evaluate(dash), "none")
            page.evaluate("showRound(current().rounds.findIndex((round) => round.accepted < round.nodes))")
            self.assertNotEqual(page.locator("#tree .edge.rejected").first.evaluate(dash), "none")
            self.assertEqual(page.evaluate("document.getAnimations().length"), 0)
        self.assertEqual(len(backgrounds), 2, "a dark scheme is dark")

    def test_says_when_the_router_is_gone_and_comes_back(self):
        address = f"127.0.0.1:{fixed_port()}"
        # Slow enough that the second request is under way when the router is killed.
        self.serve(address=address, target_ms=30)
        page = self.open()
        done = self.show(page, asking(max_tokens=8))
        endless = self.generate(asking(max_tokens=400)).read(num_tokens=4)
        self.wait_shown(page, endless.started.request_id, "running")
        self.router.kill()
        self.wait_status(page, "Stream broken", "Trying again in")
        self.wait_shown(page, endless.started.request_id, "interrupted")
        self.assertIn("may go on unseen", page.locator("#notes").inner_text())
        self.assertTrue(page.locator("#retry").is_visible())
        self.wait_status(page, "cannot be reached")
        # What was shown is still there.
        self.assertEqual(page.locator("#generations li").count(), 2)
        page.locator("#generations button").nth(1).click()
        self.wait_shown(page, done.started.request_id)
        self.assertEqual(page.locator("#text").text_content(), done.text)

        self.connect_router([self.verifier.address], self.drafter.address, flags=(LISTEN, address))
        # Unless the page has just tried again by itself, when the button is gone.
        page.evaluate("() => { const retry = document.getElementById('retry'); if (!retry.hidden) retry.click(); }")
        self.wait_status(page, "Live")
        self.assertIn("was restarted", page.locator("#notice").inner_text())
        page.keyboard.press("f")
        self.wait_shown(page, endless.started.request_id, "lost")
        self.show(page, asking(max_tokens=8))

    def test_says_when_the_router_shuts_down(self):
        self.serve()
        page = self.open()
        self.router.send(15)
        self.wait_status(page, "Stream broken: the router is shutting down")
        self.assertEqual(self.router.close(), 0)
        self.servers.remove(self.router)

    def test_a_browser_too_many_is_told_so(self):
        self.serve()
        for _ in range(16):
            watching = http.client.HTTPConnection("127.0.0.1", self.router.live_port, timeout=60)
            self.addCleanup(watching.close)
            watching.request("GET", "/events")
            self.assertEqual(watching.getresponse().status, 200)
        context = self.browser.new_context()
        self.addCleanup(context.close)
        second = context.new_page()
        second.goto(f"http://127.0.0.1:{self.router.live_port}/")
        self.wait_status(second, "the router refused (503)", "too many browsers watch already (the limit is 16)")

    def test_is_off_unless_asked_for(self):
        self.start_stack()
        self.assertIsNone(self.router.live_port)
        router = self.start_router([self.verifier.address], self.drafter.address, flags=("--live-all",))
        self.assertEqual(router.close(), 2)
        self.assertIn("expected --live-listen as well", router.log)
        self.servers.remove(router)
        router = self.start_router(
            [self.verifier.address], self.drafter.address, flags=(LISTEN, "0.0.0.0:0")
        )
        self.assertEqual(router.close(), 1)
        self.assertIn("other machines can reach", router.log)
        self.servers.remove(router)


if __name__ == "__main__":
    assert (MODELS / TARGET).is_dir() and DRAFTERS
    unittest.main(verbosity=2)
