// Execution plans of the stand-in for libcudnn: finalizing and running them.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_PLAN_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_PLAN_H_

#include <cudnn.h>

#include "tests/cc/fake_cudnn_descriptor.h"

namespace tf_interop::fake_cudnn {

cudnnStatus_t FinalizePlan(Node* node);
cudnnStatus_t FinalizePack(const Node& node);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_PLAN_H_
