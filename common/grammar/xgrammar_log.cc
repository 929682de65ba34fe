#include "common/grammar/xgrammar_log.h"

#include <stdexcept>

namespace tandem {
namespace {

thread_local XGrammarWarnings* current_warnings = nullptr;

}  // namespace

XGrammarWarnings::XGrammarWarnings() {
  current_warnings = this;
}

XGrammarWarnings::~XGrammarWarnings() {
  current_warnings = nullptr;
}

}  // namespace tandem

// What XGrammar, as it is built here (xgrammar.cmake), asks of its user.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  // Elsewhere than in compiling they quote outputs, which are never logged.
  constexpr int kWarning = 2;
  if (level >= kWarning && tandem::current_warnings != nullptr) tandem::current_warnings->Add(message);
}

}  // namespace xgrammar
