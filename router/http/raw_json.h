#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::router {

// Parts of a JSON text as they are written there: their members keep their order, and their numbers all of
// their digits. The text is one that ParseBody takes, and each look at it is one walk over it.

// The value of an object's member; empty if the text is no object or has no such member.
absl::string_view RawMember(absl::string_view object, absl::string_view name);
// The elements of a list; none if the text is no list.
std::vector<absl::string_view> RawElements(absl::string_view list);
// The same value without white space between its tokens.
std::string CompactJson(absl::string_view value);

}  // namespace tandem::router
