#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// PEM files by which a process shows who it is and knows whom it may believe. They are read again while it
// runs, so that renewed certificates need no restart; connections that exist stay as they are.
struct TlsFiles {
  std::string certificate;        // What is shown, leaf first.
  std::string key;                // The leaf's.
  std::string ca;                 // Certificates that sign those of peers.
  uint32_t refresh_seconds = 10;  // How often they are looked at for changes; at least 1.

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

}  // namespace tandem
