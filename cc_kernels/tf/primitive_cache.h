// Separates oneDNN's primitives for a few cores from those for all cores.
//
// TensorFlow keeps oneDNN's primitives in caches of the thread that made them, one for each element
// type (MklPrimitiveFactory<T> in tensorflow/core/util/mkl_util.h). A primitive is divided for the
// number of threads at the time it was made, but the cache's key does not contain that number. A
// thread that ran a convolution on all cores would later run it in as many parts on one core, and
// vice versa, both at a fraction of the speed.
#ifndef TF_INTEROP_TF_PRIMITIVE_CACHE_H_
#define TF_INTEROP_TF_PRIMITIVE_CACHE_H_

#include <vector>

#include "absl/types/span.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {

// Returns the element types of the caches that oneDNN's kernels use, given the `dtypes` that they
// read and write; none for no dtypes. Float is always among them, because convolutions of every
// type use its cache.
std::vector<tensorflow::DataType> PrimitiveCacheTypes(
    absl::Span<const tensorflow::DataType> dtypes);

// While it lives, the calling thread uses caches that contain only primitives for `cores` cores.
// Does not nest. Does nothing if this TensorFlow has no such caches.
class NarrowPrimitives {
 public:
  // `types` comes from PrimitiveCacheTypes and must outlive this.
  NarrowPrimitives(absl::Span<const tensorflow::DataType> types, int cores);
  NarrowPrimitives(std::vector<tensorflow::DataType>&& types, int cores) = delete;
  ~NarrowPrimitives();
  NarrowPrimitives(const NarrowPrimitives&) = delete;
  NarrowPrimitives& operator=(const NarrowPrimitives&) = delete;

 private:
  const absl::Span<const tensorflow::DataType> types_;
  const int cores_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PRIMITIVE_CACHE_H_
