#pragma once

#include <cstdint>
#include <utility>

#include "router/config/config.h"
#include "router/tenants/tenants.h"

namespace tandem::router {

// Everything that routing goes by, as of one version of the store. Immutable and shared: a call holds the
// snapshot it began with for its life, so that what changes meanwhile changes nothing for it, and indices and
// pointers into the table stay good. Drafters and tenants differ between snapshots, in number and order too;
// the target models are the same in all of them, so an index of a model is good for every snapshot, though
// not which verifiers they have.
class RoutingSnapshot {
 public:
  // `before` is the snapshot that this one takes over from, if there is one; not kept.
  explicit RoutingSnapshot(RoutingTable table, uint64_t version = 0, const RoutingSnapshot* before = nullptr)
      : table_(std::move(table)),
        tenants_(table_, before == nullptr ? nullptr : &before->tenants_),
        version_(version) {}
  RoutingSnapshot(const RoutingSnapshot&) = delete;
  RoutingSnapshot& operator=(const RoutingSnapshot&) = delete;

  const RoutingTable& table() const { return table_; }
  const Tenants& tenants() const { return tenants_; }
  // Of the store that it was made from.
  uint64_t version() const { return version_; }

 private:
  const RoutingTable table_;
  const Tenants tenants_;
  const uint64_t version_;
};

}  // namespace tandem::router
