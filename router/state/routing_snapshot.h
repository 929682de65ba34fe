#pragma once

#include <cstdint>
#include <utility>

#include "router/config/config.h"
#include "router/tenants/tenants.h"

namespace tandem::router {

// All data that routing uses, at one version of the store. Immutable and shared: a call keeps the snapshot
// that it started with, so that later changes do not affect it, and indices and pointers into the table stay
// valid. Drafters and tenants differ between snapshots, even in number and order. Target models are the same
// in all of them, so the index of a model is valid in every snapshot; the verifiers of a model may differ.
class RoutingSnapshot {
 public:
  // `before`: the snapshot that this one replaces, or null. Used only in the constructor.
  explicit RoutingSnapshot(RoutingTable table, uint64_t version = 0, const RoutingSnapshot* before = nullptr)
      : table_(std::move(table)),
        tenants_(table_, before == nullptr ? nullptr : &before->tenants_),
        version_(version) {}
  RoutingSnapshot(const RoutingSnapshot&) = delete;
  RoutingSnapshot& operator=(const RoutingSnapshot&) = delete;

  const RoutingTable& table() const { return table_; }
  const Tenants& tenants() const { return tenants_; }
  // The version of the store that the snapshot was made from.
  uint64_t version() const { return version_; }

 private:
  const RoutingTable table_;
  const Tenants tenants_;
  const uint64_t version_;
};

}  // namespace tandem::router
