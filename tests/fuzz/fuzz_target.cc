#include "tests/fuzz/fuzz_target.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/temporary_folder.h"

namespace tandem::fuzz {
namespace {

// The longest error that is one.
constexpr size_t kMostErrorBytes = 4096;

std::vector<Target>& Registered() {
  static auto* const targets = new std::vector<Target>();
  return *targets;
}

const TemporaryFolder& Scratch() {
  static const TemporaryFolder folder;
  return folder;
}

}  // namespace

std::vector<Target> Targets() {
  std::vector<Target> targets = Registered();
  std::sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) { return a.name < b.name; });
  return targets;
}

Registration::Registration(const Target& target) {
  Registered().push_back(target);
}

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "what is required does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

bool Refused(const absl::Status& status, absl::string_view name) {
  Require(!status.ok(), "an error");
  if (!absl::StrContains(status.message(), name)) {
    Require(false, absl::StrCat("the error names \"", name, "\": ", status.message()));
  }
  if (status.message().size() > kMostErrorBytes) {
    Require(false, absl::StrCat("an error of ", status.message().size(),
                                " bytes: ", status.message().substr(0, 200)));
  }
  return false;
}

absl::string_view InputReader::Take(size_t count) {
  const absl::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(taken.size());
  return taken;
}

uint8_t InputReader::Byte() {
  const absl::string_view byte = Take(1);
  return byte.empty() ? uint8_t{0} : static_cast<uint8_t>(byte[0]);
}

uint32_t InputReader::Word() {
  uint32_t word = 0;
  for (int shift = 0; shift < 32; shift += 8) word |= uint32_t{Byte()} << shift;
  return word;
}

absl::string_view InputReader::LongBytes() {
  const size_t low = Byte();
  return Take(low | size_t{Byte()} << 8);
}

absl::string_view InputReader::Part() {
  const absl::string_view part = Take(std::min(rest_.find(kPartEnd), rest_.size()));
  Take(1);
  return part;
}

std::string WithLength(absl::string_view bytes) {
  Require(bytes.size() < 256, "a seed's part of less than 256 bytes");
  return absl::StrCat(std::string(1, static_cast<char>(bytes.size())), bytes);
}

std::string WithLongLength(absl::string_view bytes) {
  Require(bytes.size() < 65536, "a seed's part of less than 65536 bytes");
  const std::string length = {static_cast<char>(bytes.size() & 0xff), static_cast<char>(bytes.size() >> 8)};
  return absl::StrCat(length, bytes);
}

std::string Parts(const std::vector<std::string>& parts) {
  std::string input;
  for (const std::string& part : parts) {
    if (&part != &parts.front()) input.push_back(kPartEnd);
    input += part;
  }
  return input;
}

std::string RepositoryFile(const std::string& path) {
  const absl::StatusOr<std::string> text =
      ReadFile(absl::StrCat(TANDEM_SOURCE_DIR, "/", path), size_t{64} << 20);
  Require(text.ok(), text.status().message());
  return *text;
}

std::vector<std::string> RepositoryFiles(const std::string& folder, absl::string_view ending) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat(TANDEM_SOURCE_DIR, "/", folder), error)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && absl::EndsWith(name, ending)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ScratchFile(absl::string_view name, absl::string_view content) {
  return Scratch().Write(name, content);
}

std::string ScratchFolder() {
  return Scratch().path();
}

}  // namespace tandem::fuzz
