#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem {

// Estimates how likely the next token is among the known continuations of a context, and learns it from
// outcomes. Longer contexts are right more often, and so are contexts with only one continuation. Each
// kind of context has a Beta posterior. Its prior is `prior` (what other sessions have seen) or, without
// one, a table. Old outcomes fade, so the estimate follows changes of the text.
class MatchAcceptance {
 public:
  // `prior` outlives this. It also learns if `teaches_prior`.
  explicit MatchAcceptance(MatchAcceptance* prior = nullptr, bool teaches_prior = true)
      : prior_(prior), teaches_prior_(teaches_prior) {}

  // A context of `match_length` tokens with one continuation or several: was the next token one of them?
  void Observe(uint32_t match_length, bool single, bool right);
  // In (0, 1).
  float Value(uint32_t match_length, bool single) const;

 private:
  static constexpr size_t kNumLengths = 12;
  struct Outcomes {
    float right = 0.0f;
    float all = 0.0f;
  };
  static size_t KindOf(uint32_t match_length, bool single);

  MatchAcceptance* const prior_;
  const bool teaches_prior_;
  std::array<Outcomes, 2 * kNumLengths> outcomes_;
};

}  // namespace tandem
