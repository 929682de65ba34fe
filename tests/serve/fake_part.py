#!/usr/bin/env python3
"""Stands for tandem-router, tandem-verifier or tandem-drafter, whichever name it is started by, in tests of `tandem serve`.

It says what they say, writes to the journal in $JOURNAL what happens to it, and behaves as $FAKE_<PART> says: `fails` at its start,
or is `stubborn` about SIGTERM. The router answers HTTP, and every path of $REFUSED with an error.
"""

import http.server
import json
import os
import pathlib
import signal
import sys
import threading

PART = pathlib.Path(sys.argv[0]).name.removeprefix("tandem-")
BEHAVIOUR = os.environ.get(f"FAKE_{PART.upper()}", "")


def note(event, **fields):
    with open(os.environ["JOURNAL"], "a", encoding="utf-8") as journal:
        journal.write(json.dumps({"part": PART, "event": event, **fields}) + "\n")


def log(text):
    print(f"2026-01-01T00:00:00.000Z INFO tandem-{PART}: {text}", file=sys.stderr, flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        note("asked", path=self.path, body=json.loads(body), authorization=self.headers["Authorization"])
        self.send_response(404 if self.path in os.environ.get("REFUSED", "").split(":") else 200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def main():
    note("started", arguments=sys.argv[1:], pid=os.getpid())
    if BEHAVIOUR == "fails":
        log('cannot serve error="NOT_FOUND: no such model"')
        return 1
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if BEHAVIOUR == "stubborn" else ended.set())
    if PART == "router":
        wanted = int(sys.argv[sys.argv.index("--http-listen") + 1].rpartition(":")[2])
        server = http.server.ThreadingHTTPServer(("127.0.0.1", wanted), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log(f"listening address=127.0.0.1:4711 metrics_port=0 health_port=0 http_port={server.server_port} live_port=0 models=1")
        log('ready for requests models_without_verifier=""')
    else:
        log(f"serving address=unix:/{PART}.sock models=1")
    ended.wait()
    note("ended")
    return 0


sys.exit(main())
