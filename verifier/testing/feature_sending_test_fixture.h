#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/testing/feature_checker.h"
#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {

inline constexpr LinkId kHeadLink2 = kLink + 1;

inline FeatureNeeds ThreeLayers() {
  return {.layers = {1, 3, 5}};
}

// Heads on two links, which check every message. A held link keeps features back and lets other messages pass
// them, as the transport does.
class FeatureSendingTest : public SchedulerTest {
 protected:
  struct Lane {
    bool up = false;
    bool held = false;
    FeatureNeeds needs = ThreeLayers();
    std::deque<DraftRequest> features;
    uint64_t bytes = 0;
    uint64_t most_bytes = 0;
    uint64_t other_bytes = 0;
  };
  struct Head {
    LinkId link = 0;
    FeatureChecker checker;
    bool unanswered = true;
  };
  // What a head had when its session was closed.
  struct Closed {
    SessionId draft = 0;
    std::optional<uint32_t> first;
    uint32_t end = 0;
    uint32_t num_tokens = 0;
    uint64_t num_rows = 0;
    uint64_t num_in_commits = 0;

    bool complete() const { return first.has_value() && end + 1 == num_tokens; }
  };

  void SetUp() override {
    lanes_[kLink];
    lanes_[kHeadLink2].needs = {.layers = {3}, .final_norm = true, .type = FeatureType::kInt8};
  }
  void TearDown() override {
    SchedulerTest::TearDown();
    EXPECT_TRUE(heads_.empty()) << "every session is closed in the end, or its link is lost";
    EXPECT_TRUE(scheduler_ == nullptr || scheduler_->WaitingFeatureBytes() == 0);
  }

  void Up(LinkId link) {
    lanes_[link].up = true;
    scheduler_->OnLinkUp(link);
  }
  void Down(LinkId link) {
    Lane& lane = lanes_[link];
    lane.up = false;
    lane.features.clear();
    lane.bytes = 0;
    std::erase_if(heads_, [&](const auto& entry) {
      if (entry.second.link != link) return false;
      drafts_.erase(entry.first);
      return true;
    });
    scheduler_->OnLinkDown(link, absl::UnavailableError("killed"));
  }

  Backlog BacklogOf(LinkId link) override {
    const Lane& lane = lanes_.at(link);
    return {.feature_messages = lane.features.size(),
            .feature_bytes = lane.bytes,
            .other_bytes = lane.other_bytes};
  }
  void OnDraftRequest(LinkId link, DraftRequest request) override {
    Lane& lane = lanes_.at(link);
    if (!lane.up) return;
    SchedulerTest::OnDraftRequest(kLink, request);
    if (std::holds_alternative<OpenSession>(request.event) && checked_) {
      const auto [head, added] = heads_.try_emplace(
          request.session, Head{.link = link, .checker = FeatureChecker(model_.get(), lane.needs)});
      head->second.unanswered = true;
    }
    if (const auto* features = std::get_if<Features>(&request.event); features != nullptr && lane.held) {
      lane.bytes += features->states.size();
      lane.most_bytes = std::max(lane.most_bytes, lane.bytes);
      lane.features.push_back(std::move(request));
      return;
    }
    Arrive(request);
  }
  void Arrive(const DraftRequest& request) {
    const auto head = heads_.find(request.session);
    if (head == heads_.end()) return;
    FeatureChecker& checker = head->second.checker;
    const absl::Status status = checker.OnRequest(request);
    EXPECT_TRUE(status.ok()) << status << ", session " << request.session;
    if (!std::holds_alternative<CloseSession>(request.event)) return;
    closed_.push_back({.draft = request.session,
                       .first = checker.first(),
                       .end = checker.end(),
                       .num_tokens = static_cast<uint32_t>(checker.tokens().size()),
                       .num_rows = checker.num_rows(),
                       .num_in_commits = checker.num_in_commits()});
    heads_.erase(head);
  }
  // Lets `count` messages of features leave a held link.
  void Drain(LinkId link, size_t count = 1) {
    Lane& lane = lanes_.at(link);
    for (; count > 0 && !lane.features.empty(); --count) {
      const DraftRequest request = std::move(lane.features.front());
      lane.features.pop_front();
      lane.bytes -= std::get<Features>(request.event).states.size();
      Arrive(request);
    }
    scheduler_->OnLinkRoom();
  }

  void Reply(SessionId draft, decltype(DraftResponse::event) event) {
    const auto head = heads_.find(draft);
    if (head == heads_.end()) return;
    scheduler_->OnDraftResponse(head->second.link, {.session = draft, .event = std::move(event)});
  }
  void Answer(SessionId draft, uint32_t first_position = 0) {
    const auto head = heads_.find(draft);
    if (head == heads_.end() || !std::exchange(head->second.unanswered, false)) return;
    Reply(draft, head->second.checker.Answer(first_position));
  }
  std::vector<SessionId> Drafts() const {
    std::vector<SessionId> ids;
    for (const auto& [id, head] : heads_) ids.push_back(id);
    return ids;
  }
  void AnswerAll() {
    for (SessionId draft : Drafts()) Answer(draft);
  }
  // Sends `num_right` tokens of the session's output and then wrong ones.
  void GrowRight(SessionId draft, const Ask& ask, uint32_t num_right, uint32_t num_wrong) {
    const auto found = drafts_.find(draft);
    const auto head = heads_.find(draft);
    if (found == drafts_.end() || head == heads_.end() || head->second.unanswered) return;
    DraftState& state = found->second;
    if (!std::exchange(state.wants_growth, false) || state.budget.depth == 0) return;
    TokenIds all = ask.prompt;
    const TokenIds output = Reference(ask).tokens;
    all.insert(all.end(), output.begin(), output.end());
    TokenIds tokens;
    for (size_t at = state.tokens.size(); at < all.size() && tokens.size() < num_right + num_wrong; ++at) {
      tokens.push_back(tokens.size() < num_right ? all[at] : (all[at] + 1) % kVocabSize);
    }
    if (!tokens.empty()) Reply(draft, Chain(draft, tokens));
  }
  void GrowAll(const std::map<SessionId, Ask>& asks, uint32_t num_right = 2, uint32_t num_wrong = 1) {
    for (SessionId draft : Drafts())
      GrowRight(draft, asks.at(Session::IdOfDraft(draft)), num_right, num_wrong);
  }
  absl::Status SubmitTo(SessionId id, const Ask& ask, std::vector<LinkId> links, bool partner = false) {
    const auto binding = [](LinkId link) {
      return DrafterBinding{.link = link, .name = absl::StrCat("drafter", link), .draft_model = "head"};
    };
    SessionRequest request{.prompt = ask.prompt,
                           .max_tokens = ask.rules.max_tokens,
                           .sampling = ask.sampling,
                           .output = std::make_unique<OutputAssembler>(TestTokenizer(), ask.rules),
                           .cache_salt = ask.cache_salt};
    if (!links.empty()) request.drafter = binding(links[0]);
    if (links.size() > 1 && partner) request.partner = binding(links[1]);
    if (links.size() > 1 && !partner) request.alternates.push_back(binding(links[1]));
    return scheduler_->Submit(id, std::move(request));
  }
  // Runs one request, which is answered at once and drafted for.
  void Run(SessionId id, const Ask& ask, LinkId link = kLink) {
    ASSERT_TRUE(SubmitTo(id, ask, {link}).ok());
    RunToTheEnd([&] {
      AnswerAll();
      GrowAll({{id, ask}});
    });
    ExpectReference(id, ask);
  }

  bool checked_ = true;  // Heads look at what they are sent.
  std::map<LinkId, Lane> lanes_;
  std::map<SessionId, Head> heads_;
  std::vector<Closed> closed_;
};

inline TokenIds CountingPrompt(uint32_t length, TokenId first = 1) {
  TokenIds prompt;
  for (uint32_t i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>((first + 3 * i) % kVocabSize));
  return prompt;
}

}  // namespace tandem
