#!/usr/bin/env python3
"""Compares the speed-up that a verifier measures by its control group with one that is measured from outside: pairs of the same
requests with drafts and without.

    tandem serve smollm2-135m --verifier-flag=--metrics-listen=127.0.0.1:9102 \\
      --run bench/control_group.py --metrics http://127.0.0.1:9102/metrics --prompts prompts/mt_bench.jsonl

Prints a row for each load. Requests are streamed, and their prompts do not count: the time of a request is from its first token to
its last. Needs only the standard library.
"""

import argparse
import os
import pathlib
import re
import statistics
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import completions  # noqa: E402  The folder has to be named first.
from compare_servers import read_prompts  # noqa: E402

SERIES = re.compile(r'^tandem_speculation_speedup(|_low|_high)\{.*?drafter="([^"]*)".*?requests="(\d+)".*?\} (\S+)$', re.MULTILINE)


def measured(text):
    """{(drafter, load): {"": speed-up, "_low": .., "_high": ..}} of a page of metrics."""
    found = {}
    for part, drafter, load, value in SERIES.findall(text):
        found.setdefault((drafter, int(load)), {})[part] = float(value)
    return found


def scrape(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as reply:
        return reply.read().decode()


def rate(done):
    """Tokens per second behind the first one, over all requests."""
    seconds = sum(one.end - one.first_token for one in done)
    return sum(one.tokens - 1 for one in done) / seconds if seconds > 0 else 0.0


def pairs(bodies, concurrency, repetitions, url, key):
    """Speed-ups of the pairs; RuntimeError if an output depends on drafts."""
    ratios = []
    for turn in range(repetitions):
        for first in range(0, len(bodies), concurrency):
            some = bodies[first : first + concurrency]
            if len(some) < concurrency:
                continue
            found = {}
            for plain in (True, False) if (turn + first // concurrency) % 2 else (False, True):
                sent = [body | ({"tandem": {"speculation": False}} if plain else {}) for body in some]
                found[plain], _ = completions.run(url, key, sent, concurrency)
            if [one.text for one in found[True]] != [one.text for one in found[False]]:
                raise RuntimeError("an output with drafts is not that without")
            ratios.append(rate(found[False]) / rate(found[True]))
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--metrics", required=True, help="page of the verifier's metrics")
    add("--prompts", required=True, type=pathlib.Path, help="file of prompts, or a folder of files")
    add("--num-prompts", type=int, default=8, help="prompts of each file (%(default)s)")
    add("--concurrency", default="1", help="requests at a time, for example 1,4 (%(default)s)")
    add("--repetitions", type=int, default=6, help="pairs of each prompt (%(default)s)")
    add("--max-tokens", type=int, default=128, help="most tokens of an answer (%(default)s)")
    args = parser.parse_args()
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    kinds = read_prompts(args.prompts, args.num_prompts, True)
    bodies = [body | {"model": "", "temperature": 0, "max_tokens": args.max_tokens} for some in kinds.values() for body in some]
    with urllib.request.urlopen(urllib.request.Request(url + "/models", headers={"Authorization": f"Bearer {key}"})) as reply:
        model = re.search(r'"id": ?"([^"]+)"', reply.read().decode())[1]
    bodies = [body | {"model": model} for body in bodies]
    for load in map(int, args.concurrency.split(",")):
        completions.run(url, key, bodies[:load], load)
        ratios = pairs(bodies, load, args.repetitions, url, key)
        if not ratios:
            sys.exit(f"control_group.py: expected at least {load} prompts for {load} requests at a time")
        print(f"{load} at a time: pairs from outside {statistics.median(ratios):.3f} (median of {len(ratios)}), "
              f"mean {statistics.fmean(ratios):.3f}")
    page = scrape(args.metrics)
    for (drafter, load), of in sorted(measured(page).items(), key=lambda item: item[0][::-1]):
        print(f"control group: {load} or more at a time, drafter {drafter}: {of[''] :.3f} ({of['_low']:.3f} to {of['_high']:.3f})")
    print(re.search(r"^tandem_speculation_control_steps_total.*$", page, re.MULTILINE)[0])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        sys.exit(f"control_group.py: {error}")
