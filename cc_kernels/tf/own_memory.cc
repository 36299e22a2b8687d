#include "cc_kernels/tf/own_memory.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tensorflow/c/tf_tensor_internal.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

namespace tensorflow {

// Frees NumPy arrays whose memory tensors share. Absent from a TensorFlow without Python.
__attribute__((weak)) void DelayedNumpyDecref(void* data, size_t len, void* array);

}  // namespace tensorflow

namespace tf_interop {
namespace {

// An explicit instantiation may name private members, and pass them on to a friend.
template <typename Tag, typename Tag::Member member>
struct Reveal {
  friend typename Tag::Member MemberOf(Tag) { return member; }
};
struct Deallocator {
  using Member = void (*const TF_ManagedBuffer::*)(void*, size_t, void*);
  friend Member MemberOf(Deallocator);
};
struct DeallocatorArgument {
  using Member = void* const TF_ManagedBuffer::*;
  friend Member MemberOf(DeallocatorArgument);
};
template struct Reveal<Deallocator, &TF_ManagedBuffer::deallocator_>;
template struct Reveal<DeallocatorArgument, &TF_ManagedBuffer::deallocator_arg_>;

// The beginning of NumPy's PyArrayObject, as in its public header since version 1.7, in a Python
// with an interpreter lock. In one without, the first number is a thread's, and never 1.
struct NumpyArray {
  volatile uint32_t reference_count;  // its lower half; also read without the interpreter lock
  uint32_t reserved;
  void* type;
  void* data;
  int dimension_count;
  void* dimensions;
  void* strides;
  void* base;
  void* descriptor;
  int flags;
  void* weak_references;
};
constexpr int kOwnsData = 4;

// Nothing can make a new reference to an array that only its tensor refers to.
bool HasOneReference(const NumpyArray& array, const void* data) {
  const bool has_one = array.reference_count == 1;
  // Whatever a program wrote before it dropped its reference is there now.
  std::atomic_thread_fence(std::memory_order_acquire);
  return has_one && array.data == data && array.base == nullptr && (array.flags & kOwnsData) != 0 &&
         array.weak_references == nullptr;
}

}  // namespace

bool IsTensorFlowsOwn(const tensorflow::Tensor& tensor) {
  const tensorflow::TensorBuffer* const buffer = tensorflow::DMAHelper::buffer(&tensor);
  if (buffer == nullptr) return true;
  tensorflow::TensorBuffer* const root =
      const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer();
  if (root->OwnsMemory()) return true;
  const auto* const managed = dynamic_cast<const TF_ManagedBuffer*>(root);
  return managed != nullptr && &tensorflow::DelayedNumpyDecref != nullptr &&
         managed->*MemberOf(Deallocator()) == &tensorflow::DelayedNumpyDecref &&
         HasOneReference(*static_cast<const NumpyArray*>(managed->*MemberOf(DeallocatorArgument())),
                         root->data());
}

}  // namespace tf_interop
