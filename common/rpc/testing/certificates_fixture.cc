#include "common/rpc/testing/certificates_fixture.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem {

void Certificates::MakeCa(int days) {
  Run("ca", days, "-subj /CN=ca");
}

TlsFiles Certificates::Make(const std::string& name, const std::string& uri, int days) {
  const std::string more = uri.empty() ? "" : absl::StrCat(",URI:", uri);
  Run(name, days,
      absl::StrCat("-subj /CN=", name, " -CA ", Path("ca.pem"), " -CAkey ", Path("ca.key"),
                   " -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1", more));
  return {.certificate = Path(name + ".pem"),
          .key = Path(name + ".key"),
          .ca = Path("ca.pem"),
          .refresh_seconds = 1};
}

void Certificates::Run(const std::string& name, int days, const std::string& arguments) {
  const std::string command = absl::StrCat(
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days ", days, " -keyout ",
      Path("new.key"), " -out ", Path("new.pem"), " ", arguments, " 2>/dev/null && mv ", Path("new.key"), " ",
      Path(name + ".key"), " && mv ", Path("new.pem"), " ", Path(name + ".pem"));
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace tandem
