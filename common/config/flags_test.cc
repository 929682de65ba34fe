#include "common/config/flags.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/config/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A command line like a service's, and what parsing it did.
struct ParsedFlags {
  bool mlock = true;
  bool reflection = false;
  int32_t threads = 4;
  uint32_t sessions = 64;
  uint64_t bytes = 1;
  double share = 0.5;
  std::string listen = "0.0.0.0:7003";
  std::string policy = "analytic";
  absl::Duration grace = absl::Seconds(30);
  std::vector<std::string> models;
  uint32_t streams = 256;
  bool strict = true;
  bool last = false;
  bool check_config = false;
  std::optional<int> exit_code;
  std::string out;
  std::string err;

  explicit ParsedFlags(std::vector<std::string> arguments, bool required = false) {
    Flags flags("tandem-drafter", "drafter", "Runs draft models.");
    flags.Group("Network")
        .Add("listen", &listen, "Address to listen on.")
        .Add("reflection", &reflection, "Serve reflection.");
    flags.Group("Engine")
        .Add("mlock", &mlock, "Lock memory.")
        .Add("threads", &threads, "Compute threads.")
        .InRange(1, 1024)
        .Add("max-sessions", &sessions, "Sessions.")
        .Add("cache-bytes", &bytes, "Cache.")
        .Add("share", &share, "Share.")
        .Add("grace", &grace, "Drain time.")
        .AddChoice("policy", &policy, {"fixed", "analytic"}, "Window policy.")
        .Add("model", &models, "Model folders.");
    if (required) flags.Required();
    flags.Settings("Limits")
        .Add("max-streams", &streams, "Most calls.")
        .InRange(1, 1000)
        .Add("strict", &strict, "Strict.");
    flags.Group("Engine").Add("last", &last, "Declared behind settings.");
    std::vector<const char*> argv = {"tandem-drafter"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out_stream, err_stream;
    exit_code = flags.Parse(static_cast<int>(argv.size()), argv.data(), out_stream, err_stream);
    check_config = flags.check_config();
    out = out_stream.str();
    err = err_stream.str();
  }
};

// An environment variable for the time of a test.
class ScopedVariable {
 public:
  ScopedVariable(const std::string& name, const std::string& value) : name_(name) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_.c_str()); }

 private:
  const std::string name_;
};

std::string WriteFile(const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/flags_test.yaml");
  std::ofstream(path) << text;
  return path;
}

TEST(FlagsTest, EveryKindOfFlagIsRead) {
  const ParsedFlags run({"--listen=127.0.0.1:1", "--reflection", "--no-mlock", "--threads", "8",
                         "--max-sessions=4294967295", "--cache-bytes=18446744073709551615", "--share=0.25",
                         "--grace=1.5s", "--policy=fixed", "--model=a,b", "--model=c", "--check-config"});
  EXPECT_EQ(run.exit_code, std::nullopt) << run.err;
  EXPECT_EQ(run.listen, "127.0.0.1:1");
  EXPECT_TRUE(run.reflection);
  EXPECT_FALSE(run.mlock);
  EXPECT_EQ(run.threads, 8);
  EXPECT_EQ(run.sessions, 4294967295u);
  EXPECT_EQ(run.bytes, ~uint64_t{0});
  EXPECT_EQ(run.share, 0.25);
  EXPECT_EQ(run.grace, absl::Milliseconds(1500));
  EXPECT_EQ(run.policy, "fixed");
  EXPECT_THAT(run.models, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(run.check_config);
}

TEST(FlagsTest, DefaultsStay) {
  const ParsedFlags run({});
  EXPECT_EQ(run.exit_code, std::nullopt) << run.err;
  EXPECT_EQ(run.threads, 4);
  EXPECT_TRUE(run.mlock);
  EXPECT_EQ(run.grace, absl::Seconds(30));
  EXPECT_FALSE(run.check_config);
}

TEST(FlagsTest, FlagBeatsEnvironmentBeatsFile) {
  const std::string path =
      WriteFile("threads: 2\nmax-sessions: 20\nlisten: file:1\nmlock: false\ngrace: 2s\nmodel: [x, y]\n");
  ScopedVariable threads("TANDEM_DRAFTER_THREADS", "3");
  ScopedVariable sessions("TANDEM_DRAFTER_MAX_SESSIONS", "30");
  ScopedVariable reflection("TANDEM_DRAFTER_REFLECTION", "true");
  ScopedVariable file("TANDEM_DRAFTER_FLAGS_FILE", path);
  const ParsedFlags run({"--threads=4"});
  EXPECT_EQ(run.exit_code, std::nullopt) << run.err;
  EXPECT_EQ(run.threads, 4);
  EXPECT_EQ(run.sessions, 30u);
  EXPECT_EQ(run.listen, "file:1");
  EXPECT_FALSE(run.mlock);
  EXPECT_TRUE(run.reflection);
  EXPECT_EQ(run.grace, absl::Seconds(2));
  EXPECT_THAT(run.models, ElementsAre("x", "y"));
}

TEST(FlagsTest, HelpIsGroupedAndVersionIsPrinted) {
  const ParsedFlags help({"--help"});
  EXPECT_EQ(help.exit_code, kExitOk);
  EXPECT_THAT(help.out, HasSubstr("Network:"));
  EXPECT_THAT(help.out, HasSubstr("Engine:"));
  EXPECT_THAT(help.out, HasSubstr("Standard:"));
  EXPECT_THAT(help.out, HasSubstr("TANDEM_DRAFTER_MAX_SESSIONS"));
  EXPECT_THAT(help.out, HasSubstr("0.0.0.0:7003"));
  const ParsedFlags version({"--version"});
  EXPECT_EQ(version.exit_code, kExitOk);
  EXPECT_EQ(version.out, absl::StrCat("tandem-drafter ", Version(), "\n"));
}

TEST(FlagsTest, RangesAreShownWithAllTheirDigits) {
  uint64_t bytes = 1;
  double share = 0.5;
  const auto parse = [&](std::vector<const char*> argv, std::ostream& out, std::ostream& err) {
    Flags flags("tandem-drafter", "drafter", "Runs draft models.");
    flags.Add("cache-bytes", &bytes, "Cache.").InRange(1, 1 << 20);
    flags.Add("share", &share, "Share.").InRange(0.05, 1e9);
    return flags.Parse(static_cast<int>(argv.size()), argv.data(), out, err);
  };
  std::ostringstream out, err;
  EXPECT_EQ(parse({"tandem-drafter", "--help"}, out, err), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("[1, 1048576]"));
  EXPECT_THAT(out.str(), HasSubstr("[0.05, 1000000000]"));
  EXPECT_EQ(parse({"tandem-drafter", "--cache-bytes=2000000"}, out, err), kExitUsage);
  EXPECT_THAT(err.str(), HasSubstr("2000000 is not in [1, 1048576]"));
}

TEST(FlagsTest, MistakesAreUsageErrors) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--nonsense"}, "--nonsense"},
      {{"positional"}, "positional"},
      {{"--threads=many"}, "threads"},
      {{"--threads=0"}, "[1, 1024]"},
      {{"--max-sessions=-1"}, "max-sessions"},
      {{"--max-sessions=4294967296"}, "max-sessions"},
      {{"--grace=5"}, "\"5\" is not a duration"},
      {{"--grace=-5s"}, "-5s"},
      {{"--grace=inf"}, "inf"},
      {{"--policy=best"}, "policy"},
      {{"--log-level=loud"}, "log-level"},
      {{"--flags-file=/nonexistent.yaml"}, "/nonexistent.yaml"},
  };
  for (const auto& [arguments, error] : cases) {
    const ParsedFlags run(arguments);
    EXPECT_EQ(run.exit_code, kExitUsage) << arguments[0];
    EXPECT_THAT(run.err, HasSubstr(error));
    EXPECT_EQ(run.out, "");
  }
}

TEST(FlagsTest, MistakesInTheEnvironmentAreUsageErrors) {
  ScopedVariable threads("TANDEM_DRAFTER_THREADS", "many");
  const ParsedFlags run({});
  EXPECT_EQ(run.exit_code, kExitUsage);
  EXPECT_THAT(run.err, HasSubstr("threads"));
}

TEST(FlagsTest, MistakesInTheFileNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"listen: a:1\nthread: 2\n", ":2:1: thread: unknown flag or setting, did you mean \"threads\"?"},
      {"threads: 2\nthreads: 3\n", ":2:1: threads: duplicate key"},
      {"threads: many\n", ":1:10: threads: "},
      {"threads: 0\n", "[1, 1024]"},
      {"threads: [1, 2]\n", ":1:10: threads: expected a value"},
      {"mlock: perhaps\n", ":1:8: mlock: "},
      {"- a\n", "expected lines of the form flag: value"},
      {"flags-file: other.yaml\n", "flags-file: unknown flag"},
      {"help-settings: true\n", "help-settings: unknown flag"},
      {"a: [\n", "not YAML"},
  };
  for (const auto& [text, error] : cases) {
    const ParsedFlags run({absl::StrCat("--flags-file=", WriteFile(text))});
    EXPECT_EQ(run.exit_code, kExitUsage) << text;
    EXPECT_THAT(run.err, HasSubstr(error));
  }
}

TEST(FlagsTest, RequiredFlagsMayComeFromAnywhere) {
  const ParsedFlags missing({}, /*required=*/true);
  EXPECT_EQ(missing.exit_code, kExitUsage);
  EXPECT_THAT(missing.err, HasSubstr("--model is required; TANDEM_DRAFTER_MODEL also sets it"));
  EXPECT_EQ(ParsedFlags({"--model=a"}, true).exit_code, std::nullopt);
  EXPECT_EQ(ParsedFlags({absl::StrCat("--flags-file=", WriteFile("model: a\n"))}, true).exit_code,
            std::nullopt);
  EXPECT_EQ(ParsedFlags({"--help"}, true).exit_code, kExitOk);
}

TEST(FlagsTest, TheLastOfARepeatedFlagCounts) {
  EXPECT_EQ(ParsedFlags({"--threads=2", "--threads=3"}).threads, 3);
}

TEST(FlagsTest, SettingsAreOnlyInTheFile) {
  const std::string path = WriteFile("max-streams: 12\nstrict: false\nlast: true\n");
  const ParsedFlags run({"--flags-file", path});
  EXPECT_FALSE(run.exit_code.has_value()) << run.err;
  EXPECT_EQ(run.streams, 12u);
  EXPECT_FALSE(run.strict);
  EXPECT_TRUE(run.last);
  {
    const ScopedVariable variable("TANDEM_DRAFTER_MAX_STREAMS", "13");
    EXPECT_EQ(ParsedFlags({}).streams, 256u);
  }
  for (const std::string& line : {std::string("max-streams: 0\n"), std::string("max-streams: x\n")}) {
    const ParsedFlags refused({"--flags-file", WriteFile(line)});
    EXPECT_EQ(refused.exit_code, kExitUsage) << line;
    EXPECT_THAT(refused.err, HasSubstr("max-streams")) << line;
  }
}

TEST(FlagsTest, ASettingOnTheCommandLineIsToldWhereItBelongs) {
  for (const char* argument : {"--max-streams=12", "--no-strict", "--strict"}) {
    const ParsedFlags run({argument});
    EXPECT_EQ(run.exit_code, kExitUsage) << argument;
    EXPECT_THAT(run.err, HasSubstr("not a flag but a setting")) << argument;
    EXPECT_THAT(run.err, HasSubstr("--flags-file")) << argument;
  }
}

TEST(FlagsTest, HelpOfFlagsAndOfSettingsAreTwo) {
  const ParsedFlags flags({"--help"});
  EXPECT_THAT(flags.out, HasSubstr("--help-settings"));
  EXPECT_THAT(flags.out, ::testing::Not(HasSubstr("--max-streams")));
  const ParsedFlags settings({"--help-settings"}, /*required=*/true);
  EXPECT_EQ(settings.exit_code, kExitOk);
  EXPECT_THAT(settings.out, HasSubstr("Limits:"));
  EXPECT_THAT(settings.out, HasSubstr("--max-streams"));
  EXPECT_THAT(settings.out, HasSubstr("On by default."));
  for (const char* other : {"--listen", "--no-strict", "Usage"}) {
    EXPECT_THAT(settings.out, ::testing::Not(HasSubstr(other)));
  }
}

}  // namespace
}  // namespace tandem
