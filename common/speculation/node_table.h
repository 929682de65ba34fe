#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

#include "common/speculation/candidate_tree.h"
#include "common/speculation/draft_messages.h"

namespace tandem {

// Values for the nodes of a tree, by id. Ids only increase until the table is empty again. An erased node
// leaves a hole. Once there are clearly more holes than nodes, they are removed, so ids stay nearly
// consecutive and most are found without a search (PlaceOfId). References are valid until the next Add, Erase
// or EraseIf.
template <class T>
class NodeTable {
 public:
  size_t size() const { return size_; }
  const T* Find(NodeId id) const {
    const size_t at = PlaceOf(id);
    return at < entries_.size() && entries_[at].present ? &entries_[at].value : nullptr;
  }
  T* Find(NodeId id) { return const_cast<T*>(std::as_const(*this).Find(id)); }
  // The node must exist.
  const T& at(NodeId id) const {
    const T* const found = Find(id);
    assert(found != nullptr);
    return *found;
  }
  T& at(NodeId id) { return const_cast<T&>(std::as_const(*this).at(id)); }

  // `id` must be greater than all others.
  T& Add(NodeId id, T value) {
    assert(ids_.empty() || ids_.back() < id);
    ids_.push_back(id);
    entries_.push_back({.present = true, .value = std::move(value)});
    ++size_;
    return entries_.back().value;
  }

  // Does nothing if there is no such node.
  void Erase(NodeId id) {
    const size_t at = PlaceOf(id);
    if (at == entries_.size() || !entries_[at].present) return;
    Drop(entries_[at]);
    CloseHoles();
  }

  // Erases the nodes for which `erases` (id, value) is true.
  template <class F>
  void EraseIf(F erases) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].present && erases(ids_[i], entries_[i].value)) Drop(entries_[i]);
    }
    CloseHoles();
  }

  // Calls `visit` (id, value) in the order of ids; `visit` must not change the table.
  template <class F>
  void ForEach(F visit) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].present) visit(ids_[i], entries_[i].value);
    }
  }

 private:
  // Below this number, removing holes costs more than it saves.
  static constexpr size_t kFewHoles = 16;

  struct Entry {
    bool present = false;
    T value;
  };

  // The place of `id`, or the number of entries if it has none.
  size_t PlaceOf(NodeId id) const {
    const size_t at = PlaceOfId(ids_, id, [](NodeId one) { return one; });
    return at < ids_.size() && ids_[at] == id ? at : ids_.size();
  }
  void Drop(Entry& entry) {
    entry.present = false;
    entry.value = T();
    --size_;
  }
  void CloseHoles() {
    if (entries_.size() - size_ <= (size_ == 0 ? 0 : size_ + kFewHoles)) return;
    size_t kept = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].present) continue;
      if (kept < i) {
        ids_[kept] = ids_[i];
        entries_[kept] = std::move(entries_[i]);
      }
      ++kept;
    }
    ids_.resize(kept);
    entries_.erase(entries_.begin() + static_cast<ptrdiff_t>(kept), entries_.end());
  }

  // Ids are apart from the values, because a search reads many ids and one value.
  std::vector<NodeId> ids_;
  std::vector<Entry> entries_;
  size_t size_ = 0;
};

}  // namespace tandem
