#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// Columns two blanks apart, as wide as their widest entry. At least one row; all as long as the first.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace tandem::cli
