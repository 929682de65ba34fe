#pragma once

#include <cstdint>

namespace tandem {

// Decides whether drafting with one drafter yields more tokens per second than plain decoding (DESIGN law
// 6). It measures and does not model: a drafter may be too slow, may guess at random, or may share cores
// with the verifier and slow down every step, which no model of rounds predicts.
//
//   drafting ----- plain was better -----> plain ----- drafting was better by the margin -----> drafting
//     |  ^                                                                  |  ^
//     v  |  probe: a few steps the other way                                v  |
//
// Rounds are compared by tokens per cost. The cost of a round is its time divided by the time that an
// undrafted round of the same batch took at warm-up, so that steps of different batches are comparable.
// All sessions of a drafter go the same way at a time, because drafting sessions slow down the others.
//
// If both ways are equally good, plain decoding wins: drafting gains nothing, and others can use the
// drafter's cores.
//
// With other options, the same class decides between drafting much and drafting little. Then both ways
// commit several tokens per round, and "plain" is the cheaper one.
//
// The loss from probes is bounded. Probes are paid from a share of the cost of all steps, and a probe
// waits until that budget covers its expected loss. The probe also pays for losses of the plain steps
// after it: a drafter that had to reopen every session computes their prompts for long afterwards. If
// those steps were measured, both ways would look equally slow and would be probed all the time.
class DraftPayoff {
 public:
  struct Options {
    double probe_share = 0.01;
    uint32_t probe_steps = 8;
    // The first steps after a switch are not measured, because they still show effects of the other way:
    // drafts in flight, a drafter that must catch up.
    uint32_t settling_steps = 2;
    // Plain steps after a probe: their loss is part of the probe's cost, and they are not measured either.
    uint32_t aftermath_steps = 48;
    double margin = 0.02;    // By how much drafting must be better to begin with it again.
    double history = 192.0;  // Steps over which measurements decay.
    // The share of the other way's measurements that is kept when a probe of it starts: enough to outweigh a
    // few noisy steps, little enough to notice a change.
    double kept_for_probe = 0.3;
    // The assumed yield of the other way before it has been measured; 0: as good as drafting.
    double unknown_plain = 1.0;
    // Steps drafted before the first verdict.
    uint32_t first_steps = 12;
  };
  DraftPayoff() : DraftPayoff(Options{}) {}
  explicit DraftPayoff(const Options& options) : options_(options) {}

  // Whether to draft the next rounds.
  bool drafting() const { return drafts_ != probing_; }
  bool probing() const { return probing_; }

  // Committed tokens and cost of the drafter's sessions in one step: the sum over sessions with a round that
  // went the way that `drafting` said. Rounds planned before a switch are left out.
  struct StepYield {
    bool drafted = false;
    double tokens = 0.0;
    double cost = 0.0;
    // The drafter has not drafted for any of them yet, because it still computes their prompts. A probe pays
    // for such steps but does not count them, for up to Options::aftermath_steps; after that it counts them.
    bool opening = false;
  };
  void Observe(const StepYield& yield);

  // Tokens per cost; before measurements Options::unknown_plain for plain steps, 1 being what warm-up
  // promises, and for drafted ones 0.
  double drafted_yield() const { return drafted_.Rate(0.0); }
  double plain_yield() const {
    return plain_.Rate(options_.unknown_plain > 0.0 ? options_.unknown_plain : drafted_yield());
  }

 private:
  struct Measured {
    double tokens = 0.0;
    double cost = 0.0;
    double Rate(double unknown) const { return cost > 0.0 ? tokens / cost : unknown; }
  };

  double Margin() const;  // That the other way must be better by.
  void StartProbe();
  void EndProbe();

  const Options options_;
  Measured drafted_;
  Measured plain_;
  bool drafts_ = true;  // What is thought to be better.
  bool probing_ = false;
  uint32_t steps_ = 0;      // Since the last switch either way.
  uint32_t aftermath_ = 0;  // Steps that are still on the last probe's account.
  uint32_t opening_ = 0;    // Steps since the last switch that said so.
  double credit_ = 0.0;
};

}  // namespace tandem
