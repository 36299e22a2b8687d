#include "cc_kernels/tf/onednn_names.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/util.h"

namespace tf_interop {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::TryGetNodeAttr;

bool HasText(const NodeDef& node, const char* attribute, absl::string_view text) {
  std::string value;
  return TryGetNodeAttr(node, attribute, &value) && value == text;
}

bool HasNumber(const NodeDef& node, const char* attribute, int64_t number) {
  int64_t value = 0;
  return TryGetNodeAttr(node, attribute, &value) && value == number;
}

bool IsAny(const NodeDef&) { return true; }

bool HasNoExplicitPadding(const NodeDef& node) { return !HasText(node, "padding", "EXPLICIT"); }

bool PoolsSpaceAlone(const NodeDef& node) {
  const auto takes_each = [&](const char* attribute) {
    std::vector<int64_t> sizes;
    if (!TryGetNodeAttr(node, attribute, &sizes) || sizes.empty()) return false;
    const bool is_channels_first =
        HasText(node, "data_format", "NCHW") || HasText(node, "data_format", "NCDHW");
    return sizes[0] == 1 && (is_channels_first ? sizes[1] : sizes.back()) == 1;
  };
  return HasNoExplicitPadding(node) && takes_each("ksize") && takes_each("strides");
}

bool HasImages(const NodeDef& node) {
  return !HasText(node, "data_format", "NDHWC") && !HasText(node, "data_format", "NCDHW");
}

bool AppliesReluAlone(const NodeDef& node) {
  return HasNumber(node, "num_side_inputs", 0) && HasText(node, "activation_mode", "Relu");
}

bool IsUnvectorized(const NodeDef& node) {
  int64_t host_argument_count = 0;
  TryGetNodeAttr(node, "num_host_args", &host_argument_count);
  return host_argument_count == 0 && !HasText(node, "data_format", "NCHW_VECT_C") &&
         !HasText(node, "filter_format", "OIHW_VECT_I");
}

bool IsNotTransposedFirst(const NodeDef& node) {
  bool is_transposed = false;
  TryGetNodeAttr(node, "transpose_a", &is_transposed);
  return !is_transposed;
}

constexpr char kNative[] = "_MklNative";
constexpr char kPlain[] = "_Mkl";

// An op for which oneDNN has a kernel, the prefix of that kernel's op, and which nodes get it.
//
// What the pass knows beyond this makes no difference to a graph that runs: fused ops that it does
// not know have no kernel in TensorFlow either, and it asks how large an op is on ARM only.
struct Rule {
  absl::string_view op;
  absl::string_view prefix;
  bool (*applies)(const NodeDef& node) = IsAny;
  bool keeps_constant_filter = false;
};
constexpr Rule kRules[] = {
    {"AvgPool", kNative},
    {"AvgPool3D", kNative},
    {"AvgPool3DGrad", kNative},
    {"AvgPoolGrad", kNative},
    {"BatchMatMul", kPlain},
    {"BatchMatMulV2", kPlain},
    {"ConjugateTranspose", kPlain},
    {"Conv2D", kNative, IsAny, true},
    {"Conv2DBackpropFilter", kNative, HasNoExplicitPadding},
    {"Conv2DBackpropInput", kNative, HasNoExplicitPadding},
    {"Conv3D", kNative, IsAny, true},
    {"Conv3DBackpropFilterV2", kNative},
    {"Conv3DBackpropInputV2", kNative},
    {"DepthwiseConv2dNative", kNative, IsAny, true},
    {"DepthwiseConv2dNativeBackpropFilter", kNative, HasNoExplicitPadding},
    {"DepthwiseConv2dNativeBackpropInput", kNative, HasNoExplicitPadding},
    {"Einsum", kPlain},
    {"FusedBatchNorm", kNative},
    {"FusedBatchNormGrad", kNative},
    {"FusedBatchNormGradV2", kNative},
    {"FusedBatchNormGradV3", kNative, HasImages},
    {"FusedBatchNormV2", kNative},
    {"FusedBatchNormV3", kNative, HasImages},
    {"MatMul", kPlain},
    {"MaxPool", kNative, PoolsSpaceAlone},
    {"MaxPool3D", kNative, PoolsSpaceAlone},
    {"Softmax", kPlain},
    {"Transpose", kPlain},
    {"_FusedBatchNormEx", kNative, AppliesReluAlone},
    {"_FusedConv2D", kNative, IsUnvectorized, true},
    {"_FusedConv3D", kNative, IsAny, true},
    {"_FusedDepthwiseConv2dNative", kNative, IsAny, true},
    {"_FusedMatMul", kNative, IsNotTransposedFirst, true},
};

// Kernels are registered for further types, which the pass leaves to TensorFlow's own.
bool IsTaken(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_COMPLEX64:
    case tensorflow::DT_COMPLEX128:
      return true;
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_HALF:
      return tensorflow::IsDataTypeSupportedByOneDNNOnThisCPU(dtype);
    default:
      return false;
  }
}

}  // namespace

void RenameForOneDnn(bool has_constant_filter, NodeDef* node) {
  if (!tensorflow::IsMKLEnabled()) return;
  const auto* const rule =
      absl::c_find_if(kRules, [&](const Rule& each) { return each.op == node->op(); });
  DataType dtype = tensorflow::DT_INVALID;
  if (rule == std::end(kRules) || !TryGetNodeAttr(*node, "T", &dtype) || !IsTaken(dtype) ||
      !rule->applies(*node)) {
    return;
  }
  NodeDef renamed = *node;
  renamed.set_op(absl::StrCat(rule->prefix, absl::StripPrefix(node->op(), "_")));
  tensorflow::AddNodeAttr("_kernel", "MklNameChangeOp", &renamed);
  if (rule->keeps_constant_filter) {
    (*renamed.mutable_attr())["is_filter_const"].set_b(has_constant_filter);
  }
  if (tensorflow::KernelDefAvailable(tensorflow::DeviceType(tensorflow::DEVICE_CPU), renamed)) {
    *node = std::move(renamed);
  }
}

}  // namespace tf_interop
