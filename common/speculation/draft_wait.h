#pragma once

namespace tandem {

// What is known about a session that has no candidates for its next round.
struct DraftWait {
  // Time until the draft is expected.
  double expected_seconds = 0.0;
  // Time of a round without drafts, and with drafts, in the current batch.
  double plain_seconds = 0.0;
  double drafted_seconds = 0.0;
  // Probability that some candidate of the first level is right, and expected accepted tokens of a whole
  // tree.
  double first_level = 0.0;
  double expected_accepted = 0.0;
  // Tokens per second that the other sessions lose while this one waits; 0 if none is ready.
  double others_tokens_per_second = 0.0;
  // Whether the drafter drafts ahead while a round is verified, so that an undrafted round now loses only a
  // level.
  bool drafted_ahead = true;
};

// The longest wait for the draft that pays off, in seconds; 0 if the draft is not expected within that
// time.
//
// It compares running undrafted with waiting for w seconds. If the draft arrives in less than a round and
// the drafter drafts ahead, an undrafted round does not lose the draft: if the draft contains the chosen
// token, the nodes below that token serve the next round, one level shorter. Over the same number of
// rounds, waiting then gains the first level and one more usual round's acceptance, and costs w:
//
//   first_level + expected_accepted > w * rate.
//
// Otherwise an undrafted round changes nothing, and waiting gains a drafted round's acceptance:
//
//   expected_accepted > (w + drafted - plain) * rate.
//
// The rate is that of everyone who waits meanwhile: this session's rate without waiting, plus the others'.
double WorthwhileWait(const DraftWait& wait);

}  // namespace tandem
