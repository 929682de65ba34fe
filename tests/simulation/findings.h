#pragma once

#include <string>
#include <vector>

namespace tandem::simulation {

// The errors of a run.
class Findings {
 public:
  void Expect(bool holds, const std::string& otherwise) {
    // The first ones tell the most; a run gone wrong can have thousands.
    if (!holds && findings_.size() < 10) findings_.push_back(otherwise);
  }
  const std::vector<std::string>& all() const { return findings_; }

 private:
  std::vector<std::string> findings_;
};

}  // namespace tandem::simulation
