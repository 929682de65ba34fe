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
    const size_t at = PlaceOfId(entries_, id, [](const Entry& entry) { return entry.id; });
    return at < entries_.size() && entries_[at].id == id && entries_[at].present ? &entries_[at].value
                                                                                 : nullptr;
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
    assert(entries_.empty() || entries_.back().id < id);
    entries_.push_back({.id = id, .present = true, .value = std::move(value)});
    ++size_;
    return entries_.back().value;
  }

  // Does nothing if there is no such node.
  void Erase(NodeId id) {
    const size_t at = PlaceOfId(entries_, id, [](const Entry& entry) { return entry.id; });
    if (at == entries_.size() || entries_[at].id != id || !entries_[at].present) return;
    Drop(entries_[at]);
    CloseHoles();
  }

  // Erases the nodes for which `erases` (id, value) is true.
  template <class F>
  void EraseIf(F erases) {
    for (Entry& entry : entries_) {
      if (entry.present && erases(entry.id, entry.value)) Drop(entry);
    }
    CloseHoles();
  }

  // Calls `visit` (id, value) in the order of ids; `visit` must not change the table.
  template <class F>
  void ForEach(F visit) {
    for (Entry& entry : entries_) {
      if (entry.present) visit(entry.id, entry.value);
    }
  }

 private:
  // Below this number, removing holes costs more than it saves.
  static constexpr size_t kFewHoles = 16;

  struct Entry {
    NodeId id = 0;
    bool present = false;
    T value;
  };

  void Drop(Entry& entry) {
    entry.present = false;
    entry.value = T();
    --size_;
  }
  void CloseHoles() {
    if (size_ == 0) {
      entries_.clear();
    } else if (entries_.size() - size_ > size_ + kFewHoles) {
      std::erase_if(entries_, [](const Entry& entry) { return !entry.present; });
    }
  }

  std::vector<Entry> entries_;
  size_t size_ = 0;
};

}  // namespace tandem
