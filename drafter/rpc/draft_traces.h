#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/speculation/draft_messages.h"
#include "common/tracing/span.h"
#include "drafter/drafting/draft_core.h"

namespace tandem {

// The spans of a drafter's sessions, made from their messages:
//
//   draft session (server)  opened to closed; what was grown is summed up in it
//     prefill               opened to the first candidates
//
// A reopened session continues its span. The core ignores late Opens; DropUnanswered removes their entries.
// For sessions whose trace is not sampled, only the ids for logs are kept. Used by the engine thread only.
class DraftTraces {
 public:
  // Both outlive this.
  DraftTraces(const Tracer& tracer, const Clock* clock) : tracer_(tracer), clock_(clock) {}
  // Ends all open spans.
  ~DraftTraces();
  DraftTraces(const DraftTraces&) = delete;
  DraftTraces& operator=(const DraftTraces&) = delete;

  // Call these in the order in which the core gets requests and answers.
  void OnRequest(LinkId link, const DraftRequest& request);
  void OnResponse(LinkId link, const DraftResponse& response);
  void OnLinkClosed(LinkId link);
  // Call it after all responses to the requests so far.
  void DropUnanswered();

  // Ids for logs; empty for unknown sessions.
  struct Ids {
    std::string request_id;
    std::string trace_id;
  };
  Ids IdsOf(LinkId link, SessionId session) const;

 private:
  using Key = std::pair<LinkId, SessionId>;
  struct Entry {
    Ids ids;
    Span session;
    Span prefill;
    bool answered = false;
    uint32_t opens = 0;
    uint64_t commits = 0;
    uint64_t committed_tokens = 0;
    uint64_t growth_messages = 0;
    uint64_t nodes = 0;
  };
  using Entries = std::map<Key, Entry>;

  void OnOpen(const Key& key, const OpenSession& open);
  Entries::iterator End(Entries::iterator entry, absl::StatusCode code);

  const Tracer& tracer_;
  const Clock* const clock_;
  Entries entries_;
  bool unanswered_ = false;  // Some entry may be.
};

}  // namespace tandem
