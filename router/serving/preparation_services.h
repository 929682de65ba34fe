#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/clock.h"
#include "router/admission/admission.h"
#include "router/config/config.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/drafter_policy.h"
#include "router/drafters/policy_memory.h"
#include "router/models/served_model.h"

namespace tandem::router {

// What the preparation of requests uses of a router. All of it outlives the calls and is thread-safe.
struct PreparationServices {
  const Clock* clock = nullptr;
  const std::vector<ServedModel>* models = nullptr;  // In the order of the routing table's.
  Admission* admission = nullptr;
  DrafterChooser* chooser = nullptr;
  PolicyMemory* policies = nullptr;
  std::function<uint64_t()> draw;  // Random bits for seeds and request ids.

  // Selects drafters whose vocabulary, as far as it is known, suits the tenant's requests for a model.
  DrafterFilter CanDraft(size_t model, const Tenant& tenant) const {
    return [chooser = chooser, model, by_text = tenant.text_drafting](const Drafter& drafter) {
      const VocabularyFit fit = chooser->FitOf(model, drafter.name);
      return fit == VocabularyFit::kIds || (fit == VocabularyFit::kText && by_text);
    };
  }
};

}  // namespace tandem::router
