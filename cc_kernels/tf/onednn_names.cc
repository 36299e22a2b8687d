#include "cc_kernels/tf/onednn_names.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/util.h"

namespace tf_interop {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;

}  // namespace

void RenameForOneDnn(bool has_constant_filter, NodeDef* node) {
  if (!tensorflow::IsMKLEnabled()) return;
  DataType dtype = tensorflow::DT_INVALID;
  if (!tensorflow::TryGetNodeAttr(*node, "T", &dtype)) return;
  const bool is_half = dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
  if (is_half && !tensorflow::IsDataTypeSupportedByOneDNNOnThisCPU(dtype)) return;
  NodeDef renamed = *node;
  renamed.set_op(absl::StrCat("_MklNative", absl::StripPrefix(node->op(), "_")));
  tensorflow::AddNodeAttr("_kernel", "MklNameChangeOp", &renamed);
  if (has_constant_filter) tensorflow::AddNodeAttr("is_filter_const", true, &renamed);
  if (tensorflow::KernelDefAvailable(tensorflow::DeviceType(tensorflow::DEVICE_CPU), renamed)) {
    *node = std::move(renamed);
  }
}

}  // namespace tf_interop
