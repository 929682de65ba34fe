#pragma once

#include <array>

#include "absl/strings/string_view.h"

namespace tandem::router {

// A file of router/live/page, as it is served.
struct PageFile {
  absl::string_view path;  // Such as "/live.js".
  absl::string_view type;  // Its media type.
  absl::string_view content;
};

// All of them. Made from the files by embed.cmake.
extern const std::array<PageFile, 4> kPageFiles;

}  // namespace tandem::router
