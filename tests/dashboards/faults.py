"""Faults on live processes, one after the other, with a second for every minute of the rules: for each the alert that
should fire does, and no other. docs/operate/operations.md says how to run it; it takes about six minutes.

    wrong         a draft model that takes tokens for others        -> TandemAcceptanceDrop
    slow          a draft model whose passes take a second          -> TandemFallback
    memory        a pool of keys and values for a few requests      -> TandemKvExhausted
    places        a router that lets one request run at a time      -> TandemQueue
    certificates  a verifier's that ends in ten days, and one that  -> TandemCertificateExpiry, as a warning and then
                  ended yesterday, renewed while it serves             as critical
"""

import sys
import time
import unittest

from stack import (
    DRAFTERS,
    LONG_DAYS,
    TENANTS,
    Prometheus,
    Stack,
    Traffic,
    calibration_prompts,
    wait_until,
    wrong_draft_model,
)

PATIENCE = 240.0
QUIET_SECONDS = 15
FIRING_SECONDS = 10


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.stack = Stack(tls=True)
        self.addCleanup(self.stack.close)
        self.stack.start_all()
        self.prometheus = Prometheus(self.stack, scaled=True)
        self.addCleanup(self.prometheus.close)
        self.traffic = None
        self.addCleanup(self.stop_traffic)

    def start_traffic(self, **options):
        # Stories, for one tenant, whose drafter is trained for them.
        stories = [prompt for prompt in calibration_prompts(["text"]) if "def " not in prompt]
        options = {"prompts": stories, "mistakes": False, "tenants": TENANTS[:1], **options}
        self.traffic = Traffic(self.stack, **options)

    def stop_traffic(self):
        if self.traffic is not None:
            self.traffic.stop()
        self.traffic = None

    def wait_quiet(self):
        """Until nothing has fired for a while."""
        quiet_since = time.monotonic()

        def quiet():
            nonlocal quiet_since
            if self.prometheus.alerts("firing"):
                quiet_since = time.monotonic()
            time.sleep(0.5)
            return time.monotonic() - quiet_since > QUIET_SECONDS

        wait_until(quiet, "no alert", timeout=PATIENCE)

    def expect(self, alert, severity="warning"):
        """It fires, and from then on nothing else does."""
        began = time.monotonic()
        wait_until(lambda: self.prometheus.severities(alert) == {severity}, f"{alert}: {severity}", timeout=PATIENCE)
        fired = time.monotonic()
        # What the start of the fault itself set off, as that a process was gone for a moment, may take this long to pass.
        wait_until(lambda: self.prometheus.alerts("firing") == {alert}, f"{alert} alone", timeout=30.0)
        alone = time.monotonic()
        while time.monotonic() - alone < FIRING_SECONDS:
            self.assertEqual(self.prometheus.alerts("firing"), {alert})
            self.assertEqual(self.prometheus.severities(alert), {severity})
            time.sleep(0.5)
        print(f"{alert}: fired {fired - began:.0f} s after the fault, alone, as {severity}", file=sys.stderr)

    def expect_expiry(self, severity):
        """The alert fires like this, and what runs goes on: its connections exist."""
        self.expect("TandemCertificateExpiry", severity)
        completed = self.traffic.completed
        wait_until(lambda: self.traffic.completed > completed + 4, "requests")
        self.assertEqual(self.traffic.failures, [])

    def replace(self, role, *flags, traffic=None, **options):
        """With nothing running, so that no request fails for it."""
        self.stop_traffic()
        starter = getattr(self.stack, f"start_{role}")
        self.stack.replace(role, starter, *flags, **options)
        self.start_traffic(**(traffic or {}))

    def test_each_fault_fires_its_alert_and_no_other(self):
        self.start_traffic()
        time.sleep(30)  # A past to compare with.
        self.wait_quiet()

        wrong = wrong_draft_model(self.stack.folder)
        self.replace("drafter", models={name: wrong for name in DRAFTERS})
        self.expect("TandemAcceptanceDrop")

        self.replace("drafter")
        self.wait_quiet()
        self.replace("drafter", "--simulate-draft-ms", "1000")
        self.expect("TandemFallback")

        self.replace("drafter")
        self.wait_quiet()
        self.replace("verifier", "--kv-tokens", "512", traffic={"clients": 8, "max_tokens": 160})
        self.expect("TandemKvExhausted")

        self.replace("verifier")
        self.wait_quiet()
        self.replace("router", traffic={"clients": 8, "max_tokens": 96}, max_concurrent_requests=1)
        self.expect("TandemQueue")

        self.replace("router")
        self.wait_quiet()
        self.stack.renew("verifier", days=10)
        self.expect_expiry("warning")
        self.stack.renew("verifier", days=-1)
        self.expect_expiry("critical")
        self.stack.renew("verifier", days=LONG_DAYS)
        self.wait_quiet()


if __name__ == "__main__":
    unittest.main()
