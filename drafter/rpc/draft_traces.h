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

// The spans of a drafter's sessions, from the messages that pass:
//
//   draft session (server)  opened to closed; what was grown is summed up in it
//     prefill               opened to the first candidates
//
// A session that is opened again goes on in its span. Opens that the core passes over in silence, because
// they are late, leave nothing behind: DropUnanswered. Sessions whose trace is not recorded are known by
// their ids in logs only. Belongs to the engine thread.
class DraftTraces {
 public:
  // Both outlive this.
  DraftTraces(const Tracer& tracer, const Clock* clock) : tracer_(tracer), clock_(clock) {}
  // Ends what has not ended.
  ~DraftTraces();
  DraftTraces(const DraftTraces&) = delete;
  DraftTraces& operator=(const DraftTraces&) = delete;

  // In the order in which the core is told and answers.
  void OnRequest(LinkId link, const DraftRequest& request);
  void OnResponse(LinkId link, const DraftResponse& response);
  void OnLinkClosed(LinkId link);
  // After all responses to the requests so far.
  void DropUnanswered();

  // For logs; empty for sessions that are not known.
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
