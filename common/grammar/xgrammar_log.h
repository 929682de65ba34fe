#pragma once

#include <string>
#include <vector>

namespace tandem {

// Keeps, while it lives, what XGrammar warns of on this thread: mostly that it takes no notice of something.
// One at a time on a thread.
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
