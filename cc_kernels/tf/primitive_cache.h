// oneDNN's primitives for some of the cores apart from those for all.
//
// TensorFlow keeps oneDNN's primitives in caches of the thread that made them, one for each element
// type (MklPrimitiveFactory<T> in tensorflow/core/util/mkl_util.h). A primitive is divided into as
// many parts as there were threads when it was made, and the number of threads is no part of a
// cache's key: a thread that ran a convolution on all cores would run the same one in many parts
// when it is alone, and the other way round, both at a fraction of the speed.
#ifndef TF_INTEROP_TF_PRIMITIVE_CACHE_H_
#define TF_INTEROP_TF_PRIMITIVE_CACHE_H_

#include <vector>

#include "absl/types/span.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {

// The element types whose caches kernels of oneDNN's use that read and give `dtypes`. float's is
// always among them, because convolutions of any type use that one; no kernels use none.
std::vector<tensorflow::DataType> PrimitiveCacheTypes(
    absl::Span<const tensorflow::DataType> dtypes);

// While it lives the calling thread finds, and adds to, caches that hold only primitives that were
// made for `cores` so. Not to be nested. Where this TensorFlow has no such caches it does nothing.
class NarrowPrimitives {
 public:
  // `types` is what PrimitiveCacheTypes gave; it has to outlive this.
  NarrowPrimitives(absl::Span<const tensorflow::DataType> types, int cores);
  ~NarrowPrimitives();
  NarrowPrimitives(const NarrowPrimitives&) = delete;
  NarrowPrimitives& operator=(const NarrowPrimitives&) = delete;

 private:
  const absl::Span<const tensorflow::DataType> types_;
  const int cores_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PRIMITIVE_CACHE_H_
