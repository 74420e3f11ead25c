#include <longstraw/memory/arena.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sys/mman.h>

namespace longstraw::memory {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::byte* map_region(std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// Fresh zero pages from the kernel: nothing is touched before its first use, so resident memory
// follows real use, and what is given back leaves the process at once. Large buffers begin on a
// huge page and ask for such pages: fewer page faults, and memory that a kernel uses again and
// again does not collide with itself in the second-level cache.
std::byte* map_pages(std::size_t bytes) {
  const std::size_t mapped = rounded_up(bytes, page_bytes);
  if (bytes < 4 * huge_page_bytes) return map_region(mapped);
  std::byte* p = map_region(mapped + huge_page_bytes);
  if (!p) return nullptr;
  const std::size_t before =
      (huge_page_bytes - reinterpret_cast<std::uintptr_t>(p) % huge_page_bytes) % huge_page_bytes;
  if (before > 0) munmap(p, before);
  if (before < huge_page_bytes) munmap(p + before + mapped, huge_page_bytes - before);
  madvise(p + before, mapped, MADV_HUGEPAGE);
  return p + before;
}

std::size_t status_field_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(field + ":", 0) == 0) return std::stoull(line.substr(field.size() + 1)) * 1024;
  return 0;
}

}  // namespace

buffer::~buffer() {
  if (!data_) return;
  munmap(data_, rounded_up(bytes_, page_bytes));
  if (auto owner = owner_->owner_.lock()) owner->give_back(*owner_, bytes_);
}

void buffer::populate() const {
  if (!data_) return;
#ifdef MADV_POPULATE_WRITE
  if (madvise(data_, rounded_up(bytes_, page_bytes), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (std::size_t b = 0; b < bytes_; b += page_bytes) {
    volatile std::byte* page = data_ + b;
    *page = std::byte{0};
  }
}

std::shared_ptr<budget> budget::make(std::size_t limit_bytes) {
  return std::shared_ptr<budget>(new budget(limit_bytes));
}

std::shared_ptr<arena> budget::named(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto& entry = arenas_[name];
  if (!entry) entry = std::shared_ptr<arena>(new arena(name, weak_from_this()));
  return entry;
}

std::vector<budget::usage> budget::report() const {
  std::lock_guard lock(mutex_);
  std::vector<usage> all;
  for (const auto& [name, a] : arenas_) all.push_back({name, a->current_bytes_, a->peak_bytes_});
  return all;
}

std::size_t budget::current_bytes() const {
  std::lock_guard lock(mutex_);
  return current_bytes_;
}

std::size_t budget::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_bytes_;
}

void budget::take(arena& from, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const std::size_t left =
      limit_bytes_ == 0 ? std::numeric_limits<std::size_t>::max() : limit_bytes_ - current_bytes_;
  if (bytes > left)
    fail(errc::over_budget, "arena '{}' asks for {} but only {} of the {} budget are left",
         from.name(), readable_bytes(bytes), readable_bytes(left), readable_bytes(limit_bytes_));
  current_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  from.current_bytes_ += bytes;
  from.peak_bytes_ = std::max(from.peak_bytes_, from.current_bytes_);
}

void budget::give_back(arena& to, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  current_bytes_ -= bytes;
  to.current_bytes_ -= bytes;
}

buffer arena::allocate(std::size_t bytes) {
  buffer b;
  if (bytes == 0) return b;
  auto owner = owner_.lock();
  LS_ASSERT(owner, "an arena must not outlive its budget");
  owner->take(*this, bytes);
  b.data_ = map_pages(bytes);
  if (!b.data_) {
    owner->give_back(*this, bytes);
    fail(errc::over_budget, "arena '{}' asks for {} and the operating system has no memory for it",
         name_, readable_bytes(bytes));
  }
  b.owner_ = shared_from_this();
  b.bytes_ = bytes;
  return b;
}

buffer arena::allocate_floats(index count) {
  LS_ASSERT(count >= 0, "a float count cannot be negative");
  if (static_cast<std::uint64_t>(count) > std::numeric_limits<std::size_t>::max() / sizeof(float))
    fail(errc::over_budget, "arena '{}' asks for {} floats, more than an address space holds",
         name_, count);
  return allocate(static_cast<std::size_t>(count) * sizeof(float));
}

std::size_t process_peak_bytes() { return status_field_bytes("VmHWM"); }
std::size_t process_resident_bytes() { return status_field_bytes("VmRSS"); }

std::string readable_bytes(std::size_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(units)) value /= 1024.0, ++unit;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace longstraw::memory
