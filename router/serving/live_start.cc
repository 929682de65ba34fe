#include "router/serving/live_start.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/token.h"
#include "router/config/config.h"
#include "router/drafters/selection.h"
#include "tandem/v1/verifier.pb.h"

namespace tandem::router {
namespace {

// More than is shown of a prompt, whatever its tokens are.
constexpr int kMaxPromptTokens = static_cast<int>(kMaxLiveText) + 1;

}  // namespace

std::optional<LiveStart> DescribeIfShown(Router& router, const GenerationFacts& facts,
                                         const Preparation::Found& found) {
  if (router.live() == nullptr || !router.live()->feed.Wanted(facts.asked->output().live_page())) {
    return std::nullopt;
  }
  const Tenant& tenant = *facts.tenant;
  const DrafterSelection& selection = found.selection;
  const std::vector<Drafter>& drafters = facts.routing->table().drafters;
  const v1::VerifierGenerateRequest& request = *found.request;
  const google::protobuf::RepeatedField<uint32_t>& tokens = request.prompt().ids();
  LiveStart start{.request_id = facts.request_id,
                  .tenant = tenant.name,
                  .model = facts.model_name,
                  .drafter = selection.drafter.has_value() ? drafters[*selection.drafter].name : "",
                  .reason = std::string(selection.reason.data(), selection.reason.size()),
                  .window_policy = request.speculation().window_policy().empty()
                                       ? tenant.window_policy
                                       : request.speculation().window_policy()};
  // Includes the predictions even if the policy left no choice.
  std::vector<std::string> names;
  for (size_t drafter : selection.candidates.empty() ? tenant.allowed_drafters : selection.candidates) {
    names.push_back(drafters[drafter].name);
  }
  start.explanation =
      router.chooser().Explain(facts.model, TokenIds(tokens.begin(), tokens.end()), tenant.name, names);
  if (router.live()->feed.options().prompts) {
    start.has_prompt = true;
    for (int i = std::max(0, tokens.size() - kMaxPromptTokens); i < tokens.size(); ++i) {
      const absl::string_view bytes =
          router.model(facts.model).encoder->TokenBytes(static_cast<TokenId>(tokens[i]));
      start.prompt.append(bytes.data(), bytes.size());
    }
  }
  return start;
}

}  // namespace tandem::router
