// The memory of one call of a kernel inside a compiled function, which is XLA's.
#ifndef TF_INTEROP_XLA_CALL_MEMORY_H_
#define TF_INTEROP_XLA_CALL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.pb.h"
#include "xla/ffi/api/ffi.h"

namespace tf_interop {

tensorflow::TensorShape ShapeOf(const xla::ffi::AnyBuffer& buffer);

// A tensor over XLA's memory, which must outlive it.
tensorflow::Tensor TensorOf(const xla::ffi::AnyBuffer& buffer, tensorflow::DataType dtype);

// The most results that a called kernel can have.
inline constexpr int kMostResults = 255;

// The results of one call. A kernel that allocates its outputs with the right attributes gets
// XLA's memory for them, and other memory from `other`.
class Results {
 public:
  // Of the first `count` results.
  Results(xla::ffi::RemainingRets results, size_t count, tensorflow::Allocator* other);

  // Attributes with which a kernel allocates its outputs.
  std::vector<tensorflow::AllocatorAttributes> Attributes(int output_count) const;

  // Null for memory that is no result's.
  tensorflow::Allocator* AllocatorOf(tensorflow::AllocatorAttributes attributes) const;

  size_t size() const { return buffers_.size(); }
  const xla::ffi::AnyBuffer& operator[](size_t i) const { return buffers_[i]; }

 private:
  static constexpr int kShift = 24;  // the upper eight bits belong to the device
  static_assert(kMostResults < 1 << 8);

  std::vector<xla::ffi::AnyBuffer> buffers_;
  std::vector<std::unique_ptr<tensorflow::Allocator>> allocators_;
};

// XLA's memory of a GPU, during a call.
struct DeviceMemory {
  const XLA_FFI_Api* api;
  XLA_FFI_ExecutionContext* context;
};

// Temporary memory of a GPU: a buffer of the call and, where that is too small, more from XLA. What
// is freed is for later work on the same stream, so only memory that no work uses may be freed
// during the call. Without `may_grow` there is only the buffer.
class ScratchMemory : public tensorflow::Allocator {
 public:
  // What the buffer gives is a multiple of this, which is XLA's alignment of the buffer.
  static constexpr size_t kAlignment = 256;

  ScratchMemory(const DeviceMemory& memory, void* buffer, size_t bytes, bool may_grow)
      : memory_(memory), buffer_(static_cast<char*>(buffer)), bytes_(bytes), may_grow_(may_grow) {}
  ~ScratchMemory() override;

  std::string Name() override { return "tf_interop_xla_scratch"; }
  void* AllocateRaw(size_t alignment, size_t size) override;
  void DeallocateRaw(void* data) override;
  tensorflow::AllocatorMemoryType GetMemoryType() const override {
    return tensorflow::AllocatorMemoryType::kDevice;
  }

 private:
  bool is_in_buffer(const void* data) const { return data >= buffer_ && data < buffer_ + bytes_; }

  const DeviceMemory memory_;
  char* const buffer_;
  const size_t bytes_;
  const bool may_grow_;
  struct Piece {
    void* data;
    size_t bytes;
    bool is_free;
  };

  size_t used_ = 0;                // of the buffer
  std::vector<Piece> pieces_;      // of the buffer, in order
  std::map<void*, size_t> sizes_;  // of XLA's
};

}  // namespace tf_interop

template <>
struct xla::ffi::CtxDecoding<tf_interop::DeviceMemory> {
  using Type = tf_interop::DeviceMemory;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                    DiagnosticEngine&) {
    return Type{api, context};
  }
};

#endif  // TF_INTEROP_XLA_CALL_MEMORY_H_
