#pragma once

#include <string>

#include "common/base/temporary_folder.h"
#include "common/rpc/tls_files.h"

namespace tandem {

// For tests: a CA and certificates that it signed, as the openssl command makes them.
class Certificates {
 public:
  Certificates() { MakeCa(); }

  // Makes a new CA, which replaces the current one.
  void MakeCa(int days = 2);
  // A certificate that lasts for `days` from now, in place of one of that name. `uri`: one more alternative
  // name, such as a role.
  TlsFiles Make(const std::string& name, const std::string& uri, int days = 2);
  std::string Path(const std::string& file) const { return folder_.PathOf(file); }

 private:
  // Writes files under another name and moves them into place, as tools that renew certificates do.
  void Run(const std::string& name, int days, const std::string& arguments);

  const TemporaryFolder folder_;
};

}  // namespace tandem
