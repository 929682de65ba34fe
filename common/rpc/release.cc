#include "common/rpc/release.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/mailbox.h"

namespace tandem {
namespace {

using Objects = Mailbox<std::shared_ptr<void>>;

void ReleaseForever(Objects* objects) {
  std::vector<std::shared_ptr<void>> taken;
  while (objects->WaitUntil(absl::InfiniteFuture(), &taken)) taken.clear();
}

}  // namespace

void ReleaseElsewhere(std::shared_ptr<void> object) {
  // Lives as long as the process: calls may end until its last moment.
  static Objects* const objects = [] {
    auto* mailbox = new Objects;
    std::thread(ReleaseForever, mailbox).detach();
    return mailbox;
  }();
  objects->Push(std::move(object));
}

}  // namespace tandem
