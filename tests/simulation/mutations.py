#!/usr/bin/env python3
"""Plants defects in protocol code, one at a time, and expects the simulations to find each.

All defects go into one copy of the sources (build/mutations), where an environment variable selects one, so that one
build is enough. The product's sources contain none of this. The run fails if a defect is not found.

  tests/simulation/mutations.py [--only NAME] [--list] [--report FILE] [--lock FILE]
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "build" / "mutations"
TARGETS = ["tandem_cluster_test", "tandem_simulation_test", "tandem_router_registry_test", "tandem_router_core_test"]
# The longest run; a longer one counts as endless.
TIMEOUT = 300

# The runs that look for defects: program, tests, and how many seeds.
CLUSTER = "cluster"
STORM = "storm"
DISK = "disk"
LEASES = "leases"
GENERATION = "generation"
RUNS = {
    CLUSTER: ("tandem_cluster_test", "ClusterTest.PromisesHoldUnderFaults", {"TANDEM_CLUSTER_SEEDS": "400"}),
    STORM: ("tandem_simulation_test", "SimulationTest.Outputs*:SimulationTest.Duplicates*", {"TANDEM_SIMULATION_SEEDS": "400"}),
    DISK: ("tandem_cluster_test", "DiskTest.*", {}),
    LEASES: ("tandem_router_registry_test", "LeaseSimulationTest.*", {}),
    # What a simulated client or network does not bring about.
    GENERATION: ("tandem_router_core_test", "GenerationTest.*", {}),
}

# (name, the resulting defect, file, code, the replacement of the code in [[ ]], run). Code that ends with a semicolon
# is a statement, other code an expression.
MUTATIONS = [
    # A request on its way between clients, routers and verifiers.
    ("relay-started-again", "after a failover the client is told `started` again", "router/generation/relay.cc",
     "[[if (started_) return false;]]", "", CLUSTER),
    ("relay-attempt-not-new", "a new attempt is taken for the old one", "router/generation/relay.cc",
     "[[attempt_started_ = false;]]", "", CLUSTER),
    ("relay-tokens-forgotten", "tokens that were sent on are not remembered", "router/generation/relay.cc",
     "[[tokens_.insert(tokens_.end(), chunk.tokens().begin(), chunk.tokens().end());]]", "", CLUSTER),
    ("relay-no-retry", "a verifier that is lost ends the request", "router/generation/relay.cc",
     "[[if (finished_) return {.status = absl::OkStatus()};]]",
     "if (finished_) return {.status = absl::OkStatus()}; if (absl::IsUnavailable(status)) return {.status = status};", CLUSTER),
    ("relay-full-is-internal", "a verifier that is full counts as one that failed", "router/generation/relay.cc",
     "[[return {.retry = current_.rounds() == 0, .status = status};]]",
     "return {.status = absl::InternalError(\"full\")};", CLUSTER),
    # What the router does when, and whom it tells.
    ("generation-output-forgotten", "another verifier begins an output anew", "router/generation/generation.cc",
     "[[request.mutable_emitted()->mutable_ids()->Assign(relay_->tokens().begin(), relay_->tokens().end());]]", "", CLUSTER),
    ("generation-arithmetic-forgotten", "another verifier is not told how the output was computed",
     "router/generation/generation.cc", "[[request.set_arithmetic(arithmetic_);]]", "", CLUSTER),
    ("generation-old-attempt", "events of an attempt that is over are passed on", "router/generation/generation.h",
     "return [[!status_.has_value() && attempt == attempts_ && attempt_ != nullptr]];",
     "!status_.has_value() && attempt_ != nullptr", GENERATION),
    ("generation-failure-uncounted", "a verifier that failed counts as untried", "router/generation/generation.cc",
     "[[if (end.retry) failover_.OnFailed(verifier, host_.num_verifiers());]]", "", CLUSTER),
    ("generation-timer-stale", "a timer that is void starts an attempt", "router/generation/generation.cc",
     "if ([[status_.has_value() || number != timers_]]) return;", "status_.has_value()", GENERATION),
    ("generation-waits-on", "a request that has ended still waits for a verifier", "router/generation/generation.cc",
     "EndAttempt(*status_);\n  [[EndWait();]]", "", CLUSTER),
    ("generation-place-kept", "a request that has ended keeps its place in flight", "router/generation/generation.cc",
     "[[host_.GiveUpPlace(facts_.num_sent);]]", "", CLUSTER),
    ("generation-ends-twice", "a second status takes the place of the first", "router/generation/generation.cc",
     "[[if (status_.has_value()) return;]]\n  status_ = std::move(status);", "", GENERATION),
    ("generation-unacknowledged", "a verifier is not told that its events were taken", "router/generation/generation.cc",
     "[[if (attempt_ != nullptr && attempt == attempts_) attempt_->Acknowledge();]]", "", CLUSTER),
    ("generation-write-overtaken", "a write begins while another one is in flight", "router/generation/generation.cc",
     "if ([[writing_ || finished_ || breaking_]]) return;", "finished_", CLUSTER),
    ("generation-writes-on", "a client that is gone is written to", "router/generation/generation.cc",
     "[[DropQueue();]]\n  Advance();", "", GENERATION),
    ("generation-end-untold", "observers are not told that an attempt has ended", "router/generation/generation.cc",
     "[[Tell([&](GenerationObserver& observer) { observer.OnAttemptEnded(facts_, status, now); });]]", "", GENERATION),
    ("generation-sent-uncounted", "tokens that are sent are not counted", "router/generation/generation.cc",
     "[[facts_.num_sent = relay_->num_tokens();]]", "", CLUSTER),
    ("generation-learned-leaks", "clients see what their window policy has learned", "router/generation/generation.cc",
     "[[if (event.has_finished()) event.mutable_finished()->mutable_speculation()->clear_policy_state();]]", "", GENERATION),
    ("failover-no-wait", "no request waits for a verifier", "router/verifiers/failover.cc",
     "[[if (now >= end) return std::nullopt;]]", "return std::nullopt;", CLUSTER),
    ("failover-tries-for-ever", "attempts in vain are not counted", "router/verifiers/failover.cc",
     "[[std::exchange(progress_, false) ? 0 : in_vain_ + 1]]", "in_vain_", CLUSTER),
    ("choice-place-kept", "a request's place on a verifier is not given back", "router/verifiers/verifier_choice.h",
     "[[--states_[verifier].in_flight;]]", "", CLUSTER),
    ("request-resume-dropped", "a resumed request begins anew", "router/serving/request.cc",
     "[[if (request.has_resume()) *prepared.mutable_emitted() = request.resume().emitted();]]", "", CLUSTER),
    ("request-seed-drawn-anew", "a seed is drawn although there is one", "router/serving/request.cc",
     "[[if (!prepared.sampling().has_seed()) prepared.mutable_sampling()->set_seed(draw());]]",
     "prepared.mutable_sampling()->set_seed(draw());", CLUSTER),
    ("resumption-seed-forgotten", "a client resumes without the seed", "router/cli/resumption.cc",
     "[[request_.mutable_sampling()->set_seed(started.seed());]]", "", CLUSTER),
    ("resumption-tokens-forgotten", "a client resumes from the beginning", "router/cli/resumption.cc",
     "[[request_.mutable_resume()->mutable_emitted()->mutable_ids()->MergeFrom(event.chunk().tokens());]]", "", CLUSTER),
    ("resumption-arithmetic-forgotten", "a client does not say how its output is computed", "router/cli/resumption.cc",
     "[[request_.mutable_resume()->set_arithmetic(event.chunk().arithmetic());]]", "", CLUSTER),
    ("wire-emitted-dropped", "a verifier does not take in the tokens so far", "verifier/rpc/request_wire.cc",
     """[[TANDEM_ASSIGN_OR_RETURN(request.emitted,
                          CheckedTokens(proto.emitted(), "emitted", target.config.vocab_size));]]""", "", CLUSTER),
    ("wire-arithmetic-unchecked", "a verifier goes on with an output that other weights began", "verifier/rpc/request_wire.cc",
     "if ([[proto.arithmetic() != 0 && request.arithmetic != 0 && proto.arithmetic() != request.arithmetic]]) {", "false", CLUSTER),
    ("wire-last-text-dropped", "text that was held back is lost at the end", "verifier/rpc/request_wire.cc",
     "[[finished.set_text(summary.end.text);]]", "", CLUSTER),
    ("wire-replay-forgotten", "stop rules begin anew after a failover", "verifier/rpc/request_wire.cc",
     "[[request.replayed_end = request.output->Replay(request.emitted);]]", "", CLUSTER),
    # Registrations.
    ("registrar-lease-not-renewed", "leases are not prolonged, and nobody notices", "router/registry/registrar.cc",
     "[[if (step == ServerList::Step::kRenew) return leases_->RenewLease(present->entry);]]",
     "if (step == ServerList::Step::kRenew) return absl::OkStatus();", LEASES),
    ("registrar-never-reads", "a router does not read what others registered", "router/registry/registrar.cc",
     "[[if (TakeChange()) to_read_ = true;]]", "to_read_ = false;", LEASES),
    ("registrar-no-doubt", "a router that stood still takes everybody for gone", "router/registry/registrar.cc",
     "[[if (stood_still || (was_away && !is_away)) doubt_until_ = now + ttl;]]", "", LEASES),
    ("list-gone-stays", "who is not heard of stays listed", "router/registry/server_list.cc",
     "[[signs.now < signs.doubt_until || signs.now < known.heard + options_.registration.ttl]]", "true", LEASES),
    ("list-leaving-ignored", "who has left stays listed", "router/registry/server_list.cc",
     "known.left = [[left]];\n", "false", LEASES),
    ("list-older-wins", "an older process takes the place of a younger one", "router/registry/server_list.cc",
     "if ([[StartedBefore(present.server.instance(), server.instance())]]) return absl::OkStatus();", "true", LEASES),
    # A verifier's rounds.
    ("assembler-limit", "the token limit is one too high", "verifier/session/output_assembler.cc",
     "[[num_tokens_ >= rules_.max_tokens]]", "num_tokens_ > rules_.max_tokens", STORM),
    ("assembler-nothing-held-back", "the beginning of a stop string is sent", "verifier/session/output_assembler.cc",
     "[[for (const Matcher& matcher : matchers_) num_kept = std::max(num_kept, matcher.matched);]]", "", STORM),
    ("sampler-output-uncounted", "penalties do not see the output", "common/speculation/target_sampler.cc",
     "[[if (CountsOutput()) ++output_counts_[token];]]", "", STORM),
    ("session-position-stale", "the position does not advance within a round", "verifier/session/session.cc",
     "[[++position;]]\n    if (piece.end.has_value()) {", "", STORM),
    ("session-no-ancestors", "a node of the tree does not see its ancestors", "verifier/session/session.cc",
     "if ([[parent != kRootNode]]) {\n      const uint32_t parent_begin", "false", STORM),
    ("session-kv-not-moved", "keys and values of accepted nodes stay where they were", "verifier/session/session.cc",
     "[[copies->push_back({.from = slots_[*verified.node], .to = kv_.CommittedSlot(position)});]]", "", STORM),
    ("session-scratch-kept", "keys and values of the tree are not given back", "verifier/session/session.cc",
     "[[kv_.FreeAllScratch();]]\n  kv_.MarkComputed(planned_);", "", STORM),
    ("session-planned-too-far", "a token counts as computed that is not", "verifier/session/session.cc",
     "[[kv_.tokens().size() + accepted_.size()]]);\n  kv_.Append(tokens);", "kv_.tokens().size() + accepted_.size() + 1", STORM),
    ("scheduler-deadlines-of-waiting", "requests that wait have no deadline", "verifier/scheduler/scheduler.cc",
     "[[if (session->request().deadline <= now) expired.push_back(session->id());]]", "", STORM),
    ("scheduler-cancel-untold", "a request that is cancelled while it waits has no end", "verifier/scheduler/scheduler.cc",
     "[[listener_->OnFinished(session, reason, cancelled->summary());]]", "", STORM),
    ("mirror-old-epoch", "growth of an earlier opening is taken in", "verifier/session/draft_mirror.cc",
     "if ([[epoch_ == 0 || grow.epoch != epoch_]]) return stale();", "epoch_ == 0", STORM),
    ("mirror-old-root", "growth below an older root is taken for growth below the current one", "verifier/session/draft_mirror.cc",
     "[[if (parent == 0 && !current_commit) return NodeFate::kStale;]]", "", STORM),
    ("mirror-doubles-unnoticed", "a message that comes twice counts as one that breaks the protocol",
     "verifier/session/draft_mirror.cc", "report.result = [[GrowResult::kDuplicate]];", "GrowResult::kInvalid", STORM),
    # A drafter's session, and blocks of keys and values.
    ("drafter-commit-repeated", "a commit that comes twice is taken for one that is missing", "drafter/drafting/draft_session.cc",
     "[[commit.commit_no <= commit_no_]])", "false", STORM),
    ("drafter-hash-stale", "a drafter's prefix hash does not follow its commits", "drafter/drafting/draft_session.cc",
     "[[prefix_hash_ = commit.prefix_hash;]]\n  said_exhausted_ = false;", "", STORM),
    ("drafter-tree-kept", "the tree is not dropped with its root", "drafter/drafting/draft_session.cc",
     "if (!reaches_root) {\n    [[DropTree(&counters_->pruned_nodes);]]", "", STORM),
    ("pool-salt-ignored", "a tenant's prompt is cached for another", "common/engine/block_pool.cc",
     "Name name{.space = [[space]], .parent = parent};", "PrefixSpace()", CLUSTER),
    ("pool-released-early", "a block that others hold is given back", "common/engine/block_pool.cc",
     "[[if (--blocks_[block].num_holders > 0) return;]]", "--blocks_[block].num_holders;", STORM),
    ("pool-name-kept", "a block that is used anew keeps its old name", "common/engine/block_pool.cc",
     "[[named_.erase(blocks_[block].name);]]\n    blocks_[block].number = 0;", "", STORM),
    ("pool-match-unheld", "a block of the prefix cache is used without being held", "common/engine/block_pool.cc",
     "[[if (entry.num_holders++ == 0) RemoveFromCached(it->second);]]",
     "if (entry.num_holders == 0) RemoveFromCached(it->second);", STORM),
    # The router's state.
    ("store-not-synced", "transactions are acknowledged before they are on the disk", "router/state/sqlite_store.cc",
     "[[\"PRAGMA synchronous = FULL\"]]", "\"PRAGMA synchronous = OFF\"", DISK),
    ("store-not-rolled-back", "a transaction that failed stays open", "router/state/sqlite_store.cc",
     "if ([[!status.ok() && sqlite3_get_autocommit(database_) == 0]]) {", "false", DISK),
    ("store-full-is-success", "a full disk counts as success", "router/state/sqlite_store.cc",
     "if ([[code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE]]) return absl::OkStatus();",
     "code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE || (code & 0xff) == SQLITE_FULL", DISK),
]

HEADER = """#pragma once
#include <cstdlib>
namespace tandem {
inline bool IsPlanted(int number) {
  static const int chosen = [] {
    const char* const value = std::getenv("TANDEM_MUTATION");
    return value == nullptr ? 0 : std::atoi(value);
  }();
  return number == chosen;
}
}  // namespace tandem
"""


def planted(number, right, wrong):
    """Code that runs either the original or the defect."""
    if right.endswith(";"):
        return f"if (::tandem::IsPlanted({number})) {{ {wrong} }} else {{ {right} }}"
    return f"(::tandem::IsPlanted({number}) ? ({wrong}) : ({right}))"


def mutate(text, number, name, code, wrong):
    before, right, after = re.fullmatch(r"(.*)\[\[(.*)\]\](.*)", code, re.DOTALL).groups()
    found = text.count(before + right + after)
    if found != 1:
        sys.exit(f"mutations.py: {name}: its code is there {found} times, expected once: {code!r}")
    return text.replace(before + right + after, before + planted(number, right, wrong) + after)


def write_if_changed(path, content):
    if path.exists() and path.read_text() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def copy_sources():
    source = FOLDER / "source"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True,
                            check=True).stdout.splitlines()
    mutated = {}
    for number, (name, _, path, code, wrong, _) in enumerate(MUTATIONS, 1):
        mutated[path] = mutate(mutated.get(path) or (REPOSITORY / path).read_text(), number, name, code, wrong)
    for path in listed:
        original, target = REPOSITORY / path, source / path
        if not original.is_file():
            continue
        if path in mutated:
            write_if_changed(target, "#include \"tandem_mutation.h\"\n" + mutated[path])
        elif not target.exists() or target.stat().st_mtime < original.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(original, target)
    write_if_changed(source / "tandem_mutation.h", HEADER)
    return source


def build(source, lock):
    locked = ["flock", lock] if lock else []
    # The same settings as the user's build, including the compiler cache.
    cache = {}
    for line in (REPOSITORY / "build" / "dev" / "CMakeCache.txt").read_text().splitlines():
        if match := re.match(r"(TANDEM_[A-Z_]+|CMAKE_UNITY_BUILD|CMAKE_UNITY_BUILD_BATCH_SIZE):[A-Z]+=(.*)", line):
            cache[match[1]] = match[2]
    settings = [f"-D{name}={value}" for name, value in cache.items() if not name.endswith("_DIR")]
    # Downloaded and unpacked dependencies of builds.
    downloads = source / "build" / "cache"
    if not downloads.exists() and (REPOSITORY / "build" / "cache").exists():
        downloads.parent.mkdir(parents=True, exist_ok=True)
        downloads.symlink_to(REPOSITORY / "build" / "cache")
    subprocess.run(["cmake", "--preset", "dev", *settings], cwd=source, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*locked, "cmake", "--build", "build/dev", "--parallel", str(os.cpu_count()), "--target", *TARGETS],
                   cwd=source, check=True)
    return source / "build" / "dev" / "bin"


def run(binaries, which, number):
    """The result of a run: None if it passes, otherwise the first failure that it found."""
    program, tests, settings = RUNS[which]
    environment = dict(os.environ, TANDEM_MUTATION=str(number), **settings)
    try:
        done = subprocess.run([str(binaries / program), f"--gtest_filter={tests}"], capture_output=True, text=True,
                              errors="replace", env=environment, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode == 0:
        return None
    if match := re.search(r"seed (\d+):\n  (.*)", done.stdout):
        return f"seed {match[1]}: {match[2]}"
    if done.returncode < 0:
        reason = re.search(r"Assertion `(.*?)' failed", done.stderr)
        return f"ended by signal {-done.returncode}" + (f": {reason[1]}" if reason else "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    failures = [at for at, line in enumerate(lines) if line.endswith(": Failure")]
    return " ".join(lines[failures[0] + 1:failures[0] + 3]) if failures else f"exit status {done.returncode}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="the defects of these names only")
    parser.add_argument("--list", action="store_true", help="name the defects and end")
    parser.add_argument("--report", type=pathlib.Path, help="write the results there, as a table in Markdown")
    parser.add_argument("--lock", help="hold this file's lock while building")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name}: {what}" for name, what, *_ in MUTATIONS))
        return 0
    binaries = build(copy_sources(), arguments.lock)
    for which in RUNS:
        if (found := run(binaries, which, 0)) is not None:
            sys.exit(f"mutations.py: run {which} fails without any defect: {found}")
    rows, missed = [], []
    for number, (name, what, path, _, _, which) in enumerate(MUTATIONS, 1):
        if arguments.only and name not in arguments.only:
            continue
        started = time.monotonic()
        found = run(binaries, which, number)
        seconds = time.monotonic() - started
        if found is None:
            missed.append(name)
        print(f"{number:3} {name}: {found or 'NOT FOUND'} ({which}, {seconds:.1f} s)", flush=True)
        shown = (found or "**not found**").replace("|", "\\|")
        rows.append(f"| {what} | `{path}` | {which} | {shown[:120]} |")
    if arguments.report:
        arguments.report.write_text("| defect | in | run | found by |\n| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n")
    print(f"{len(rows) - len(missed)} of {len(rows)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
