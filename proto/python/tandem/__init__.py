"""Client of Tandem.

with tandem.Client("router-0:7001", "router-1:7001", token="secret") as client:
    print(client.generate("Once upon a time", max_tokens=64, seed=7).text)
    with client.stream([{"role": "user", "content": "Tell me a story."}]) as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)

AsyncClient is the same with `await`. docs/start/python.md says more.
"""

from tandem.aio import AsyncClient, AsyncStream
from tandem.client import Client, Stream
from tandem.connection import Tls
from tandem.errors import Error
from tandem.output import Chunk
from tandem.request import Options, Prompt
from tandem.retries import RetryPolicy

__all__ = [
    "AsyncClient", "AsyncStream", "Chunk", "Client", "Error", "Options", "Prompt", "RetryPolicy", "Stream", "Tls",
]  # fmt: skip
