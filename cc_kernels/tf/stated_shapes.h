// The shape function of ops that state the shapes of their outputs in an attribute.
#ifndef TF_INTEROP_TF_STATED_SHAPES_H_
#define TF_INTEROP_TF_STATED_SHAPES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_interop {

// Reads `output_shapes`: a shape for every output, or none.
absl::Status InferStatedShapes(tensorflow::shape_inference::InferenceContext* context);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STATED_SHAPES_H_
