#include "cc_kernels/xla/call_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "xla/ffi/api/c_api_internal.h"

namespace tf_interop {
namespace {

namespace ffi = xla::ffi;
using tensorflow::Tensor;

class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  BorrowedBuffer(void* data, size_t size) : TensorBuffer(data), size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const size_t size_;
};

// Gives XLA's memory of a result to the kernel that allocates it. Other memory is `other`'s.
class ResultAllocator : public tensorflow::Allocator {
 public:
  ResultAllocator(void* data, size_t size, tensorflow::Allocator* other)
      : data_(data), size_(size), other_(other) {}

  std::string Name() override { return "tf_interop_xla_result"; }
  void* AllocateRaw(size_t alignment, size_t size) override {
    const bool is_aligned = reinterpret_cast<uintptr_t>(data_) % alignment == 0;
    if (is_given_ || size > size_ || !is_aligned) return other_->AllocateRaw(alignment, size);
    is_given_ = true;
    return data_;
  }
  void DeallocateRaw(void* data) override {
    if (data != data_) return other_->DeallocateRaw(data);
    is_given_ = false;
  }
  tensorflow::AllocatorMemoryType GetMemoryType() const override { return other_->GetMemoryType(); }

 private:
  void* const data_;
  const size_t size_;
  tensorflow::Allocator* const other_;
  bool is_given_ = false;
};

bool Fails(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return false;
  ffi::internal::DestroyError(api, error);
  return true;
}

}  // namespace

tensorflow::TensorShape ShapeOf(const ffi::AnyBuffer& buffer) {
  const auto sizes = buffer.dimensions();
  return tensorflow::TensorShape(absl::MakeConstSpan(sizes.begin(), sizes.size()));
}

Tensor TensorOf(const ffi::AnyBuffer& buffer, tensorflow::DataType dtype) {
  auto* const memory = new BorrowedBuffer(buffer.untyped_data(), buffer.size_bytes());
  Tensor tensor(dtype, ShapeOf(buffer), memory);
  memory->Unref();
  return tensor;
}

Results::Results(ffi::RemainingRets results, size_t count, tensorflow::Allocator* other) {
  for (size_t i = 0; i < count; ++i) {
    buffers_.push_back(**results.get<ffi::AnyBuffer>(i));
    allocators_.push_back(std::make_unique<ResultAllocator>(buffers_.back().untyped_data(),
                                                            buffers_.back().size_bytes(), other));
  }
}

std::vector<tensorflow::AllocatorAttributes> Results::Attributes(int output_count) const {
  std::vector<tensorflow::AllocatorAttributes> attributes(output_count);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    attributes[i].value = static_cast<uint32_t>(i + 1) << kShift;
  }
  return attributes;
}

tensorflow::Allocator* Results::AllocatorOf(tensorflow::AllocatorAttributes attributes) const {
  const uint32_t number = attributes.value >> kShift;
  return number == 0 ? nullptr : allocators_[number - 1].get();
}

ScratchMemory::~ScratchMemory() {
  while (!sizes_.empty()) DeallocateRaw(sizes_.begin()->first);
}

void* ScratchMemory::AllocateRaw(size_t alignment, size_t size) {
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded <= bytes_ - used_) {
    void* const data = buffer_ + used_;
    used_ += rounded;
    pieces_.push_back({data, rounded, /*is_free=*/false});
    return data;
  }
  if (!may_grow_) return nullptr;
  XLA_FFI_DeviceMemory_Allocate_Args args = {};
  args.struct_size = XLA_FFI_DeviceMemory_Allocate_Args_STRUCT_SIZE;
  args.ctx = memory_.context;
  args.size = size;
  // XLA refuses a larger alignment than 16, but aligns all memory of a GPU to more than 64.
  args.alignment = std::min(alignment, size_t{16});
  if (Fails(memory_.api, memory_.api->XLA_FFI_DeviceMemory_Allocate(&args))) return nullptr;
  sizes_[args.data] = size;
  return args.data;
}

void ScratchMemory::DeallocateRaw(void* data) {
  if (is_in_buffer(data)) {
    std::find_if(pieces_.rbegin(), pieces_.rend(), [data](const Piece& each) {
      return each.data == data && !each.is_free;
    })->is_free = true;
    for (; !pieces_.empty() && pieces_.back().is_free; pieces_.pop_back()) {
      used_ -= pieces_.back().bytes;
    }
    return;
  }
  XLA_FFI_DeviceMemory_Free_Args args = {};
  args.struct_size = XLA_FFI_DeviceMemory_Free_Args_STRUCT_SIZE;
  args.ctx = memory_.context;
  args.size = sizes_.extract(data).mapped();
  args.data = data;
  (void)Fails(memory_.api, memory_.api->XLA_FFI_DeviceMemory_Free(&args));
}

}  // namespace tf_interop
