#pragma once

#include <cstdint>
#include <string>

namespace tandem {

// The PEM files of a process: its own certificate, and the CA of its peers. They are reloaded while the
// process runs, so that renewed certificates need no restart. Existing connections do not change.
struct TlsFiles {
  std::string certificate;        // What is shown, leaf first.
  std::string key;                // The leaf's.
  std::string ca;                 // Certificates that sign those of peers.
  uint32_t refresh_seconds = 10;  // How often they are looked at for changes; at least 1.

  bool any() const { return !certificate.empty() || !key.empty() || !ca.empty(); }
};

}  // namespace tandem
