// All values of a Kept op in one tensor, for a unit that reads them.
#ifndef TF_INTEROP_TF_KEPT_VALUES_H_
#define TF_INTEROP_TF_KEPT_VALUES_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_interop {

// The value of a scalar tensor of type variant.
struct KeptValues {
  std::shared_ptr<const std::vector<const tensorflow::Tensor*>> values;

  // What a variant needs. Nothing is encoded: the values are in this process.
  static std::string TypeName() { return "TfInterop>KeptValues"; }
  static void Encode(tensorflow::VariantTensorData* /*data*/) {}
  static bool Decode(const tensorflow::VariantTensorData& /*data*/) { return false; }
};

// Null if a tensor has none.
inline const KeptValues* KeptValuesIn(const tensorflow::Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_VARIANT || tensor.dims() != 0) return nullptr;
  const auto* kept = tensor.scalar<tensorflow::Variant>()().get<KeptValues>();
  return kept == nullptr || kept->values == nullptr ? nullptr : kept;
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_KEPT_VALUES_H_
