#include "tests/cc/fake_cudnn_graph.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "tests/cc/fake_cudnn.h"

namespace tf_interop::fake_cudnn {

namespace {

constexpr ConvolutionNames kConvolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
     Computed::kOutput},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, Computed::kImage},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, Computed::kFilter}};

}  // namespace

const ConvolutionNames* NamesOf(cudnnBackendDescriptorType_t type) {
  for (const ConvolutionNames& names : kConvolutions) {
    if (names.type == type) return &names;
  }
  return nullptr;
}

std::map<int64_t, Tensor> TensorsOf(const Node& graph) {
  std::map<int64_t, Tensor> tensors;
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    for (const auto& [name, attribute] : operation->attributes) {
      for (const NodePtr& node : attribute.nodes) {
        if (node->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
          const Tensor tensor(*node);
          tensors.emplace(tensor.id, tensor);
        }
      }
    }
  }
  return tensors;
}

const NodePtr* ConvolutionOf(const Node& graph) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    if (NamesOf(operation->type) != nullptr) return &operation;
  }
  return nullptr;
}

namespace {

enum class Count { kReadOnly, kOptional, kOne, kAnySome, kSome };

// What the documentation says of an attribute. CUDNN_TYPE_FLOAT stands for float or double.
struct Rule {
  cudnnBackendDescriptorType_t owner;
  cudnnBackendAttributeType_t type;
  Count count;

  bool Takes(cudnnBackendAttributeType_t given) const {
    return given == type || (type == CUDNN_TYPE_FLOAT && given == CUDNN_TYPE_DOUBLE);
  }
  bool Takes(int64_t given) const {
    const int64_t most = count == Count::kReadOnly ? 0 : count < Count::kAnySome ? 1 : 64;
    return given >= 1 && given <= most;
  }
  bool is_required() const { return count == Count::kOne || count == Count::kSome; }
};

// By attribute.
const std::map<int, Rule>& Rules() {
  static const auto* rules = [] {
    auto* all = new std::map<int, Rule>();
    const auto add = [all](Count count, cudnnBackendAttributeType_t type,
                           cudnnBackendDescriptorType_t owner, std::initializer_list<int> names) {
      for (const int name : names) (*all)[name] = {owner, type, count};
    };
    const auto tensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_INT64, tensor,
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT});
    add(Count::kOne, CUDNN_TYPE_DATA_TYPE, tensor, {CUDNN_ATTR_TENSOR_DATA_TYPE});
    add(Count::kSome, CUDNN_TYPE_INT64, tensor,
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES});
    add(Count::kOptional, CUDNN_TYPE_BOOLEAN, tensor, {CUDNN_ATTR_TENSOR_IS_VIRTUAL});
    const auto convolution = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_DATA_TYPE, convolution, {CUDNN_ATTR_CONVOLUTION_COMP_TYPE});
    add(Count::kOne, CUDNN_TYPE_CONVOLUTION_MODE, convolution, {CUDNN_ATTR_CONVOLUTION_CONV_MODE});
    add(Count::kOne, CUDNN_TYPE_INT64, convolution, {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS});
    add(Count::kSome, CUDNN_TYPE_INT64, convolution,
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
         CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS});
    const auto pointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_POINTWISE_MODE, pointwise, {CUDNN_ATTR_POINTWISE_MODE});
    add(Count::kOne, CUDNN_TYPE_DATA_TYPE, pointwise, {CUDNN_ATTR_POINTWISE_MATH_PREC});
    add(Count::kOptional, CUDNN_TYPE_NAN_PROPOGATION, pointwise,
        {CUDNN_ATTR_POINTWISE_NAN_PROPAGATION});
    add(Count::kOptional, CUDNN_TYPE_FLOAT, pointwise,
        {CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
         CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_ATTR_POINTWISE_ELU_ALPHA});
    const auto descriptor = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    for (const ConvolutionNames& names : kConvolutions) {
      add(Count::kOne, descriptor, names.type,
          {names.applied, names.image, names.filter, names.output});
      add(Count::kOne, CUDNN_TYPE_FLOAT, names.type, {names.alpha, names.beta});
    }
    const auto operation = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR;
    add(Count::kOne, descriptor, operation,
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
         CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR});
    add(Count::kOptional, descriptor, operation, {CUDNN_ATTR_OPERATION_POINTWISE_BDESC});
    const auto graph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_HANDLE, graph, {CUDNN_ATTR_OPERATIONGRAPH_HANDLE});
    add(Count::kSome, descriptor, graph, {CUDNN_ATTR_OPERATIONGRAPH_OPS});
    add(Count::kReadOnly, CUDNN_TYPE_INT64, graph, {CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT});
    const auto engine = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    add(Count::kOne, descriptor, engine, {CUDNN_ATTR_ENGINE_OPERATION_GRAPH});
    add(Count::kOne, CUDNN_TYPE_INT64, engine, {CUDNN_ATTR_ENGINE_GLOBAL_INDEX});
    add(Count::kReadOnly, CUDNN_TYPE_NUMERICAL_NOTE, engine, {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE});
    add(Count::kReadOnly, descriptor, engine, {CUDNN_ATTR_ENGINE_KNOB_INFO});
    const auto knob = CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR;
    add(Count::kReadOnly, CUDNN_TYPE_KNOB_TYPE, knob, {CUDNN_ATTR_KNOB_INFO_TYPE});
    add(Count::kReadOnly, CUDNN_TYPE_INT64, knob,
        {CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
         CUDNN_ATTR_KNOB_INFO_STRIDE});
    const auto config = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    add(Count::kOne, descriptor, config, {CUDNN_ATTR_ENGINECFG_ENGINE});
    add(Count::kAnySome, descriptor, config, {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES});
    const auto choice = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_KNOB_TYPE, choice, {CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE});
    add(Count::kOne, CUDNN_TYPE_INT64, choice, {CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE});
    const auto heuristic = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
    add(Count::kOne, descriptor, heuristic, {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH});
    add(Count::kOne, CUDNN_TYPE_HEUR_MODE, heuristic, {CUDNN_ATTR_ENGINEHEUR_MODE});
    add(Count::kReadOnly, descriptor, heuristic, {CUDNN_ATTR_ENGINEHEUR_RESULTS});
    const auto plan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    add(Count::kOne, CUDNN_TYPE_HANDLE, plan, {CUDNN_ATTR_EXECUTION_PLAN_HANDLE});
    add(Count::kOne, descriptor, plan, {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG});
    add(Count::kReadOnly, CUDNN_TYPE_INT64, plan, {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE});
    const auto pack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
    add(Count::kSome, CUDNN_TYPE_INT64, pack, {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS});
    add(Count::kSome, CUDNN_TYPE_VOID_PTR, pack, {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS});
    add(Count::kOne, CUDNN_TYPE_VOID_PTR, pack, {CUDNN_ATTR_VARIANT_PACK_WORKSPACE});
    return all;
  }();
  return *rules;
}

size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
      return 8;
    default:
      return 4;
  }
}

// Sums of double are double, all others float; scaling factors have the type of the sums.
cudnnStatus_t CheckTypes(const Node& operation, const ConvolutionNames& names,
                         cudnnDataType_t image, cudnnDataType_t filter) {
  const Node& convolution = *operation.Sub(names.applied);
  const cudnnDataType_t type = ComputeTypeOf(image);
  if (convolution.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != type ||
      ComputeTypeOf(filter) != type) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types of operands and sums");
  }
  const auto scaling = type == CUDNN_DATA_DOUBLE ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  for (const auto& [name, attribute] : operation.attributes) {
    const bool is_number =
        attribute.type == CUDNN_TYPE_FLOAT || attribute.type == CUDNN_TYPE_DOUBLE;
    if (is_number && attribute.type != scaling) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "type of a scaling factor");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeTensor(const Node& node) {
  const auto extents = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if ((extents.size() != 4 && extents.size() != 5) || strides.size() != extents.size()) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "tensor without four or five dimensions");
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] <= 0 || strides[i] <= 0) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "extent or stride that is not positive");
    }
  }
  const auto type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) % SizeOfType(type) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "alignment that the type does not divide");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolution(const Node& node) {
  const Spatial spatial(node);
  const auto dims = static_cast<size_t>(node.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
  if ((dims != 2 && dims != 3) || spatial.strides.size() != dims ||
      spatial.dilations.size() != dims || spatial.before.size() != dims ||
      spatial.after.size() != dims) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "counts differ from the spatial dimensions");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolutionOperation(const Node& node, const ConvolutionNames& names) {
  const Tensor image(*node.Sub(names.image));
  const Tensor filter(*node.Sub(names.filter));
  const Tensor output(*node.Sub(names.output));
  const Spatial spatial(*node.Sub(names.applied));
  for (const Tensor* tensor : {&image, &filter, &output}) {
    if (tensor->rank != spatial.strides.size() + 2) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "rank differs from the spatial dimensions");
    }
  }
  const cudnnStatus_t scaled = CheckTypes(node, names, image.type, filter.type);
  if (scaled != CUDNN_STATUS_SUCCESS) return scaled;
  const bool channels_fit = image.extents[1] % filter.extents[1] == 0 &&
                            filter.extents[0] % (image.extents[1] / filter.extents[1]) == 0 &&
                            output.extents[1] == filter.extents[0] &&
                            output.extents[0] == image.extents[0];
  if (!channels_fit)
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels do not fit");
  const Spacing spacing = spatial.ToSpacing();
  const auto pads_after = WithSpatialDepth(spatial.after, 0);
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = (filter.extents[2 + i] - 1) * spacing.dilations[i] + 1;
    const int64_t padded = image.extents[2 + i] + spacing.pads_before[i] + pads_after[i];
    const int64_t fitting = (padded - reach) / spacing.strides[i] + 1;
    if (output.extents[2 + i] != fitting) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "output size does not follow");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePointwiseOperation(const Node& node) {
  const auto mode = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                        ->One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const bool wants_second = mode == CUDNN_POINTWISE_ADD;
  if (wants_second != (node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "wrong number of operands");
  }
  const Tensor from(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor to(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (from.extents != to.extents || from.rank != to.rank) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "operands differ in shape");
  }
  const auto precision = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                             ->One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
  if (precision != ComputeTypeOf(to.type)) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE,
                         "precision of a pointwise operation");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeGraph(Node* graph) {
  const Node& node = *graph;
  const auto& operations = node.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  const bool convolves = ConvolutionOf(node) != nullptr;
  if (FakeCudnn().no_fused_convolution && convolves && operations.size() > 1) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no fused convolutions");
  }
  if (FakeCudnn().no_pointwise_graph && !convolves) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no pointwise graphs");
  }
  const std::map<int64_t, Tensor> tensors = TensorsOf(node);
  const bool is_double = std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.second.type == CUDNN_DATA_DOUBLE;
  });
  for (const auto& [id, tensor] : tensors) {
    const auto inside = is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    if (tensor.is_virtual && tensor.type != inside) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "rounding inside the graph");
    }
  }
  for (size_t i = 0; i + 1 < operations.size(); ++i) {
    bool hands_on = false;
    for (const auto& [name, attribute] : operations[i]->attributes) {
      for (const NodePtr& part : attribute.nodes) {
        hands_on |= part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && Tensor(*part).is_virtual;
      }
    }
    if (!hands_on)
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "operations that are not connected");
  }
  graph->Put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, kEngineCount);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePack(const Node& node) {
  if (node.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() !=
      node.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "ids and pointers differ in number");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeByType(Node* node) {
  if (const ConvolutionNames* const names = NamesOf(node->type)) {
    return FinalizeConvolutionOperation(*node, *names);
  }
  switch (node->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      return FinalizeTensor(*node);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      return FinalizeConvolution(*node);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return FinalizePointwiseOperation(*node);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      return FinalizeGraph(node);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      return FinalizeEngine(node);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      return FinalizeConfig(*node);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      return FinalizeHeuristic(node);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      return FinalizePlan(node);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return FinalizePack(*node);
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

void RunConvolution(const Node& operation, Memory* memory) {
  const ConvolutionNames& names = *NamesOf(operation.type);
  const auto strided = [&](int name) {
    const Tensor tensor(*operation.Sub(name));
    return StridedTensor{tensor.type, tensor.extents, tensor.strides, memory->Of(tensor)};
  };
  const Spatial spatial(*operation.Sub(names.applied));
  ComputeConvolution(strided(names.image), strided(names.filter), strided(names.output),
                     spatial.ToSpacing(), names.computed);
}

double Scalar(const Node& node, int name, double otherwise) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return otherwise;
  return found->second.type == CUDNN_TYPE_FLOAT ? node.One<float>(name) : node.One<double>(name);
}

double Activate(const Node& pointwise, double x) {
  if (pointwise.One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE) == CUDNN_POINTWISE_ELU_FWD) {
    return x < 0 ? Scalar(pointwise, CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1.0) * std::expm1(x) : x;
  }
  const double lower = Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0.0);
  const double upper =
      Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, std::numeric_limits<double>::max());
  const double slope = Scalar(pointwise, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0.0);
  if (x > upper) return upper;
  return x < lower ? lower + slope * (x - lower) : x;
}

void RunPointwise(const Node& operation, Memory* memory) {
  const Node& pointwise = *operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const Tensor from(*operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor to(*operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  const NodePtr second_node = operation.Sub(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  void* const x = memory->Of(from);
  void* const y = memory->Of(to);
  ForEachPlace(to.extents, [&](const Five& place) {
    double value = Load(from.type, x, At(from.strides, place));
    if (second_node) {
      const Tensor second(*second_node);
      Five broadcast = place;
      for (size_t i = 0; i < place.size(); ++i) {
        if (second.extents[i] == 1) broadcast[i] = 0;
      }
      value += Load(second.type, memory->Of(second), At(second.strides, broadcast));
    } else {
      value = Activate(pointwise, value);
    }
    Store(to.type, y, At(to.strides, place), value);
  });
}

}  // namespace

void RunGraph(const Node& graph, Memory* memory) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      RunPointwise(*operation, memory);
    } else {
      RunConvolution(*operation, memory);
    }
  }
}

}  // namespace tf_interop::fake_cudnn

using namespace tf_interop;              // NOLINT: the C interface of the functions above
using namespace tf_interop::fake_cudnn;  // NOLINT

#pragma GCC visibility push(default)
extern "C" {

cudnnStatus_t CUDNNWINAPI cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{std::make_shared<Node>(type)};
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  FakeCudnnCountDestroyed();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count,
                                                   const void* values) {
  Node* node = static_cast<Descriptor*>(descriptor)->node.get();
  const auto rule = Rules().find(name);
  if (rule == Rules().end() || rule->second.owner != node->type) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "attribute of another descriptor");
  }
  if (node->is_final) return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "set after finalize");
  if (!rule->second.Takes(type)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong attribute type");
  }
  if (!rule->second.Takes(count) || values == nullptr) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "wrong number of values");
  }
  Attribute attribute;
  attribute.type = type;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* descriptors = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < count; ++i) {
      const NodePtr sub = static_cast<Descriptor*>(descriptors[i])->node;
      if (!sub->is_final)
        return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
      attribute.nodes.push_back(sub);
    }
  } else {
    const auto* bytes = static_cast<const char*>(values);
    attribute.bytes.assign(bytes, bytes + count * BytesOf(type));
  }
  node->attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t asked,
                                                   int64_t* count, void* values) {
  const Node& node = *static_cast<const Descriptor*>(descriptor)->node;
  const auto rule = Rules().find(name);
  if (rule == Rules().end() || rule->second.owner != node.type || !node.is_final) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "attribute that cannot be read");
  }
  if (!rule->second.Takes(type)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong attribute type");
  }
  const auto found = node.attributes.find(name);
  const Attribute nothing;
  const Attribute& attribute = found == node.attributes.end() ? nothing : found->second;
  const bool holds_nodes = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const auto there = static_cast<int64_t>(holds_nodes ? attribute.nodes.size()
                                                      : attribute.bytes.size() / BytesOf(type));
  if (count != nullptr) *count = there;
  if (values == nullptr || there == 0) return CUDNN_STATUS_SUCCESS;
  const int64_t copied = std::min(asked, there);
  if (holds_nodes) {
    auto* descriptors = static_cast<cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < copied; ++i) {
      auto* target = static_cast<Descriptor*>(descriptors[i]);
      if (target == nullptr || target->node->type != attribute.nodes[i]->type ||
          target->node->is_final) {
        return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "nothing to read the descriptor into");
      }
      target->node = attribute.nodes[i];
    }
  } else {
    std::memcpy(values, attribute.bytes.data(), copied * BytesOf(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Node* node = static_cast<Descriptor*>(descriptor)->node.get();
  if (node->is_final) return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "finalized twice");
  for (const auto& [name, rule] : Rules()) {
    if (rule.owner == node->type && rule.is_required() && !node->Has(name)) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM,
                           "attribute " + std::to_string(name) + " is missing");
    }
  }
  for (const int name : {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE}) {
    if (!node->Has(name)) continue;
    auto* handle = node->One<cudnnHandle_t>(name);
    UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
    const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  }
  const cudnnStatus_t status = FinalizeByType(node);
  node->is_final = status == CUDNN_STATUS_SUCCESS;
  return status;
}

}  // extern "C"

#pragma GCC visibility pop
