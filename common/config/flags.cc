#include "common/config/flags.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/version.h"
#include "common/config/yaml_document.h"

namespace tandem {
namespace {

std::string EnvironmentName(absl::string_view role, absl::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToUpper(absl::StrCat("tandem_", role, "_", name)), {{"-", "_"}});
}

// All digits of whole numbers: "[1, 1048576]".
std::string RangeText(double low, double high) {
  return absl::StrFormat("[%.15g, %.15g]", low, high);
}

}  // namespace

// A flag as the file and the final checks need it.
struct Flags::Entry {
  std::string name;
  CLI::Option* option = nullptr;
  bool required = false;
  bool is_list = false;
  bool is_setting = false;
};

Flags::Flags(absl::string_view program, absl::string_view role, absl::string_view description)
    : program_(program),
      role_(role),
      app_(std::make_unique<CLI::App>(std::string(description), std::string(program))),
      settings_(std::make_unique<CLI::App>(absl::StrCat(
          "Settings of ", program, ": lines `name: value` of the file that --flags-file names."))) {
  app_->set_version_flag("--version", absl::StrCat(program_, " ", Version()), "Print the version and exit.");
  app_->set_help_flag("--help", "Print this help and exit.");
  settings_->set_help_flag();
  for (CLI::App* app : {app_.get(), settings_.get()}) app->get_formatter()->column_width(40);
}

Flags::~Flags() = default;

Flags& Flags::Group(absl::string_view name) {
  group_ = std::string(name);
  are_settings_ = false;
  return *this;
}

Flags& Flags::Settings(absl::string_view name) {
  Group(name);
  are_settings_ = true;
  return *this;
}

CLI::App& Flags::Current() {
  return are_settings_ ? *settings_ : *app_;
}

Flags& Flags::Register(CLI::Option* option, absl::string_view name, bool is_list) {
  option->group(group_);
  if (!are_settings_) option->envname(EnvironmentName(role_, name));
  // Given twice on the command line, the last one counts, so that scripts can append.
  if (!is_list) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  entries_.push_back(
      {.name = std::string(name), .option = option, .is_list = is_list, .is_setting = are_settings_});
  return *this;
}

template <class T>
Flags& Flags::AddValue(absl::string_view name, T* target, absl::string_view help) {
  CLI::Option* option = Current().add_option(absl::StrCat("--", name), *target, std::string(help));
  option->capture_default_str();
  return Register(option, name, /*is_list=*/false);
}

Flags& Flags::Add(absl::string_view name, bool* target, absl::string_view help) {
  std::string text(help);
  if (*target) absl::StrAppend(&text, " On by default");
  if (*target) absl::StrAppend(&text, are_settings_ ? "." : absl::StrCat("; --no-", name, " turns it off."));
  const std::string negated = are_settings_ ? "" : absl::StrCat(",!--no-", name);
  CLI::Option* option = Current().add_flag(absl::StrCat("--", name, negated), *target, text);
  return Register(option, name, /*is_list=*/false);
}
Flags& Flags::Add(absl::string_view name, int32_t* target, absl::string_view help) {
  return AddValue(name, target, help);
}
Flags& Flags::Add(absl::string_view name, int64_t* target, absl::string_view help) {
  return AddValue(name, target, help);
}
Flags& Flags::Add(absl::string_view name, uint32_t* target, absl::string_view help) {
  return AddValue(name, target, help);
}
Flags& Flags::Add(absl::string_view name, uint64_t* target, absl::string_view help) {
  return AddValue(name, target, help);
}
Flags& Flags::Add(absl::string_view name, double* target, absl::string_view help) {
  return AddValue(name, target, help);
}
Flags& Flags::Add(absl::string_view name, std::string* target, absl::string_view help) {
  return AddValue(name, target, help);
}

Flags& Flags::Add(absl::string_view name, absl::Duration* target, absl::string_view help) {
  const auto assign = [target](const std::string& text) {
    absl::Duration duration;
    if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
        duration == absl::InfiniteDuration()) {
      throw CLI::ValidationError(absl::StrCat("\"", text, "\" is not a duration such as 1.5s or 100ms"));
    }
    *target = duration;
  };
  CLI::Option* option =
      Current().add_option_function<std::string>(absl::StrCat("--", name), assign, std::string(help));
  option->type_name("DURATION")->default_str(absl::FormatDuration(*target));
  return Register(option, name, /*is_list=*/false);
}

Flags& Flags::Add(absl::string_view name, std::vector<std::string>* target, absl::string_view help) {
  CLI::Option* option = Current().add_option(absl::StrCat("--", name), *target, std::string(help));
  option->delimiter(',')->expected(1)->allow_extra_args(false)->multi_option_policy(
      CLI::MultiOptionPolicy::TakeAll);
  option->type_name("TEXT,...");
  return Register(option, name, /*is_list=*/true);
}

Flags& Flags::AddChoice(absl::string_view name, std::string* target, std::vector<std::string> choices,
                        absl::string_view help) {
  AddValue(name, target, help);
  entries_.back().option->check(CLI::IsMember(std::move(choices)));
  return *this;
}

Flags& Flags::Required() {
  entries_.back().required = true;
  entries_.back().option->description(absl::StrCat(entries_.back().option->get_description(), " Required."));
  return *this;
}

Flags& Flags::InRange(double low, double high) {
  const std::string range = RangeText(low, high);
  const auto check = [low, high, range](std::string& text) -> std::string {
    double value = 0.0;
    if (absl::SimpleAtod(text, &value) && value >= low && value <= high) return "";
    return absl::StrCat(text, " is not in ", range);
  };
  entries_.back().option->check(CLI::Validator(check, range, "range"));
  return *this;
}

absl::Status Flags::ApplyFile() {
  if (flags_file_.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags_file_, kMaxYamlBytes));
  TANDEM_ASSIGN_OR_RETURN(const YAML::Node document, LoadYaml(text, flags_file_));
  if (document.IsNull()) return absl::OkStatus();
  if (!document.IsMap()) return YamlError(flags_file_, document, "expected lines of the form flag: value");
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.push_back(entry.name);
  std::vector<std::string> seen;
  for (const auto& line : document) {
    const std::string key = line.first.IsScalar() ? line.first.Scalar() : "";
    const auto found = std::find(names.begin(), names.end(), key);
    if (found == names.end() || key == "flags-file" || key == "help-settings") {
      return YamlError(flags_file_, line.first,
                       absl::StrCat(key.substr(0, 64), ": unknown flag or setting", DidYouMean(key, names)));
    }
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return YamlError(flags_file_, line.first, absl::StrCat(key, ": duplicate key"));
    }
    seen.push_back(key);
    TANDEM_RETURN_IF_ERROR(ApplyLine(line.second, entries_[found - names.begin()]));
  }
  return absl::OkStatus();
}

absl::Status Flags::ApplyLine(const YAML::Node& value, const Entry& entry) {
  std::vector<std::string> texts;
  if (value.IsScalar()) {
    texts.push_back(value.Scalar());
  } else if (value.IsSequence() && entry.is_list) {
    for (const auto& element : value) {
      if (!element.IsScalar())
        return YamlError(flags_file_, element, absl::StrCat(entry.name, ": expected text"));
      texts.push_back(element.Scalar());
    }
  } else {
    return YamlError(
        flags_file_, value,
        absl::StrCat(entry.name, entry.is_list ? ": expected a value or a list" : ": expected a value"));
  }
  // The command line and the environment win.
  if (entry.option->count() > 0) return absl::OkStatus();
  try {
    for (const std::string& text : texts) entry.option->add_result(text);
    if (!texts.empty()) entry.option->run_callback();
  } catch (const CLI::Error& error) {
    return YamlError(flags_file_, value, absl::StrCat(entry.name, ": ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status Flags::CheckRequired() const {
  for (const Entry& entry : entries_) {
    if (!entry.required || entry.option->count() > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", entry.name, " is required; ",
                                                   EnvironmentName(role_, entry.name), " also sets it"));
  }
  return absl::OkStatus();
}

void Flags::AddStandardFlags() {
  Group("Standard");
  Add("check-config", &check_config_, "Check the configuration and exit.");
  Add("flags-file", &flags_file_,
      "YAML file of flags and settings, one `name: value` per line. The command line and the environment "
      "override it.");
  Add("help-settings", &help_settings_, "Print what only that file can set, and exit.");
  AddChoice("log-level", &log_level_, {"debug", "info", "warning", "error"},
            "Lowest level of the lines to log.");
  AddChoice("log-format", &log_format_, {"text", "json"}, "Format of the log lines on stderr.");
}

// Says of a setting on the command line where it belongs.
absl::Status Flags::UsageError(absl::string_view error, int argc, const char* const* argv) const {
  for (int i = 1; i < argc; ++i) {
    absl::string_view name = argv[i];
    if (!absl::ConsumePrefix(&name, "--")) continue;
    absl::ConsumePrefix(&name, "no-");
    name = name.substr(0, name.find('='));
    for (const Entry& entry : entries_) {
      if (!entry.is_setting || entry.name != name) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", name,
                                                     ": not a flag but a setting; expected a line `", name,
                                                     ": ...` in the file that --flags-file names"));
    }
  }
  return absl::InvalidArgumentError(error);
}

void Flags::ApplyLogging() const {
  const LogLevel level = log_level_ == "debug"     ? LogLevel::kDebug
                         : log_level_ == "warning" ? LogLevel::kWarning
                         : log_level_ == "error"   ? LogLevel::kError
                                                   : LogLevel::kInfo;
  SetLogLevel(level);
  SetLogFormat(log_format_ == "json" ? LogFormat::kJson : LogFormat::kText);
  SetLogService(role_);
}

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  return Parse(argc, argv, std::cout, std::cerr);
}

std::optional<int> Flags::Parse(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  AddStandardFlags();
  absl::Status status;
  try {
    app_->parse(argc, argv);
    if (help_settings_) {
      out << absl::StrReplaceAll(settings_->help(), {{"Usage: [OPTIONS]\n", ""}});
      return kExitOk;
    }
    status = ApplyFile();
    if (status.ok()) status = CheckRequired();
  } catch (const CLI::Success& request) {
    app_->exit(request, out, err);
    return kExitOk;
  } catch (const CLI::Error& error) {
    status = UsageError(error.what(), argc, argv);
  }
  if (!status.ok()) {
    err << program_ << ": " << std::string(status.message()) << "\nSee " << program_ << " --help.\n";
    return kExitUsage;
  }
  ApplyLogging();
  return std::nullopt;
}

}  // namespace tandem
