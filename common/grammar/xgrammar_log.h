#pragma once

#include <string>
#include <vector>

namespace tandem {

// Collects, while it exists, XGrammar's warnings on this thread, mostly about things that it ignores. One at
// a time per thread.
class XGrammarWarnings {
 public:
  XGrammarWarnings();
  ~XGrammarWarnings();
  XGrammarWarnings(const XGrammarWarnings&) = delete;
  XGrammarWarnings& operator=(const XGrammarWarnings&) = delete;

  const std::vector<std::string>& texts() const { return texts_; }
  void Add(const std::string& text) { texts_.push_back(text); }

 private:
  std::vector<std::string> texts_;
};

}  // namespace tandem
