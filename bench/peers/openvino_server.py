#!/usr/bin/env python3
"""Serves OpenVINO GenAI's continuous batching as POST /v1/completions, so that compare_servers.py can measure it.

Needs `pip install openvino-genai`. Reads GGUF files in float16, Q8_0 or Q4_0. OpenVINO's reader converts each file once and
stores the result beside it. Streams text as server-sent events, and ignores request fields that it does not know.
"""

import argparse
import http.server
import json
import pathlib
import shutil
import threading
import time

import numpy as np
import openvino
import openvino_genai

IDLE_SECONDS = 0.0005


def converted(path):
    """The folder with OpenVINO's form of the GGUF file `path`."""
    folder = path.with_suffix(".openvino")
    if not (folder / "openvino_model.xml").exists():
        folder.mkdir(exist_ok=True)
        copy = folder / path.name
        shutil.copyfile(path, copy)
        openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    return folder


class Engine:
    """The pipeline, and the thread that steps it while there are requests."""

    def __init__(self, args):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 1  # GB
        scheduler.enable_prefix_caching = False
        folder, options = converted(args.target), {"INFERENCE_NUM_THREADS": args.threads}
        if args.prompt_lookup:
            options["prompt_lookup"] = True
        if args.draft:
            options["draft_model"] = openvino_genai.draft_model(str(converted(args.draft)), "CPU")
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", options)
        self.tokenizer = self._pipeline.get_tokenizer()
        self._args = args
        self._next_id = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            with self._lock:
                busy = self._pipeline.has_non_finished_requests()
                if busy:
                    self._pipeline.step()
            if not busy:
                time.sleep(IDLE_SECONDS)

    def encode(self, text):
        """Token ids of `text` after the begin-of-text token, which OpenVINO's GGUF reader omits."""
        ids, bos = self.tokenizer.encode(text).input_ids.data, self.tokenizer.get_bos_token_id()
        if bos >= 0 and ids[0, 0] != bos:
            ids = np.insert(ids, 0, bos, axis=1)
        return openvino.Tensor(np.ascontiguousarray(ids))

    def start(self, prompt, body):
        """A handle whose read() gives the new tokens."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = body.get("max_tokens", 16)
        config.eos_token_id = self.tokenizer.get_eos_token_id()
        if body.get("temperature", 1.0) > 0:
            config.do_sample, config.temperature, config.rng_seed = True, body.get("temperature", 1.0), body.get("seed", 0)
        if self._args.draft or self._args.prompt_lookup:
            config.num_assistant_tokens = self._args.draft_tokens
        if self._args.prompt_lookup:
            config.max_ngram_size = 3
        with self._lock:
            self._next_id += 1
            return self._pipeline.add_request(self._next_id, prompt, config)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, chunk):
        data = f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        handle = self.engine.start(self.engine.encode(body["prompt"]), body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens, sent = [], ""
        while True:
            finished = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            new = []
            while handle.can_read():
                for output in handle.read().values():
                    new += output.generated_ids
            if new:
                tokens += new
                text = self.engine.tokenizer.decode(tokens)
                if len(text) > len(sent) and not text.endswith("\ufffd"):
                    self._send({"choices": [{"index": 0, "text": text[len(sent) :]}]})
                    sent = text
            elif finished:
                break
            else:
                time.sleep(IDLE_SECONDS)
        self._send({"choices": [], "usage": {"completion_tokens": len(tokens)}})
        self._send("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=pathlib.Path, required=True, help="GGUF file of the target")
    add("--draft", type=pathlib.Path, help="GGUF file of a draft model")
    add("--prompt-lookup", action="store_true", help="draft by prompt lookup, without a draft model")
    add("--draft-tokens", type=int, default=3, help="draft tokens per round (default %(default)s)")
    add("--threads", type=int, default=2, help="threads (default %(default)s)")
    add("--port", type=int, required=True)
    Handler.engine = Engine(parser.parse_args())
    http.server.ThreadingHTTPServer.request_queue_size = 128  # Many clients may call at once.
    http.server.ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
