#include <istream>
#include <ostream>
#include <random>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "common/config/flags.h"
#include "common/config/token_digest.h"
#include "router/cli/commands.h"

namespace tandem::cli {
namespace {

constexpr size_t kTokenBytes = 32;

std::string RandomBytes(size_t count) {
  std::random_device device;
  std::string bytes;
  while (bytes.size() < count) bytes.push_back(static_cast<char>(device() & 0xff));
  return bytes;
}

}  // namespace

int RunHashToken(const HashTokenCommand& command, Terminal& terminal) {
  std::string token;
  if (command.generate) {
    token = absl::BytesToHexString(RandomBytes(kTokenBytes));
    terminal.out << "token: " << token << "\n";
  } else {
    if (terminal.in_is_terminal) terminal.err << "The tenant's token: " << std::flush;
    std::getline(terminal.in, token);
    if (token.empty() || absl::StripAsciiWhitespace(token) != token || token.find(' ') != std::string::npos) {
      terminal.err << "tandem: expected a token without blanks on standard input\n";
      return kExitFailure;
    }
  }
  terminal.out << "token_sha256: " << DigestToken(token, RandomBytes(TokenDigest::kSaltBytes)).Text() << "\n"
               << std::flush;
  return kExitOk;
}

}  // namespace tandem::cli
