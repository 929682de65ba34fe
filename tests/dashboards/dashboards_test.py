"""Dashboards, rules and alerts against the running services: a real Prometheus scrapes them under mixed traffic, and
whatever a panel, a rule or an alert asks for must be there. Names in dashboards, rules and documents are those of the
binaries, and the other way round."""

import json
import pathlib
import re
import subprocess
import sys
import time
import unittest

from stack import (
    DRAFTERS,
    GRAFANA,
    HEAD_TENANT,
    MODELS,
    PATIENCE_SECONDS,
    PROMETHEUS,
    REPOSITORY,
    TENANTS,
    Prometheus,
    Stack,
    Traffic,
    calibration_prompts,
    wait_until,
    wrong_draft_model,
)

DASHBOARDS = ("acceptance", "drafters", "serving", "verifier")
ALERTS_TEST = pathlib.Path(__file__).with_name("alerts_test.yml")
METRICS_PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"
RUNBOOKS_PAGE = REPOSITORY / "docs" / "operate" / "operations.md"
# Counters whose series begin with the first event, which a healthy stack does not have; panels of them say so. Their
# names must be in the services' sources.
EMPTY_WHEN_HEALTHY = {
    "tandem_router_retries_total",
    "tandem_router_canary_rollbacks_total",
    "tandem_router_canary_promotions_total",
    # Of trials, and of tenants whose traffic is kept.
    "tandem_router_canary_tokens_per_round",
    "tandem_router_canary_margin",
    "tandem_router_canary_requests",
    "tandem_router_spool_bytes",
    "tandem_router_spool_records_total",
    "tandem_router_spool_dropped_total",
    "tandem_verifier_drafter_random",
    "tandem_drafter_sessions_refused_total",
    "tandem_drafter_model_changes_total",
    # Of the control group, which the fixed windows of this stack have none of.
    "tandem_speculation_speedup",
    "tandem_speculation_speedup_low",
    "tandem_speculation_speedup_high",
    "tandem_speculation_control_blocks_total",
    # Of a choice by prediction that was wrong: by chance, there may be none yet.
    "tandem_router_choice_surprises_total",
    # Drafters that hang or are out of time to score, and verifiers that load while requests come.
    "tandem_router_feedback_withheld_total",
    "tandem_router_verifier_waits_total",
}
NAME = re.compile(r"\b(?:tandem_\w+|process_\w+|vllm:\w+|(?:drafter|instance|model):tandem_\w+:\w+|ALERTS|up)\b")
# Panels of the acceptance dashboard, and what fires when a drafter earns nothing.
DRAFTED = "Drafted rounds"
BY_SOURCE = "Accepted tokens by source"
ACCEPTANCE = "Acceptance rate by drafter"
DRAFTER_ALERTS = ("TandemDrafterLost", "TandemDrafterWrong", "TandemDrafterSuspended", "TandemDrafterQuarantined")
# Long enough for drafters to be explored and for windows of rates to fill.
ENOUGH_REQUESTS = 60


def panels(name):
    board = json.loads((GRAFANA / f"{name}.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def family(name):
    """The metric that a series of a histogram belongs to."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def names_in(expression):
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    without_labels = re.sub(r"\{[^}]*\}|\b(by|on|without|ignoring|group_left|group_right) \([^)]*\)", "", without_strings)
    return set(NAME.findall(without_labels))


def exposed_names(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))


def promtool(*arguments, **options):
    run = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, **options)
    return run.returncode, run.stdout + run.stderr


class FilesTest(unittest.TestCase):
    """What can be said without running anything."""

    def test_every_panel_explains_itself_and_no_data_source_is_fixed(self):
        self.assertEqual(sorted(path.stem for path in GRAFANA.glob("*.json")), sorted(DASHBOARDS))
        for name in DASHBOARDS:
            text = (GRAFANA / f"{name}.json").read_text()
            board = json.loads(text)
            uids = set(re.findall(r'"datasource": \{"type": "prometheus", "uid": "([^"]*)"\}', text))
            self.assertEqual(uids, {"${datasource}"}, name)
            self.assertEqual(text.count('"datasource":'), text.count('"uid": "${datasource}"'), name)
            self.assertEqual(board["templating"]["list"][0]["type"], "datasource", name)
            self.assertEqual(board["panels"][0]["title"], "Headline", name)
            self.assertTrue(all(panel["type"] == "stat" for panel in board["panels"][1:7]), name)
            self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]), name)
            for panel in panels(name):
                self.assertIn("Bad: ", panel["description"], f"{name}: {panel['title']}")
                self.assertTrue(panel["targets"], panel["title"])

    def test_links_lead_to_runbooks(self):
        headings = re.findall(r"^### (Tandem\w+)$", RUNBOOKS_PAGE.read_text(), re.MULTILINE)
        anchors = {heading.lower() for heading in headings}
        rules = (PROMETHEUS / "alerts.rules.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertEqual(sorted(headings), sorted(set(alerts)), "a runbook for each alert, and no other")
        for path in GRAFANA.glob("*.json"):
            linked = set(re.findall(r"docs/operate/operations\.md#(tandem\w+)", path.read_text()))
            self.assertEqual(linked - anchors, set(), path.name)
        # Each alert has its own, also where two severities share a name.
        runbooks = re.findall(r"runbook_url: docs/operate/operations\.md#(\w+)", rules)
        self.assertEqual(runbooks, [alert.lower() for alert in alerts])

    def test_rules_hold_and_each_alert_fires_and_does_not(self):
        code, output = promtool("check", "rules", *sorted(PROMETHEUS.glob("*.rules.yml")))
        self.assertEqual(code, 0, output)
        code, output = promtool("test", "rules", ALERTS_TEST)
        self.assertEqual(code, 0, output)
        cases = ALERTS_TEST.read_text()
        for alert in re.findall(r"- alert: (\w+)", (PROMETHEUS / "alerts.rules.yml").read_text()):
            self.assertRegex(cases, rf"alertname: {alert}, exp_alerts: \[\]", "where it does not fire")
            self.assertRegex(cases, rf"alertname: {alert}\n", "where it fires")


class LiveTest(unittest.TestCase):
    """One stack for all: it takes a while until there is data for everything."""

    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(tls=True)
        cls.addClassCleanup(cls.stack.close)
        cls.stack.start_all(
            verifier_flags=("--metrics-compat", "vllm"), router_flags=("--feedback-share", "1.0"), head=True
        )
        cls.prometheus = Prometheus(cls.stack)
        cls.addClassCleanup(cls.prometheus.close)
        cls.traffic = Traffic(cls.stack, tenants=(*TENANTS, HEAD_TENANT), max_tokens=24)
        cls.addClassCleanup(cls.traffic.stop)
        predicted = "tandem_router_choice_predicted_acceptance_count"
        wait_until(
            lambda: cls.traffic.completed >= ENOUGH_REQUESTS and (cls.stack.servers["router"].metric(predicted) or 0) > 1,
            "traffic, and choices by prediction",
            timeout=3 * PATIENCE_SECONDS,
        )
        # Rates need two samples of the last series to appear.
        cls.scraped_until(cls, 4)

    def scraped_until(self, more):
        def samples():
            found = self.prometheus.query("sum(count_over_time(up[1h]))")
            return found[0][1] if found else 0  # Nothing before the first scrape.

        enough = samples() + 3 * more
        wait_until(lambda: samples() >= enough, "scrapes")

    @classmethod
    def exposed(cls):
        return {role: exposed_names(server.scrape()) for role, server in cls.stack.servers.items()}

    def assert_data(self, expression, where):
        """Data, or for want of a fault none of a metric that is documented so."""
        expression = expression.replace("$__rate_interval", "30s")
        expression = re.sub(r"\$(tenant|target|drafter|model|instance)\b", ".*", expression)
        if {family(name) for name in names_in(expression)} & EMPTY_WHEN_HEALTHY:
            result = self.prometheus.query(expression)
            values = [value for _, value in result]
            self.assertTrue(not result or any(value == value for value in values), f"{where}: only NaN for {expression}")
            return

        def has_data():
            return any(value == value for _, value in self.prometheus.query(expression))

        # Traffic goes on meanwhile, and scrapes.
        wait_until(has_data, f"{where}: data that is more than NaN for {expression}")

    def test_every_panel_has_data(self):
        for name in DASHBOARDS:
            for panel in panels(name):
                for target in panel["targets"]:
                    with self.subTest(dashboard=name, panel=panel["title"]):
                        self.assert_data(target["expr"], f"{name}: {panel['title']}")

    def test_every_variable_has_values(self):
        for name in DASHBOARDS:
            board = json.loads((GRAFANA / f"{name}.json").read_text())
            for variable in board["templating"]["list"][1:]:
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()

                def values(selector=selector, label=label):
                    return {labels.get(label) for labels, _ in self.prometheus.query(selector)} - {None}

                wait_until(values, f"values of {name}: {variable['name']}")

    def test_every_rule_has_data_and_nothing_fires(self):
        for rule in self.prometheus.rules("record"):
            with self.subTest(rule=rule["name"]):
                self.assertEqual(rule["health"], "ok", rule)
                self.assert_data(rule["query"], rule["name"])
                wait_until(lambda n=rule["name"]: self.prometheus.query(n), f"{rule['name']} to be recorded")
        recorded = {rule["name"] for rule in self.prometheus.rules("record")}
        exposed = set.union(*self.exposed().values()) | {"up", "ALERTS"}
        for rule in self.prometheus.rules("alert"):
            with self.subTest(alert=rule["name"]):
                self.assertEqual(rule["health"], "ok", rule)
                for name in names_in(rule["query"]):
                    self.assertIn(family(name), recorded | exposed | EMPTY_WHEN_HEALTHY)
        self.assertEqual(self.prometheus.alerts("firing"), set())

    def test_metrics_are_well_formed(self):
        for role, server in self.stack.servers.items():
            # Colons, which vLLM's names have, are for recording rules only.
            own = "".join(line for line in server.scrape().splitlines(keepends=True) if "vllm:" not in line)
            code, output = promtool("check", "metrics", input=own)
            self.assertEqual((code, output), (0, ""), role)

    def test_names_are_those_of_the_binaries(self):
        exposed = self.exposed()
        sources = "".join(path.read_text() for role in exposed for path in (REPOSITORY / role).rglob("*.cc"))
        for name in EMPTY_WHEN_HEALTHY:
            self.assertIn(f'"{name}"', sources)
        documented = set(re.findall(r"^\| `([a-z0-9_:]+)(?:\{|`)", METRICS_PAGE.read_text(), re.MULTILINE))
        for role, names in exposed.items():
            missing = f"tandem-{role} has metrics that docs/reference/metrics.md lacks"
            self.assertEqual(names - documented, set(), missing)
        live = set.union(*exposed.values())

        def exists(name):
            return name in live or name in EMPTY_WHEN_HEALTHY

        self.assertEqual({name for name in documented if not exists(name)}, set(), "docs/reference/metrics.md")
        recorded = {rule["name"] for rule in self.prometheus.rules("record")}
        for path in [*GRAFANA.glob("*.json"), *PROMETHEUS.glob("*.yml")]:
            used = {family(name) for name in re.findall(r"\b(?:tandem|process)_[a-z0-9_]+(?=[{\[) ])", path.read_text())}
            self.assertEqual({name for name in used if not exists(name)}, set(), path.name)
            rules = set(re.findall(r"\b(?:drafter|instance|model):tandem_\w+:\w+", path.read_text()))
            self.assertEqual(rules - recorded, set(), path.name)
        pages = [*(REPOSITORY / "docs").rglob("*.md"), REPOSITORY / "README.md"]
        for page in pages:
            used = {family(name) for name in re.findall(r"`(tandem_\w+(?:total|seconds|ratio))\b", page.read_text())}
            self.assertEqual({name for name in used if not exists(name)}, set(), page.name)


class LostDrafterTest(unittest.TestCase):
    """With the default local drafter, which goes on earning tokens when the drafter service does not."""

    def panel(self, title):
        (found,) = [panel for panel in panels("acceptance") if panel["title"] == title]
        expression = found["targets"][0]["expr"].replace("$__rate_interval", "15s")
        return re.sub(r"\$(tenant|target|drafter)\b", ".*", expression)

    def values(self, title):
        """By drafter or source."""
        result = self.prometheus.query(self.panel(title))
        return {labels.get("drafter", labels.get("source")): value for labels, value in result}

    def start(self, verifier_flags=()):
        self.stack = Stack()
        self.addCleanup(self.stack.close)
        # Steps so long that drafts pay also on a machine that is busy with other tests.
        steps = ("--simulate-target-ms", "50")
        self.stack.start_all(verifier_flags=("--local-drafter", None, *steps, *verifier_flags))
        self.prometheus = Prometheus(self.stack)
        self.addCleanup(self.prometheus.close)
        self.traffic = Traffic(
            self.stack, tenants=TENANTS[:1], prompts=calibration_prompts(["text"]), mistakes=False
        )
        self.addCleanup(self.traffic.stop)
        self.drafter = TENANTS[0]["drafter"]
        wait_until(
            lambda: self.values(DRAFTED).get(self.drafter, 0) > 0.5, "the drafter at work", timeout=PATIENCE_SECONDS
        )
        for alert in DRAFTER_ALERTS:
            self.assertNotIn(alert, self.prometheus.alerts("firing"))

    def assert_seen(self, since, shown, alert):
        """`shown`: whether a panel tells; what happens in half a minute on a machine of its own may take longer on one
        that tests share."""
        wait_until(shown, "the panel to show it", timeout=PATIENCE_SECONDS)
        shown_after = time.monotonic() - since
        wait_until(lambda: alert in self.prometheus.alerts("firing"), alert, timeout=PATIENCE_SECONDS)
        fired_after = time.monotonic() - since
        print(f"{alert}: shown after {shown_after:.0f} s, fired after {fired_after:.0f} s", file=sys.stderr)
        self.assertLess(max(shown_after, fired_after), 60)
        # Prompt lookup is at work, and none of it is the drafter's.
        self.assertGreater(self.values(BY_SOURCE)["local"], 0)
        self.assertEqual(self.traffic.failures, [])

    def test_a_dead_drafter(self):
        self.start()
        self.stack.servers["drafter"].send(9)
        self.assert_seen(time.monotonic(), lambda: self.values(DRAFTED).get(self.drafter) == 0, "TandemDrafterLost")
        wait_until(lambda: self.values(BY_SOURCE).get("drafter") == 0, "nothing of the drafter's")
        self.assertNotIn(self.drafter, self.values(ACCEPTANCE))

    def test_a_drafter_that_guesses_at_random(self):
        self.start(verifier_flags=("--window-policy", "goodput"))
        wrong = wrong_draft_model(self.stack.folder)
        models = {name: MODELS / f"tandem-draft-{name}" for name in DRAFTERS} | {self.drafter: wrong}
        self.stack.replace("drafter", self.stack.start_drafter, models=models)
        since = time.monotonic()
        self.assert_seen(
            since, lambda: self.values(ACCEPTANCE).get(self.drafter, 1.0) < 0.05, "TandemDrafterWrong"
        )
        # Rounds without drafts may fill the window first; the alert that tells why takes the other's place.
        wait_until(
            lambda: self.prometheus.alerts("firing") & {"TandemDrafterWrong", "TandemDrafterSuspended"}
            == {"TandemDrafterWrong"},
            "the cause alone to fire",
        )

    def test_a_drafter_that_is_too_slow_to_pay(self):
        self.start(verifier_flags=("--window-policy", "goodput"))
        self.stack.replace("drafter", self.stack.start_drafter, "--simulate-draft-ms", "500")
        since = time.monotonic()
        self.assert_seen(since, lambda: self.values(DRAFTED).get(self.drafter, 1.0) < 0.1, "TandemDrafterSuspended")


if __name__ == "__main__":
    unittest.main()
