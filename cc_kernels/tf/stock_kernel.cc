#include "cc_kernels/tf/stock_kernel.h"

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorflow/core/util/util.h"

namespace tf_interop {
namespace {

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

// An op with a oneDNN kernel, the prefix of that kernel's op, and the nodes that get it.
//
// TensorFlow's other rules make no difference to a graph that runs: the fused ops that they exclude
// have no kernel in TensorFlow either, and sizes matter only on ARM.
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

// Ops that have no other kernel, or one that does nothing.
bool IsOfOneDnnAlone(absl::string_view op) {
  return op == "_FusedDepthwiseConv2dNative" || op == "_FusedConv3D";
}

// oneDNN's kernels are registered for more types, but TensorFlow's pass uses them only for these.
bool IsTaken(tensorflow::DataType dtype) {
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

// Sets a node's op and attributes to those of oneDNN's kernel if TensorFlow would run that kernel
// with oneDNN on.
//
// TensorFlow also merges some pairs of nodes, which run as two steps: Pad and Conv2D or
// _FusedConv2D, Conv2D and BiasAdd, Conv2DBackpropFilter and BiasAddGrad. MaxPoolGrad and
// MaxPool3DGrad keep TensorFlow's kernel, because oneDNN's reads a workspace that the forward op
// writes.
void RenameForOneDnn(bool has_constant_filter, NodeDef* node) {
  const auto* const rule =
      absl::c_find_if(kRules, [&](const Rule& each) { return each.op == node->op(); });
  if (rule == std::end(kRules)) return;
  const tensorflow::OpDef* op_def = nullptr;
  NodeDef renamed = *node;
  if (!tensorflow::OpRegistry::Global()->LookUpOpDef(node->op(), &op_def).ok()) return;
  tensorflow::AddDefaultsToNodeDef(*op_def, &renamed);
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  if (!TryGetNodeAttr(renamed, "T", &dtype) || !IsTaken(dtype) || !rule->applies(renamed)) return;
  renamed.set_op(absl::StrCat(rule->prefix, absl::StripPrefix(node->op(), "_")));
  tensorflow::AddNodeAttr("_kernel", "MklNameChangeOp", &renamed);
  if (rule->keeps_constant_filter) {
    (*renamed.mutable_attr())["is_filter_const"].set_b(has_constant_filter);
  }
  if (tensorflow::KernelDefAvailable(tensorflow::DeviceType(tensorflow::DEVICE_CPU), renamed)) {
    *node = std::move(renamed);
  }
}

// Not with the call's FunctionLibraryRuntime: a function over several devices has one that makes no
// kernels, and Grappler has none when it computes nodes that read only constants.
absl::Status MakeKernel(tensorflow::DeviceBase* device, int graph_def_version, NodeDef node,
                        std::unique_ptr<tensorflow::OpKernel>* kernel) {
  const tensorflow::OpDef* op_def = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op_def));
  tensorflow::AddDefaultsToNodeDef(*op_def, &node);
  TF_RETURN_IF_ERROR(tensorflow::ValidateNodeDef(node, *op_def));
  std::shared_ptr<const tensorflow::NodeProperties> properties;
  TF_RETURN_IF_ERROR(tensorflow::NodeProperties::CreateFromNodeDef(
      std::move(node), tensorflow::OpRegistry::Global(), &properties));
  absl::Status status;
  *kernel = tensorflow::CreateOpKernel(tensorflow::DeviceType(device->device_type()), device,
                                       device->GetAllocator(tensorflow::AllocatorAttributes()),
                                       properties, graph_def_version, &status);
  return status;
}

}  // namespace

absl::Status MakeStockKernel(tensorflow::DeviceBase* device, int graph_def_version,
                             bool has_constant_filter, const NodeDef& node,
                             std::unique_ptr<tensorflow::OpKernel>* kernel) {
  const bool is_on_cpu = device->device_type() == tensorflow::DEVICE_CPU;
  // oneDNN's kernel refuses some fused ops when it is made.
  if (is_on_cpu && (tensorflow::IsMKLEnabled() || IsOfOneDnnAlone(node.op())) &&
      MakeOneDnnKernel(device, graph_def_version, has_constant_filter, node, kernel).ok()) {
    return absl::OkStatus();
  }
  const absl::Status status = MakeKernel(device, graph_def_version, node, kernel);
  // A fused op whose activation or shortcut the other kernel lacks. Other ops keep their errors.
  if (!status.ok() && is_on_cpu && absl::StartsWith(node.op(), "_Fused") &&
      MakeOneDnnKernel(device, graph_def_version, has_constant_filter, node, kernel).ok()) {
    return absl::OkStatus();
  }
  return status;
}

absl::Status MakeOneDnnKernel(tensorflow::DeviceBase* device, int graph_def_version,
                              bool has_constant_filter, const NodeDef& node,
                              std::unique_ptr<tensorflow::OpKernel>* kernel) {
  NodeDef renamed = node;
  RenameForOneDnn(has_constant_filter, &renamed);
  if (renamed.op() == node.op()) {
    return absl::NotFoundError(absl::StrCat("oneDNN has no kernel for ", node.op()));
  }
  return MakeKernel(device, graph_def_version, std::move(renamed), kernel);
}

tensorflow::OpKernelContext::Params StepParams(const tensorflow::OpKernelContext& context) {
  tensorflow::OpKernelContext::Params params = *context.params();
  params.forward_from_array = nullptr;
  params.outputs_required_array = nullptr;
  params.eigen_gpu_device = nullptr;  // owned by `context`
  params.track_allocations = false;   // the tracker reads the allocations of `context`
  return params;
}

std::string ShortDeviceName(const tensorflow::OpKernelConstruction* context) {
  const std::string& name = context->device()->name();
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (!tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) || !parsed.has_type) return name;
  return absl::StrCat(parsed.type, ":", parsed.id);
}

}  // namespace tf_interop
