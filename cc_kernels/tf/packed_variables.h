// The variables of a function in one tensor, so that a call need not pass each of them.
#ifndef TF_INTEROP_TF_PACKED_VARIABLES_H_
#define TF_INTEROP_TF_PACKED_VARIABLES_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_interop {

// The value of a scalar tensor of type variant.
struct PackedVariables {
  using Handles = std::shared_ptr<const std::vector<tensorflow::Tensor>>;
  Handles handles;  // scalars of type resource

  // What a variant needs. Handles mean nothing outside this process, so nothing is encoded.
  static std::string TypeName() { return "TfInterop>PackedVariables"; }
  static void Encode(tensorflow::VariantTensorData* /*data*/) {}
  static bool Decode(const tensorflow::VariantTensorData& /*data*/) { return false; }
};

// Null if a tensor has none.
inline const PackedVariables* PackedVariablesIn(const tensorflow::Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_VARIANT || tensor.dims() != 0) return nullptr;
  const auto* packed = tensor.scalar<tensorflow::Variant>()().get<PackedVariables>();
  return packed == nullptr || packed->handles == nullptr ? nullptr : packed;
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PACKED_VARIABLES_H_
