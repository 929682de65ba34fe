"""Measures streamed completions of a server with OpenAI's HTTP API, at the client."""

import concurrent.futures
import dataclasses
import http.client
import json
import statistics
import time
import urllib.parse

REQUEST_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Completion:
    """The result of a request. Times are seconds after the call."""

    text: str
    tokens: int
    first_token: float
    end: float

    @property
    def between_tokens(self):
        """Mean seconds between two tokens; 0 for one token."""
        return (self.end - self.first_token) / (self.tokens - 1) if self.tokens > 1 else 0.0


def text_of(choice):
    """What a choice of a chunk adds, of completions or of a chat."""
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def complete(url, key, body):
    """The Completion of POST `url`/completions with `body`, or of /chat/completions if it has messages, streamed. RuntimeError
    if the server refuses it, ends the connection, or does not report the number of tokens in `usage`, because chunks are not
    tokens."""
    parts = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=REQUEST_SECONDS)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    start = time.perf_counter()
    try:
        connection.request("POST", f"{parts.path}{'/chat' if 'messages' in body else ''}/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{url}: HTTP {reply.status}: {reply.read(500).decode(errors='replace')}")
        text, first, end, usage = [], None, start, None
        for line in reply:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                raise RuntimeError(f"{url}: {chunk['error']}")
            usage = chunk.get("usage") or usage
            if piece := "".join(map(text_of, chunk.get("choices", []))):
                end = time.perf_counter()
                first = first or end
                text.append(piece)
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"{url}: {error}") from error
    finally:
        connection.close()
    if not usage:
        raise RuntimeError(f"{url}: the stream has no usage, so its tokens cannot be counted")
    return Completion("".join(text), usage["completion_tokens"], (first or end) - start, end - start)


def run(url, key, bodies, concurrency):
    """(Completions in the order of `bodies`, seconds for all) with `concurrency` requests at a time."""
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        done = list(pool.map(lambda body: complete(url, key, body), bodies))
    return done, time.perf_counter() - start


def figures(completions, seconds):
    """The figures of a run: tokens per second in total, and medians of the times in milliseconds."""
    return {
        "tokens_per_second": sum(one.tokens for one in completions) / seconds,
        "first_token_ms": 1e3 * statistics.median(one.first_token for one in completions),
        "between_tokens_ms": 1e3 * statistics.median(one.between_tokens for one in completions),
    }
