#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/jinja/jinja_sequence_filters.h"

namespace tandem {

// Jinja's filters that lay out and escape text: center, escape, filesizeformat, format, indent, truncate,
// urlencode, wordcount, xmlattr and others.
const absl::flat_hash_map<absl::string_view, JinjaFilter>& JinjaTextFilters();

// A text, HTML if `value` is: filters keep what they were given.
JinjaValue JinjaTextLike(const JinjaValue& value, std::string text);

}  // namespace tandem
