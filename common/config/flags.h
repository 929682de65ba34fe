#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace YAML {
class Node;
}  // namespace YAML

namespace tandem {

// Exit codes of every binary.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// A server's command line. Every flag `--max-sessions` of role "drafter" can also be set by the environment
// variable TANDEM_DRAFTER_MAX_SESSIONS, or by a line `max-sessions: 64` in the YAML file that --flags-file
// names; a flag wins over the environment, which wins over the file. What is set rarely is a setting: it can
// only be set in that file.
//
//   Flags flags("tandem-drafter", "drafter", "Runs draft models and streams candidate trees.");
//   flags.Group("Network").Add("listen", &options.listen, "Address to listen on.");
//   flags.Settings("Network").Add("max-streams", &options.max_streams, "Most calls of one connection.");
//   if (std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
//
// Besides the caller's flags: --help (by group), --help-settings, --version, --check-config, --flags-file,
// --log-level (debug, info, warning, error) and --log-format (text, json). Parse applies the latter two and
// the role to common/base/log.h.
class Flags {
 public:
  Flags(absl::string_view program, absl::string_view role, absl::string_view description);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // Heading in --help for the flags added next, or in --help-settings for the settings added next.
  Flags& Group(absl::string_view name);
  Flags& Settings(absl::string_view name);

  // `name` without dashes, in lower case with "-" between words. The target holds the default, outlives Parse
  // and is written by it. A bool is set by --name, and cleared by --no-name. A duration is written "1.5s" or
  // "100ms". A vector takes the flag repeated, or values with commas between.
  Flags& Add(absl::string_view name, bool* target, absl::string_view help);
  Flags& Add(absl::string_view name, int32_t* target, absl::string_view help);
  Flags& Add(absl::string_view name, int64_t* target, absl::string_view help);
  Flags& Add(absl::string_view name, uint32_t* target, absl::string_view help);
  Flags& Add(absl::string_view name, uint64_t* target, absl::string_view help);
  Flags& Add(absl::string_view name, double* target, absl::string_view help);
  Flags& Add(absl::string_view name, std::string* target, absl::string_view help);
  Flags& Add(absl::string_view name, absl::Duration* target, absl::string_view help);
  Flags& Add(absl::string_view name, std::vector<std::string>* target, absl::string_view help);
  // One of `choices`.
  Flags& AddChoice(absl::string_view name, std::string* target, std::vector<std::string> choices,
                   absl::string_view help);

  // Constraints on the flag added last: it must be given somewhere; its number must lie in [low, high].
  Flags& Required();
  Flags& InRange(double low, double high);

  // nullopt if the program should continue. Otherwise its exit code, after writing --help or --version to
  // `out` (kExitOk) or a usage error to `err` (kExitUsage).
  std::optional<int> Parse(int argc, const char* const* argv);
  std::optional<int> Parse(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

  // Whether --check-config was given: the binary checks its configuration, says so, and exits without
  // serving.
  bool check_config() const { return check_config_; }

 private:
  struct Entry;

  template <class T>
  Flags& AddValue(absl::string_view name, T* target, absl::string_view help);
  CLI::App& Current();
  Flags& Register(CLI::Option* option, absl::string_view name, bool is_list);
  void AddStandardFlags();
  absl::Status ApplyFile();
  absl::Status ApplyLine(const YAML::Node& value, const Entry& entry);
  absl::Status CheckRequired() const;
  absl::Status UsageError(absl::string_view error, int argc, const char* const* argv) const;
  void ApplyLogging() const;

  const std::string program_;
  const std::string role_;
  std::string group_ = "Options";
  bool are_settings_ = false;  // What is added next.
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<CLI::App> settings_;  // Parses and describes settings; never a command line.
  std::vector<Entry> entries_;
  bool check_config_ = false;
  bool help_settings_ = false;
  std::string flags_file_;
  std::string log_level_ = "info";
  std::string log_format_ = "text";
};

}  // namespace tandem
