// Registers ops that have resources but no state.
#ifndef TF_INTEROP_TF_REGISTER_OP_H_
#define TF_INTEROP_TF_REGISTER_OP_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def_builder.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {

// Does as REGISTER_OP. TensorFlow takes every op that has a resource for one with state: a Session
// shares the kernels of such ops between its graphs, by the node's name, and no pass removes them.
// `define` returns an OpDefBuilder. Returns true.
template <typename Define>
bool RegisterWithoutState(Define define) {
  tensorflow::OpRegistry::Global()->Register(
      [define](tensorflow::OpRegistrationData* op) -> absl::Status {
        TF_RETURN_IF_ERROR(define().Finalize(op));
        op->op_def.set_is_stateful(false);
        return absl::OkStatus();
      });
  return true;
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_REGISTER_OP_H_
