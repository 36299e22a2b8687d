// Many tensors in one, so that a function need not pass each of them.
#ifndef TF_INTEROP_TF_PACKED_VALUES_H_
#define TF_INTEROP_TF_PACKED_VALUES_H_

#include <memory>
#include <string>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_interop {

template <typename Value>
using SharedValues = std::shared_ptr<const std::vector<Value>>;

// The value of a scalar tensor of type variant.
template <typename Value>
struct Packed {
  SharedValues<Value> values;

  // What a variant needs. The values mean nothing outside this process, so nothing is encoded.
  static std::string TypeName() { return "TfInterop>Packed"; }
  static void Encode(tensorflow::VariantTensorData* /*data*/) {}
  static bool Decode(const tensorflow::VariantTensorData& /*data*/) { return false; }
};

// Handles of variables: scalars of type resource.
using PackedVariables = Packed<tensorflow::Tensor>;
// The values of a Kept op, for a unit that reads them.
using KeptValues = Packed<const tensorflow::Tensor*>;

// The values in a tensor; null if it has none of this type.
template <typename Value>
SharedValues<Value> Unpack(const tensorflow::Tensor& tensor) {
  if (tensor.dtype() != tensorflow::DT_VARIANT || tensor.dims() != 0) return nullptr;
  const auto* const packed = tensor.scalar<tensorflow::Variant>()().get<Packed<Value>>();
  return packed == nullptr ? nullptr : packed->values;
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_PACKED_VALUES_H_
