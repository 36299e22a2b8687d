#include "cc_kernels/tf/stated_shapes.h"

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status InferStatedShapes(InferenceContext* context) {
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
  const size_t output_count = context->num_outputs();
  if (!shapes.empty() && shapes.size() != output_count) {
    return absl::InvalidArgumentError(absl::StrCat("Expected output_shapes for all ", output_count,
                                                   " outputs or none, got ", shapes.size(), "."));
  }
  for (size_t i = 0; i < output_count; ++i) {
    ShapeHandle shape = context->UnknownShape();
    if (!shapes.empty()) {
      TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    }
    context->set_output(static_cast<int>(i), shape);
  }
  return absl::OkStatus();
}

}  // namespace tf_interop
