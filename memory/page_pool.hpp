#pragma once
// Pages of conditional state inside one hard budget: who owns them, who may use them, when they may
// go. No actors here, so that the rules are tested by themselves; the page store actor is the only
// user of a pool.
//
//   PP-1  Leased pages are freed by dropping their owner only. That ends its leases: an answer that came too late for
//         its asker leaves a lease that nobody would give back.
//   PP-2  Memory comes from one arena and never exceeds the budget.
//   PP-3  Dropped pages cannot be leased again.
//   PP-4  What lease() returned keeps the memory, also when its owner was dropped or the pool has ended: a kernel that
//         runs meanwhile still reads what is there.

#include <longstraw/memory/arena.hpp>

#include <map>
#include <memory>
#include <vector>

namespace longstraw::memory {

/// Key is ordered and copyable; it says whose the pages are.
template <class Key>
class page_pool {
 public:
  explicit page_pool(std::shared_ptr<arena> from) : arena_(std::move(from)) {}

  /// Room for `pages` pages of `page_floats` each. errc::over_budget if it does not fit;
  /// errc::bad_input if the owner has pages already.
  void reserve(const Key& owner, index pages, index page_floats) {
    if (owners_.contains(owner))
      fail(errc::bad_input, "pages of an owner may be reserved only once");
    auto m = std::make_shared<memory_of_pages>();
    m->memory = arena_->allocate_floats(pages * page_floats);
    for (index p = 0; p < pages; ++p)
      m->pages.push_back(m->memory.floats().data() + p * page_floats);
    owners_.emplace(owner, entry{std::move(m)});
  }

  /// One pointer a page. They may be used until the matching give_back.
  std::shared_ptr<const std::vector<float*>> lease(const Key& owner) {
    auto it = owners_.find(owner);
    if (it == owners_.end())
      fail(errc::bad_input,
           "pages were asked for that are not there: never reserved, or dropped with their job");
    ++it->second.leases;
    const auto& m = it->second.memory;
    return {m, &m->pages};
  }

  /// Nothing happens if the owner was dropped meanwhile.
  void give_back(const Key& owner) {
    auto it = owners_.find(owner);
    if (it == owners_.end()) return;
    LS_ASSERT(it->second.leases > 0, "only what was leased can be given back");
    --it->second.leases;
  }

  /// Drops every owner for which match(owner) holds.
  template <class Match>
  void drop_if(Match&& match) {
    std::erase_if(owners_, [&](const auto& o) { return match(o.first); });
  }

  index owners() const { return static_cast<index>(owners_.size()); }

 private:
  struct memory_of_pages {
    buffer memory;
    std::vector<float*> pages;
  };
  struct entry {
    std::shared_ptr<memory_of_pages> memory;
    index leases = 0;
  };
  std::shared_ptr<arena> arena_;
  std::map<Key, entry> owners_;
};

}  // namespace longstraw::memory
