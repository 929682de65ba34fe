#include "router/serving/live_start.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::router {
namespace {

// More than is shown of a prompt, whatever its tokens are.
constexpr int kMaxPromptTokens = static_cast<int>(kMaxLiveText) + 1;

}  // namespace

LiveStart DescribeStart(Router& router, const RoutingSnapshot& routing, const Tenant& tenant, size_t model,
                        const DrafterSelection& selection, const v1::VerifierGenerateRequest& prepared,
                        const std::string& request_id) {
  const std::vector<Drafter>& drafters = routing.table().drafters;
  const google::protobuf::RepeatedField<uint32_t>& tokens = prepared.prompt().ids();
  LiveStart start{.request_id = request_id,
                  .tenant = tenant.name,
                  .model = router.model(model).name,
                  .drafter = selection.drafter.has_value() ? drafters[*selection.drafter].name : "",
                  .reason = std::string(selection.reason.data(), selection.reason.size()),
                  .window_policy = prepared.speculation().window_policy().empty()
                                       ? tenant.window_policy
                                       : prepared.speculation().window_policy()};
  // Where the choice was not open, what it would have rested on is told all the same.
  std::vector<std::string> names;
  for (size_t drafter : selection.candidates.empty() ? tenant.allowed_drafters : selection.candidates) {
    names.push_back(drafters[drafter].name);
  }
  start.explanation =
      router.chooser().Explain(model, TokenIds(tokens.begin(), tokens.end()), tenant.name, names);
  if (router.live()->feed.options().prompts) {
    start.has_prompt = true;
    for (int i = std::max(0, tokens.size() - kMaxPromptTokens); i < tokens.size(); ++i) {
      const absl::string_view bytes =
          router.model(model).encoder->TokenBytes(static_cast<TokenId>(tokens[i]));
      start.prompt.append(bytes.data(), bytes.size());
    }
  }
  return start;
}

}  // namespace tandem::router
