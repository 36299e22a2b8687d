// Memory that shows what was never written, and what was written beyond it.
#ifndef TF_INTEROP_TESTS_CC_GUARDED_BUFFER_H_
#define TF_INTEROP_TESTS_CC_GUARDED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tf_interop {

// Memory with guards on both sides, filled with bytes that read as NaN.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes)
      : bytes_(bytes), storage_(bytes + 2 * kGuardBytes + 256, kGuard) {
    const auto start = reinterpret_cast<uintptr_t>(storage_.data()) + kGuardBytes;
    data_ = storage_.data() + kGuardBytes + (256 - start % 256) % 256;
    std::memset(data_, 0xFF, bytes);
  }

  GuardedBuffer(GuardedBuffer&&) = default;  // the storage stays where it is

  unsigned char* data() { return data_; }

  bool IsIntact() const {
    for (size_t i = 1; i <= kGuardBytes; ++i) {
      if (data_[-static_cast<ptrdiff_t>(i)] != kGuard || data_[bytes_ + i - 1] != kGuard) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr unsigned char kGuard = 0xC3;

  size_t bytes_;
  std::vector<unsigned char> storage_;
  unsigned char* data_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_GUARDED_BUFFER_H_
