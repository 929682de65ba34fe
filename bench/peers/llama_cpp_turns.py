#!/usr/bin/env python3
"""Measures llama.cpp on request. Answers the same lines as `tandem-bench engine --turns` (README.md)."""

import argparse
import ctypes
import json
import sys
import time

import llama_cpp
import numpy as np


class Runner:
    """A model and one sequence. The first `context` tokens stay computed between steps."""

    def __init__(self, args):
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.use_extra_bufts = not args.no_repack
        self.model = llama_cpp.llama_model_load_from_file(args.path.encode(), model_params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {args.path}")
        params = llama_cpp.llama_context_default_params()
        self.most_tokens = max(args.prefill, args.context + args.rows)
        params.n_ctx = self.most_tokens + 8
        params.n_batch = params.n_ubatch = max(512, args.rows)
        params.n_threads = params.n_threads_batch = args.threads
        self.llama = llama_cpp.llama_init_from_model(self.model, params)
        if not self.llama:
            sys.exit("llama.cpp cannot make a context")
        self.memory = llama_cpp.llama_get_memory(self.llama)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(params.n_batch, 0, 1)
        self.context = args.context
        self.computed = 0  # Tokens of the context that are computed; 0 if the memory holds something else.

    @staticmethod
    @llama_cpp.llama_log_callback
    def _quiet(level, text, data):
        """Only answers go to the output."""

    def _decode(self, tokens, first, logits):
        """One call. `logits`: of which tokens, "all" or "last"."""
        for i, token in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = first + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = logits == "all" or i + 1 == len(tokens)
        self.batch.n_tokens = len(tokens)
        if llama_cpp.llama_decode(self.llama, self.batch) != 0:
            raise ValueError("llama_decode failed")
        llama_cpp.llama_synchronize(self.llama)

    def _some_tokens(self, count):
        return [i * 7919 % self.vocab for i in range(count)]

    def _prompt(self, tokens):
        llama_cpp.llama_memory_clear(self.memory, True)
        self.computed = 0
        for first in range(0, len(tokens), 512):
            self._decode(tokens[first : first + 512], first, "last")

    def step(self, rows):
        """A chain of rows below the context, all with logits."""
        if self.computed != self.context:
            self._prompt(self._some_tokens(self.context))
            self.computed = self.context
        tokens = [i % self.vocab for i in range(rows)]
        start = time.perf_counter()
        self._decode(tokens, self.context, "all")
        seconds = time.perf_counter() - start
        llama_cpp.llama_memory_seq_rm(self.memory, 0, self.context, -1)
        return seconds

    def prefill(self, count):
        tokens = self._some_tokens(count)
        llama_cpp.llama_memory_clear(self.memory, True)
        start = time.perf_counter()
        self._prompt(tokens)
        return time.perf_counter() - start

    def greedy(self, prompt, count):
        self._prompt(prompt)
        tokens = []
        while len(tokens) < count:
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.llama, -1), shape=(self.vocab,))
            tokens.append(int(logits.argmax()))
            self._decode(tokens[-1:], len(prompt) + len(tokens) - 1, "last")
        return tokens

    def answer(self, line):
        request = json.loads(line)
        if request["run"] == "step":
            return {"seconds": [self.step(request["rows"]) for _ in range(request["count"])]}
        if request["run"] == "prefill":
            return {"seconds": [self.prefill(request["tokens"]) for _ in range(request["count"])]}
        if request["run"] == "greedy":
            return {"tokens": self.greedy(request["prompt"], request["tokens"])}
        raise ValueError("run: expected step, prefill or greedy")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="GGUF file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rows", type=int, default=64, help="most rows per step")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the longest prompt")
    parser.add_argument("--no-repack", action="store_true", help="keep weights as in the file; llama.cpp then does not use AMX")
    args = parser.parse_args()
    runner = Runner(args)
    features = llama_cpp.llama_print_system_info().decode().split(" | ")
    enabled = ", ".join(name.split(":")[-1].split("=")[0].strip() for name in features if name.endswith("= 1"))
    detail = f"llama-cpp-python {llama_cpp.__version__}: {enabled}{'; not repacked' if args.no_repack else ''}"
    print(json.dumps({"ready": True, "name": "llama.cpp", "detail": detail}), flush=True)
    for line in sys.stdin:
        try:
            answer = runner.answer(line)
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
