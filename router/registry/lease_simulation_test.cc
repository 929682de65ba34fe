// Servers come, go, crash and stall, calls are late and cross one another, routers stand still or lose their
// store: a cluster in one process, by a seed.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/registry/testing/registry_world.h"

namespace tandem::router {
namespace {

using testing::kTtl;
using testing::RegistryRouter;
using testing::SharedLeases;

constexpr absl::Duration kStep = absl::Milliseconds(250);
constexpr absl::Duration kSimulated = absl::Minutes(12);
// How late a call may arrive.
constexpr absl::Duration kMostLate = absl::Seconds(3);
// What a router needs to notice the end of a lease.
constexpr absl::Duration kNotice = absl::Seconds(1);
constexpr int kNumNames = 5;

// One process of a server.
struct Process {
  v1::ServerRegistration server;
  bool alive = true;
  absl::Time stalled_until = absl::InfinitePast();
  bool leaving = false;
  absl::Time next_call;
  absl::Time gone_at = absl::InfiniteFuture();   // When it died or left.
  absl::Time last_ok = absl::InfinitePast();     // When a router with a store took its call.
  absl::Time known_at = absl::InfinitePast();    // When a router last took its call, with a store or without.
  absl::Duration unheard;                        // Since then, the time in which no router had a fault.
  absl::Time last_stall = absl::InfinitePast();  // When it last stood still.
};

struct Call {
  absl::Time arrives;
  size_t process = 0;
  size_t router = 0;
  bool leaves = false;
};

struct Router {
  std::unique_ptr<SharedLeases> view;
  std::unique_ptr<RegistryRouter> router;
  absl::Time away_until = absl::InfinitePast();
  absl::Time still_until = absl::InfinitePast();
  absl::Time faulty = absl::InfinitePast();  // The last moment of a fault.
};

class Cluster {
 public:
  Cluster(uint64_t seed, size_t num_routers) : random_(seed) {
    for (size_t i = 0; i < num_routers; ++i) {
      Router& router = routers_.emplace_back();
      router.view = std::make_unique<SharedLeases>(&leases_);
      Restart(router);
    }
    for (int name = 0; name < kNumNames; ++name) Start(name, /*same_address=*/false);
  }

  void Run() {
    const absl::Time end = clock_.Now() + kSimulated;
    while (clock_.Now() < end && !::testing::Test::HasFailure()) {
      clock_.Advance(kStep);
      MakeFaults();
      SendCalls();
      DeliverCalls();
      for (Router& router : routers_) {
        if (clock_.Now() < router.still_until) continue;
        router.view->Tell();
        router.router->registrar->Tick();
      }
      Check();
    }
  }

  int num_deaths() const { return num_deaths_; }
  int num_replaced() const { return num_replaced_; }
  int num_checked() const { return num_checked_; }
  int num_checked_after_faults() const { return num_checked_after_faults_; }

 private:
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  absl::Duration UpTo(absl::Duration most) {
    return most * std::uniform_real_distribution<double>(0.0, 1.0)(random_);
  }
  size_t Pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

  bool IsFaulty(const Router& router) const {
    return clock_.Now() < router.away_until || clock_.Now() < router.still_until;
  }
  bool Answers(const Process& process) const {
    return process.alive && clock_.Now() >= process.stalled_until;
  }

  void Restart(Router& router) {
    router.router.reset();
    router.router = std::make_unique<RegistryRouter>(&clock_, router.view.get(), kTtl);
    router.faulty = clock_.Now();
    // It knows what the store does.
    for (const auto& process : processes_) process->known_at = absl::InfinitePast();
  }

  void Start(int name, bool same_address) {
    const auto before = current_.find(name);
    std::string address = absl::StrCat("host:", 1000 + processes_.size());
    if (same_address && before != current_.end()) address = processes_[before->second]->server.address();
    auto process = std::make_unique<Process>();
    const auto started = static_cast<uint64_t>(absl::ToUnixMillis(clock_.Now()));
    process->server = name % 2 == 0 ? testing::VerifierAt(absl::StrCat("v", name), address, started)
                                    : testing::DrafterAt(absl::StrCat("d", name), address, started,
                                                         absl::StrCat("model-", name));
    process->server.mutable_instance()->set_instance(testing::InstanceBytes(processes_.size() + 1));
    process->next_call = clock_.Now() + UpTo(absl::Seconds(1));
    current_[name] = processes_.size();
    processes_.push_back(std::move(process));
  }

  void Die(Process& process) {
    if (!process.alive) return;
    process.alive = false;
    process.gone_at = std::min(process.gone_at, clock_.Now());
    ++num_deaths_;
  }

  void MakeFaults() {
    const absl::Time now = clock_.Now();
    for (Router& router : routers_) {
      if (IsFaulty(router)) {
        router.faulty = now;
      } else if (Chance(0.002)) {
        router.away_until = now + UpTo(3 * kTtl);
      } else if (Chance(0.001)) {
        router.still_until = now + UpTo(3 * kTtl);
      } else if (Chance(0.001)) {
        Restart(router);
      }
      router.view->away = now < router.away_until;
    }
    for (int name = 0; name < kNumNames; ++name) {
      Process& process = *processes_[current_[name]];
      if (!Answers(process)) {
        process.last_stall = now;
      }
      if (process.alive && Chance(0.003)) {
        Die(process);
      } else if (process.alive && Chance(0.002)) {
        process.stalled_until = now + UpTo(3 * kTtl);
      } else if (process.alive && !process.leaving && Chance(0.002)) {
        process.leaving = true;
        Send(current_[name], /*leaves=*/true);
      }
      if (process.leaving && process.gone_at != absl::InfiniteFuture()) Die(process);
      // Started anew, by the same machine or elsewhere; a stalled process may be taken for dead and come
      // back.
      if ((!process.alive && Chance(0.02)) || (now < process.stalled_until && Chance(0.01))) {
        ++num_replaced_;
        Start(name, /*same_address=*/!process.alive && Chance(0.5));
      }
    }
  }

  void Send(size_t index, bool leaves) {
    calls_.push_back({.arrives = clock_.Now() + UpTo(kMostLate),
                      .process = index,
                      .router = Pick(routers_.size()),
                      .leaves = leaves});
  }

  void SendCalls() {
    for (size_t i = 0; i < processes_.size(); ++i) {
      Process& process = *processes_[i];
      if (!Answers(process) || clock_.Now() < process.next_call) continue;
      if (!process.leaving) Send(i, /*leaves=*/false);
      if (process.leaving && process.gone_at == absl::InfiniteFuture()) Send(i, /*leaves=*/true);
      process.next_call = clock_.Now() + kTtl / 5 * 0.8 + UpTo(kTtl / 5 * 0.2);
    }
  }

  void DeliverCalls() {
    const bool fault = std::any_of(routers_.begin(), routers_.end(),
                                   [this](const Router& router) { return IsFaulty(router); });
    for (const auto& process : processes_) process->unheard += fault ? absl::ZeroDuration() : kStep;
    std::vector<Call> later;
    for (const Call& call : calls_) {
      Router& router = routers_[call.router];
      // Who is not answered gives up.
      if (clock_.Now() < router.still_until && clock_.Now() > call.arrives + kMostLate) continue;
      if (call.arrives > clock_.Now() || clock_.Now() < router.still_until) {
        later.push_back(call);
        continue;
      }
      Process& process = *processes_[call.process];
      const bool has_store = !router.view->away;
      if (call.leaves) {
        // Nothing can be told to a router that knows nobody: the call is made again.
        if (router.router->Deregister(process.server).ok() && has_store) {
          process.gone_at = std::min(process.gone_at, clock_.Now());
          left_.insert(call.process);
        }
      } else {
        const bool left = left_.count(call.process) > 0;
        const absl::Status status = router.router->Register(process.server);
        if (status.ok()) {
          process.known_at = clock_.Now();
          process.unheard = absl::ZeroDuration();
        }
        if (status.ok() && has_store) {
          process.last_ok = clock_.Now();
          // A call that was as late as that is taken for a new one.
          if (left && clock_.Now() >= process.gone_at + kTtl) came_back_.insert(call.process);
        }
      }
    }
    calls_ = std::move(later);
  }

  static std::set<std::string> Listed(const Router& router) {
    std::set<std::string> instances;
    for (const v1::ServerRegistration& server : router.router->registrar->Servers()) {
      instances.insert(server.instance().instance());
    }
    return instances;
  }

  // Whether `other` has taken the place of `process`: of two at one address the one that started later,
  // whichever call of theirs came last, and otherwise the one that was taken later.
  static bool Replaces(const Process& other, const Process& process) {
    const v1::ServerInstance& younger = other.server.instance();
    const v1::ServerInstance& older = process.server.instance();
    if (younger.name() != older.name() || younger.instance() == older.instance()) return false;
    if (other.server.address() != process.server.address()) return other.last_ok > process.last_ok;
    return other.last_ok > absl::InfinitePast() && younger.started_unix_ms() > older.started_unix_ms();
  }
  bool IsReplaced(const Process& process) const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [&](const auto& other) { return Replaces(*other, process); });
  }

  void Check() {
    const absl::Time now = clock_.Now();
    for (size_t r = 0; r < routers_.size(); ++r) {
      const Router& router = routers_[r];
      if (IsFaulty(router) || now - router.faulty < kNotice) continue;
      const std::set<std::string> all_listed = Listed(router);
      absl::Time fault = absl::InfinitePast();
      for (const Router& other : routers_) fault = std::max(fault, other.faulty);
      for (size_t p = 0; p < processes_.size(); ++p) {
        const Process& process = *processes_[p];
        if (now - process.gone_at > absl::Minutes(3) && now - fault > absl::Minutes(1)) continue;
        const bool listed = all_listed.count(process.server.instance().instance()) > 0;
        const auto what = [&] {
          return absl::StrCat("router ", r, ", process ", p, " at ", absl::FormatTime(now), ", gone at ",
                              absl::FormatTime(process.gone_at), ", last OK ",
                              absl::FormatTime(process.last_ok));
        };
        ++num_checked_;
        // A process that answers is not dropped.
        const bool is_there = Answers(process) && !process.leaving && !IsReplaced(process);
        if (is_there && now - process.last_ok < kTtl - kNotice) {
          EXPECT_TRUE(listed) << "dropped: " << what();
        }
        // Nor for what was its only router's own trouble.
        if (is_there && routers_.size() == 1 && process.known_at > process.last_stall &&
            process.unheard < kTtl / 2) {
          EXPECT_TRUE(listed) << "dropped after a fault: " << what();
          ++num_checked_after_faults_;
        }
        // Who is dead is gone after its time.
        const absl::Time last_sign = std::max({process.gone_at + kMostLate, fault, process.last_ok});
        if (process.gone_at < now && now > last_sign + kTtl + kNotice) {
          EXPECT_FALSE(listed) << "not gone: " << what();
        }
        // Who has left is gone at once, and stays so; but a router that could not look for as long as the
        // store remembered that is in doubt for a while.
        const bool has_missed_it = router.faulty > process.gone_at && now < router.faulty + kTtl + kNotice;
        if (left_.count(p) > 0 && came_back_.count(p) == 0 && now > process.gone_at + kNotice &&
            !has_missed_it) {
          EXPECT_FALSE(listed) << "came back: " << what();
        }
        // Of two processes of a name, one; and never the older while the younger is heard of.
        if (listed && IsReplaced(process)) {
          for (const auto& other : processes_) {
            const bool younger = Replaces(*other, process) && now - other->last_ok < kTtl - kNotice &&
                                 now - other->last_ok > kNotice && !other->leaving && other->alive;
            EXPECT_FALSE(younger) << "the older one wins: " << what();
          }
        }
      }
      std::set<std::string> names;
      for (const v1::ServerRegistration& server : router.router->registrar->Servers()) {
        EXPECT_TRUE(names.insert(server.instance().name()).second) << server.instance().name();
      }
    }
  }

  std::mt19937_64 random_;
  ManualClock clock_{absl::FromUnixSeconds(1'000'000)};
  MemoryLeaseStore leases_{&clock_};
  std::vector<Router> routers_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<int, size_t> current_;  // By name, the process that was started last.
  std::vector<Call> calls_;
  std::set<size_t> left_;
  std::set<size_t> came_back_;
  int num_deaths_ = 0;
  int num_replaced_ = 0;
  int num_checked_ = 0;
  int num_checked_after_faults_ = 0;
};

// One thread, which sanitizers make fifteen times as slow.
#ifdef TANDEM_SANITIZED
constexpr uint64_t kSeeds = 9;
#else
constexpr uint64_t kSeeds = 36;
#endif

TEST(LeaseSimulationTest, WhoIsThereStaysAndWhoIsNotGoes) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Cluster cluster(seed, /*num_routers=*/1 + seed % 3);
    cluster.Run();
    ASSERT_FALSE(HasFailure());
    // What would be no simulation.
    EXPECT_GT(cluster.num_deaths(), 5);
    EXPECT_GT(cluster.num_replaced(), 5);
    EXPECT_GT(cluster.num_checked(), 10000);
    if (seed % 3 == 0) {
      EXPECT_GT(cluster.num_checked_after_faults(), 1000);
    }
  }
}

}  // namespace
}  // namespace tandem::router
