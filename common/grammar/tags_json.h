#pragma once

#include "nlohmann/json.hpp"

namespace tandem {

// The list of tags in structural tags as ConstraintOfTags wrote them: tags among other text, or tags alone.
inline nlohmann::ordered_json& TagsIn(nlohmann::ordered_json& structural_tags) {
  nlohmann::ordered_json& format = structural_tags.at("format");
  return format.at("type") == "plus" ? format.at("content").at("elements").at(0).at("elements")
                                     : format.at("tags");
}

}  // namespace tandem
