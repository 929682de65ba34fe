#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem {

// Decides when a session with window 0 drafts a little again, because without drafts it would never learn
// that drafting pays off. A probe takes a few rounds. The pause between probes doubles as long as they
// change nothing.
class RoundProbe {
 public:
  struct Options {
    uint32_t first_pause = 4;     // Rounds without drafts before the first probe,
    uint32_t longest_pause = 64;  // and at most, as probes go on failing.
    uint32_t probe_rounds = 3;
  };
  RoundProbe() : RoundProbe(Options{}) {}
  explicit RoundProbe(const Options& options) : options_(options), pause_(options.first_pause) {}

  void Observe(bool drafted) {
    if (drafted) {
      if (rounds_left_ > 0) --rounds_left_;
      return;
    }
    if (++idle_rounds_ < pause_) return;
    idle_rounds_ = 0;
    pause_ = std::min(2 * pause_, options_.longest_pause);
    rounds_left_ = options_.probe_rounds;
  }
  bool due() const { return rounds_left_ > 0; }
  // Drafting pays.
  void Reset() {
    pause_ = options_.first_pause;
    idle_rounds_ = 0;
  }

 private:
  Options options_;
  uint32_t pause_;
  uint32_t idle_rounds_ = 0;
  uint32_t rounds_left_ = 0;
};

}  // namespace tandem
