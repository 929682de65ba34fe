"""A router with the HTTP API. What clients see of it is held against OpenAI's schema when a test ends."""

import openai
from openai_schema import WireTap
from processes import PATIENCE_SECONDS, ProcessTest


class HttpStackTest(ProcessTest):
    def start_router(self, verifiers, drafter_address, flags=(), **tenant):
        flags = ("--http-listen", "127.0.0.1:0", *flags)
        return super().start_router(verifiers, drafter_address, flags, **tenant)

    def connect_router(self, verifiers, drafter_address, **tenant):
        super().connect_router(verifiers, drafter_address, **tenant)
        self.tap = WireTap(self.router.http_port)
        self.addCleanup(self.tap.close)
        self.addCleanup(self.check_answers)

    def check_answers(self):
        findings = self.tap.findings()[1]
        if findings:
            self.fail("\n".join(findings[:3]))

    @property
    def root(self):
        return f"http://127.0.0.1:{self.tap.port}"

    @property
    def url(self):
        """What OPENAI_BASE_URL is."""
        return f"{self.root}/v1"

    def client(self, kind=openai.OpenAI, token="secret"):
        return kind(base_url=self.url, api_key=token, max_retries=0, timeout=PATIENCE_SECONDS)
