#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// Formats rows as columns that are as wide as their widest entry and two blanks apart. At least one row; all
// rows have the same length.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace tandem::cli
