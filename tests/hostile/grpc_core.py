#!/usr/bin/env python3
"""Runs the attacks that gRPC 1.51 does not bound against the gRPC core in Python's grpcio: a bare server in its own process,
with the limits of Tandem's servers. Use it to test versions of gRPC that the container image has and this machine does not,
because grpcio has the same core.

    tests/hostile/grpc_core.py [--seconds 4]
"""

import argparse
import concurrent.futures
import os
import pathlib
import resource
import subprocess
import sys
import time

import attacks
import grpc

# As common/rpc/peer_limits.cc has them.
OPTIONS = [
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.per_message_decompression", 0),
]


def serve():
    """Refuses every call, until standard input ends. Then says what it used."""

    class Refusing(grpc.GenericRpcHandler):
        def service(self, details):
            def refuse(_, context):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")

            return grpc.unary_unary_rpc_method_handler(refuse)

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Refusing()], options=OPTIONS)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss / 1024:.0f}", flush=True)
    sys.stdout.close()
    os._exit(0)  # Its threads may be in the middle of calls.


def run(name, seconds, **options):
    with subprocess.Popen(
        [sys.executable, "-B", __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        address = f"127.0.0.1:{server.stdout.readline().strip()}"
        began = time.monotonic()
        cost = attacks.ATTACKS[name](address, seconds, **options)
        lasted = time.monotonic() - began
        server.stdin.close()
        cpu, peak = server.stdout.readline().split()
        asked = ", ".join(f"{key}={value}" for key, value in options.items())
        print(
            f"| {grpc.__version__} | {name}({asked}) | {cost.connections}, {cost.sent_bytes / 1e6:.1f} MB "
            f"| {float(cpu) / lasted:.2f} cores | {peak} MiB |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each attack")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    print("| core | attack | connections, bytes sent | processor | peak memory |\n| --- | --- | --- | --- | --- |")
    run("endless_header", arguments.seconds, piece=60, huffman=1, megabytes=64)
    run("endless_header", arguments.seconds, piece=60, huffman=1, megabytes=64, connections=4)
    run("refused_calls", arguments.seconds, connections=4)
    run("resets", arguments.seconds, connections=4)
    run("inflating", arguments.seconds)
    run("unfinished_messages", arguments.seconds)
    return None


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    main()
