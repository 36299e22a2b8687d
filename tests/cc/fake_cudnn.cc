// Entry points of both stand-ins are to be found by name, whatever the build's default is.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cudnn.h"

#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop {
namespace {

thread_local std::string last_error;

cudnnStatus_t Fail(cudnnStatus_t status, const std::string& why) {
  return FakeCudnnFail(status, why);
}

struct Node;
using NodePtr = std::shared_ptr<Node>;

struct Attribute {
  cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
  std::vector<char> bytes;
  std::vector<NodePtr> nodes;
};

// What a descriptor holds. Setting a descriptor as an attribute shares what it held when it was
// finalized, so that destroying it later changes nothing.
struct Node {
  cudnnBackendDescriptorType_t type;
  bool is_final = false;
  std::map<int, Attribute> attributes;
  mutable std::atomic<bool> in_use{false};

  explicit Node(cudnnBackendDescriptorType_t type) : type(type) {}

  bool Has(int name) const { return attributes.count(name) != 0; }

  template <typename T>
  std::vector<T> All(int name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(values.data()), found->second.bytes.data(),
                found->second.bytes.size());
    return values;
  }

  template <typename T>
  T One(int name, T otherwise = T()) const {
    const auto found = attributes.find(name);
    if (found == attributes.end() || found->second.bytes.size() < sizeof(T)) return otherwise;
    T value;
    std::memcpy(static_cast<void*>(&value), found->second.bytes.data(), sizeof(T));
    return value;
  }

  NodePtr Sub(int name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() || found->second.nodes.empty() ? nullptr
                                                                    : found->second.nodes[0];
  }

  template <typename T>
  void Put(int name, cudnnBackendAttributeType_t type, const T& value) {
    Attribute attribute;
    attribute.type = type;
    attribute.bytes.resize(sizeof(T));
    std::memcpy(attribute.bytes.data(), &value, sizeof(T));
    attributes[name] = std::move(attribute);
  }

  void PutNodes(int name, std::vector<NodePtr> nodes) {
    Attribute attribute;
    attribute.type = CUDNN_TYPE_BACKEND_DESCRIPTOR;
    attribute.nodes = std::move(nodes);
    attributes[name] = std::move(attribute);
  }
};

struct Descriptor {
  NodePtr node;
};

// What the documentation says of an attribute.
struct Rule {
  cudnnBackendDescriptorType_t owner;
  std::vector<cudnnBackendAttributeType_t> types;
  int64_t fewest, most;
  bool is_required;
};

const std::map<int, Rule>& Rules() {
  static const auto* rules = [] {
    auto* all = new std::map<int, Rule>();
    const auto add = [all](int name, cudnnBackendDescriptorType_t owner,
                           std::vector<cudnnBackendAttributeType_t> types, int64_t fewest,
                           int64_t most, bool required) {
      (*all)[name] = {owner, std::move(types), fewest, most, required};
    };
    const auto tensor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
    add(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_DATA_TYPE, tensor, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor, {CUDNN_TYPE_INT64}, 1, 8, true);
    add(CUDNN_ATTR_TENSOR_STRIDES, tensor, {CUDNN_TYPE_INT64}, 1, 8, true);
    add(CUDNN_ATTR_TENSOR_IS_VIRTUAL, tensor, {CUDNN_TYPE_BOOLEAN}, 1, 1, false);
    const auto convolution = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR;
    add(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, convolution, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_CONVOLUTION_CONV_MODE, convolution, {CUDNN_TYPE_CONVOLUTION_MODE}, 1, 1, true);
    add(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, convolution, {CUDNN_TYPE_INT64}, 1, 1, true);
    for (const int name :
         {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
          CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS}) {
      add(name, convolution, {CUDNN_TYPE_INT64}, 1, 8, true);
    }
    const auto pointwise = CUDNN_BACKEND_POINTWISE_DESCRIPTOR;
    add(CUDNN_ATTR_POINTWISE_MODE, pointwise, {CUDNN_TYPE_POINTWISE_MODE}, 1, 1, true);
    add(CUDNN_ATTR_POINTWISE_MATH_PREC, pointwise, {CUDNN_TYPE_DATA_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, pointwise, {CUDNN_TYPE_NAN_PROPOGATION}, 1, 1, false);
    for (const int name :
         {CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP,
          CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_ATTR_POINTWISE_ELU_ALPHA}) {
      add(name, pointwise, {CUDNN_TYPE_DOUBLE, CUDNN_TYPE_FLOAT}, 1, 1, false);
    }
    const auto add_operation = [&](cudnnBackendDescriptorType_t owner, std::vector<int> tensors,
                                   int applied, std::vector<int> scales) {
      for (const int name : tensors) add(name, owner, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
      add(applied, owner, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
      for (const int name : scales) {
        add(name, owner, {CUDNN_TYPE_FLOAT, CUDNN_TYPE_DOUBLE}, 1, 1, true);
      }
    };
    add_operation(
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA});
    add_operation(
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA});
    add_operation(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                  {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                  {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA});
    add_operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                  {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
                  CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {});
    add(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
        {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, false);
    const auto graph = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR;
    add(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, graph, {CUDNN_TYPE_HANDLE}, 1, 1, true);
    add(CUDNN_ATTR_OPERATIONGRAPH_OPS, graph, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 32, true);
    add(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, graph, {CUDNN_TYPE_INT64}, 0, 0, false);
    const auto engine = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINE_SM_COUNT_TARGET, engine, {CUDNN_TYPE_INT32}, 1, 1, false);
    add(CUDNN_ATTR_ENGINE_KNOB_INFO, engine, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 0, 0, false);
    const auto knob = CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR;
    add(CUDNN_ATTR_KNOB_INFO_TYPE, knob, {CUDNN_TYPE_KNOB_TYPE}, 0, 0, false);
    for (const int name : {CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE,
                           CUDNN_ATTR_KNOB_INFO_STRIDE}) {
      add(name, knob, {CUDNN_TYPE_INT64}, 0, 0, false);
    }
    add(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, engine, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
    add(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, engine, {CUDNN_TYPE_INT64}, 1, 1, true);
    add(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, engine, {CUDNN_TYPE_NUMERICAL_NOTE}, 0, 64, false);
    const auto config = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINECFG_ENGINE, config, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1, true);
    add(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, config, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 64, false);
    const auto choice = CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR;
    add(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, choice, {CUDNN_TYPE_KNOB_TYPE}, 1, 1, true);
    add(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, choice, {CUDNN_TYPE_INT64}, 1, 1, true);
    const auto heuristic = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR;
    add(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, heuristic, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1,
        true);
    add(CUDNN_ATTR_ENGINEHEUR_MODE, heuristic, {CUDNN_TYPE_HEUR_MODE}, 1, 1, true);
    add(CUDNN_ATTR_ENGINEHEUR_RESULTS, heuristic, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 0, 0, false);
    const auto plan = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    add(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, plan, {CUDNN_TYPE_HANDLE}, 1, 1, true);
    add(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan, {CUDNN_TYPE_BACKEND_DESCRIPTOR}, 1, 1,
        false);
    add(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, plan, {CUDNN_TYPE_CHAR}, 1, 1 << 20, false);
    add(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, plan, {CUDNN_TYPE_INT64}, 0, 0, false);
    const auto pack = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
    add(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, pack, {CUDNN_TYPE_INT64}, 1, 64, true);
    add(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pack, {CUDNN_TYPE_VOID_PTR}, 1, 64, true);
    add(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, pack, {CUDNN_TYPE_VOID_PTR}, 1, 1, true);
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

struct Tensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  size_t rank = 0;
  Five extents = {}, strides = {};
  bool is_virtual = false;
  int64_t alignment = 1;

  explicit Tensor(const Node& node)
      : id(node.One<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        is_virtual(node.One<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        alignment(node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {
    const auto dimensions = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    const auto steps = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    rank = dimensions.size();
    extents = WithDepth(dimensions, 1);
    strides = WithDepth(steps, 1);
  }

  int64_t Elements() const {
    return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
  }
};

// The memory of a graph's tensors while it is computed.
class Memory {
 public:
  void Bind(int64_t id, void* data) { data_[id] = data; }

  void* Of(const Tensor& tensor) {
    if (!tensor.is_virtual) return data_.at(tensor.id);
    // All bits set: a NaN in every type.
    std::vector<unsigned char>& bytes = virtual_[tensor.id];
    bytes.resize(tensor.Elements() * SizeOfType(tensor.type), 0xFF);
    return bytes.data();
  }

 private:
  std::map<int64_t, void*> data_;
  std::map<int64_t, std::vector<unsigned char>> virtual_;
};

struct ConvolutionNames {
  int applied, image, filter, output;
};

bool NamesOf(cudnnBackendDescriptorType_t type, ConvolutionNames* names) {
  switch (type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
      return true;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      *names = {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
      return true;
    default:
      return false;
  }
}

struct Spatial {
  std::vector<int64_t> strides, dilations, before, after;

  explicit Spatial(const Node& convolution)
      : strides(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)),
        dilations(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS)),
        before(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)),
        after(convolution.All<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)) {}

  Spacing ToSpacing() const {
    return {WithSpatialDepth(strides, 1), WithSpatialDepth(dilations, 1),
            WithSpatialDepth(before, 0)};
  }
};

Computed ComputedBy(cudnnBackendDescriptorType_t operation) {
  switch (operation) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return Computed::kOutput;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return Computed::kImage;
    default:
      return Computed::kFilter;
  }
}

void RunConvolution(const Node& operation, Memory* memory) {
  ConvolutionNames names = {};
  NamesOf(operation.type, &names);
  const auto strided = [&](int name) {
    const Tensor tensor(*operation.Sub(name));
    return StridedTensor{tensor.type, tensor.extents, tensor.strides, memory->Of(tensor)};
  };
  const Spatial spatial(*operation.Sub(names.applied));
  ComputeConvolution(strided(names.image), strided(names.filter), strided(names.output),
                     spatial.ToSpacing(), ComputedBy(operation.type));
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

void RunGraph(const Node& graph, Memory* memory) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    if (operation->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
      RunPointwise(*operation, memory);
    } else {
      RunConvolution(*operation, memory);
    }
  }
}

// The tensors of a graph, by id; each with every operation that names it agreeing on it.
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

cudnnStatus_t FinalizeTensor(const Node& node) {
  const auto extents = node.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = node.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if ((extents.size() != 4 && extents.size() != 5) || strides.size() != extents.size()) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "tensor without four or five dimensions");
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] <= 0 || strides[i] <= 0) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "extent or stride that is not positive");
    }
  }
  const auto type = node.One<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  if (node.One<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) % SizeOfType(type) != 0) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "alignment that the type does not divide");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConvolution(const Node& node) {
  const Spatial spatial(node);
  const auto dims = static_cast<size_t>(node.One<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
  if ((dims != 2 && dims != 3) || spatial.strides.size() != dims ||
      spatial.dilations.size() != dims || spatial.before.size() != dims ||
      spatial.after.size() != dims) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "counts differ from the spatial dimensions");
  }
  return CUDNN_STATUS_SUCCESS;
}

// Sums of double are double, all others float; scaling factors have the type of the sums.
cudnnStatus_t CheckTypes(const Node& operation, const ConvolutionNames& names,
                         cudnnDataType_t image, cudnnDataType_t filter) {
  const Node& convolution = *operation.Sub(names.applied);
  const cudnnDataType_t type = ComputeTypeOf(image);
  if (convolution.One<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != type ||
      ComputeTypeOf(filter) != type) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types of operands and sums");
  }
  const auto scaling = type == CUDNN_DATA_DOUBLE ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  for (const auto& [name, attribute] : operation.attributes) {
    const bool is_number =
        attribute.type == CUDNN_TYPE_FLOAT || attribute.type == CUDNN_TYPE_DOUBLE;
    if (is_number && attribute.type != scaling) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "type of a scaling factor");
    }
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
      return Fail(CUDNN_STATUS_BAD_PARAM, "rank differs from the spatial dimensions");
    }
  }
  const cudnnStatus_t scaled = CheckTypes(node, names, image.type, filter.type);
  if (scaled != CUDNN_STATUS_SUCCESS) return scaled;
  const bool channels_fit = image.extents[1] % filter.extents[1] == 0 &&
                            filter.extents[0] % (image.extents[1] / filter.extents[1]) == 0 &&
                            output.extents[1] == filter.extents[0] &&
                            output.extents[0] == image.extents[0];
  if (!channels_fit) return Fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels do not fit");
  const Spacing spacing = spatial.ToSpacing();
  const auto pads_after = WithSpatialDepth(spatial.after, 0);
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = (filter.extents[2 + i] - 1) * spacing.dilations[i] + 1;
    const int64_t padded = image.extents[2 + i] + spacing.pads_before[i] + pads_after[i];
    const int64_t fitting = (padded - reach) / spacing.strides[i] + 1;
    if (output.extents[2 + i] != fitting) {
      return Fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "output size does not follow");
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePointwiseOperation(const Node& node) {
  const auto mode = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                        ->One<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  const bool wants_second = mode == CUDNN_POINTWISE_ADD;
  if (wants_second != (node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr)) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "wrong number of operands");
  }
  const Tensor from(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  const Tensor to(*node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  if (from.extents != to.extents || from.rank != to.rank) {
    return Fail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "operands differ in shape");
  }
  const auto precision = node.Sub(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                             ->One<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
  if (precision != ComputeTypeOf(to.type)) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "precision of a pointwise operation");
  }
  return CUDNN_STATUS_SUCCESS;
}

const NodePtr* ConvolutionOf(const Node& graph) {
  for (const NodePtr& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes) {
    ConvolutionNames names = {};
    if (NamesOf(operation->type, &names)) return &operation;
  }
  return nullptr;
}

constexpr int64_t kEngineCount = 6;

cudnnStatus_t FinalizeGraph(Node* graph) {
  const Node& node = *graph;
  const auto& operations = node.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes;
  const bool convolves = ConvolutionOf(node) != nullptr;
  if (FakeCudnn().no_fused_convolution && convolves && operations.size() > 1) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no fused convolutions");
  }
  if (FakeCudnn().no_pointwise_graph && !convolves) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no pointwise graphs");
  }
  const std::map<int64_t, Tensor> tensors = TensorsOf(node);
  const bool is_double = std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) {
    return entry.second.type == CUDNN_DATA_DOUBLE;
  });
  for (const auto& [id, tensor] : tensors) {
    const auto inside = is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
    if (tensor.is_virtual && tensor.type != inside) {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "rounding inside the graph");
    }
  }
  for (size_t i = 0; i + 1 < operations.size(); ++i) {
    bool hands_on = false;
    for (const auto& [name, attribute] : operations[i]->attributes) {
      for (const NodePtr& part : attribute.nodes) {
        hands_on |= part->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && Tensor(*part).is_virtual;
      }
    }
    if (!hands_on) return Fail(CUDNN_STATUS_BAD_PARAM, "operations that are not connected");
  }
  graph->Put(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, kEngineCount);
  return CUDNN_STATUS_SUCCESS;
}

struct Knob {
  int64_t type, by_itself, minimum, maximum, stride;
};

struct Engine {
  int64_t workspace_bytes;
  std::vector<Knob> knobs;
  std::vector<cudnnBackendNumericalNote_t> notes;
  bool takes_sm_count = false;

  std::map<int64_t, int64_t> OwnKnobs() const {
    std::map<int64_t, int64_t> values;
    for (const Knob& knob : knobs) values[knob.type] = knob.by_itself;
    return values;
  }
};

const Engine& EngineAt(int64_t index) {
  static const auto* engines = new std::array<Engine, kEngineCount>{
      Engine{0, {}, {}}, Engine{4096, {{CUDNN_KNOB_TYPE_TILE_SIZE, 5, 0, 9, 1}}, {}, true},
      Engine{1024, {}, {}},
      Engine{1 << 20,
             {{CUDNN_KNOB_TYPE_TILE_SIZE, 7, 0, 1000, 1}, {CUDNN_KNOB_TYPE_STAGES, 3, 1, 7, 2}},
             {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
             true},
      Engine{512, {}, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
      // For another GPU.
      Engine{0, {}, {}}};
  return (*engines)[index];
}

constexpr int64_t kForeignEngine = 5;

void PutKnobInfo(Node* engine, int64_t index) {
  std::vector<NodePtr> infos;
  for (const Knob& knob : EngineAt(index).knobs) {
    auto info = std::make_shared<Node>(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    info->Put(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE,
              static_cast<cudnnBackendKnobType_t>(knob.type));
    info->Put(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, knob.minimum);
    info->Put(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, knob.maximum);
    info->Put(CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, knob.stride);
    info->is_final = true;
    infos.push_back(info);
  }
  engine->PutNodes(CUDNN_ATTR_ENGINE_KNOB_INFO, infos);
}

void PutNotes(Node* engine, int64_t index) {
  std::vector<cudnnBackendNumericalNote_t> notes = EngineAt(index).notes;
  if (FakeCudnn().nondeterministic_engines.count(index) != 0) {
    notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  }
  Attribute attribute;
  attribute.type = CUDNN_TYPE_NUMERICAL_NOTE;
  attribute.bytes.resize(notes.size() * sizeof(notes[0]));
  std::memcpy(attribute.bytes.data(), notes.data(), attribute.bytes.size());
  engine->attributes[CUDNN_ATTR_ENGINE_NUMERICAL_NOTE] = std::move(attribute);
}

NodePtr MakeEngine(const NodePtr& graph, int64_t index) {
  auto engine = std::make_shared<Node>(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine->PutNodes(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, {graph});
  engine->Put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
  PutKnobInfo(engine.get(), index);
  PutNotes(engine.get(), index);
  engine->is_final = true;
  return engine;
}

NodePtr MakeChoice(int64_t type, int64_t value) {
  auto choice = std::make_shared<Node>(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  choice->Put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
              static_cast<cudnnBackendKnobType_t>(type));
  choice->Put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
  choice->is_final = true;
  return choice;
}

NodePtr MakeConfig(const NodePtr& engine, const std::map<int64_t, int64_t>& knobs) {
  auto config = std::make_shared<Node>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config->PutNodes(CUDNN_ATTR_ENGINECFG_ENGINE, {engine});
  std::vector<NodePtr> choices;
  for (const auto& [type, value] : knobs) choices.push_back(MakeChoice(type, value));
  config->PutNodes(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  config->is_final = true;
  return config;
}

cudnnStatus_t FinalizeEngine(Node* node) {
  const auto index = node->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().fail_engine_allocation) {
    return Fail(CUDNN_STATUS_ALLOC_FAILED, "no memory for the engine");
  }
  if (index < 0 || index >= kEngineCount) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "no such engine");
  }
  if (index == kForeignEngine) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "engine for another GPU");
  }
  // As cuDNN 9.3 does, without a word.
  const auto sm_count = node->One<int32_t>(CUDNN_ATTR_ENGINE_SM_COUNT_TARGET);
  if (sm_count != 0 && !EngineAt(index).takes_sm_count) return Fail(CUDNN_STATUS_BAD_PARAM, "");
  if (sm_count != 0 && FakeCudnn().replaced_sm_count != 0) {
    node->Put(CUDNN_ATTR_ENGINE_SM_COUNT_TARGET, CUDNN_TYPE_INT32, FakeCudnn().replaced_sm_count);
  }
  PutKnobInfo(node, index);
  PutNotes(node, index);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeHeuristic(Node* node) {
  const NodePtr graph = node->Sub(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const size_t most = FakeCudnn().no_proposals_from_operations;
  if (most != 0 && graph->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes.size() >= most) {
    return CUDNN_STATUS_SUCCESS;
  }
  std::vector<int64_t> indices;
  switch (node->One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE)) {
    case CUDNN_HEUR_MODE_B: {
      const NodePtr* convolution = ConvolutionOf(*graph);
      if (convolution == nullptr) return Fail(CUDNN_STATUS_NOT_SUPPORTED, "not a convolution");
      indices = {3, 1};
      break;
    }
    case CUDNN_HEUR_MODE_A:
      indices = {1, 2};
      break;
    default:
      indices = {0};
      break;
  }
  std::vector<NodePtr> configs;
  for (const int64_t index : indices) {
    configs.push_back(MakeConfig(MakeEngine(graph, index), EngineAt(index).OwnKnobs()));
  }
  node->PutNodes(CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
  return CUDNN_STATUS_SUCCESS;
}

// As cuDNN does: knobs that the engine does not know are dropped, others get their defaults.
NodePtr BuiltConfig(const Node& asked) {
  const NodePtr engine = asked.Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  auto knobs = EngineAt(engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)).OwnKnobs();
  const auto choices = asked.attributes.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  if (choices != asked.attributes.end()) {
    for (const NodePtr& choice : choices->second.nodes) {
      const auto type = static_cast<int64_t>(
          choice->One<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
      const auto known = knobs.find(type);
      if (known == knobs.end() || type == FakeCudnn().ignored_knob) continue;
      known->second = choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    }
  }
  return MakeConfig(engine, knobs);
}

bool IsNhwc(const Tensor& tensor) {
  const int64_t width = tensor.extents[4], pixels = tensor.extents[3] * width;
  const Five packed = {1, tensor.extents[2] * pixels, pixels, width, 1};
  for (size_t i = 1; i < packed.size(); ++i) {
    if (tensor.extents[i] > 1 && tensor.strides[i] != packed[i]) return true;
  }
  return false;
}

// What cuDNN knows before it compiles.
cudnnStatus_t FinalizeConfig(const Node& node) {
  const auto choices = node.attributes.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  if (choices == node.attributes.end()) return CUDNN_STATUS_SUCCESS;
  const auto index =
      node.Sub(CUDNN_ATTR_ENGINECFG_ENGINE)->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const NodePtr& choice : choices->second.nodes) {
    for (const Knob& knob : EngineAt(index).knobs) {
      const auto value = choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
      if (knob.type == choice->One<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) &&
          (value < knob.minimum || value > knob.maximum ||
           FakeCudnn().unsupported_knob_values.count(value) != 0)) {
        return Fail(CUDNN_STATUS_NOT_SUPPORTED, "value that the knob does not have");
      }
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

// A plan's text names its engine and knobs; its graph stays in this process, under a number.
// Thread-safe, as finalizing plans is.
class SerializedGraphs {
 public:
  static SerializedGraphs& Get() {
    static auto* graphs = new SerializedGraphs();
    return *graphs;
  }

  long Add(const NodePtr& graph) {
    std::lock_guard<std::mutex> lock(mutex_);
    graphs_.push_back(graph);
    return static_cast<long>(graphs_.size()) - 1;
  }

  // Null where there is none of that number.
  NodePtr Find(long number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_there = number >= 0 && number < static_cast<long>(graphs_.size());
    return is_there ? graphs_[number] : nullptr;
  }

 private:
  std::mutex mutex_;
  std::vector<NodePtr> graphs_;
};

void PutText(Node* plan, const NodePtr& graph, const Node& config) {
  if (FakeCudnn().no_serialization) return;
  const NodePtr engine = config.Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  std::string text =
      "{\"graph\": " + std::to_string(SerializedGraphs::Get().Add(graph)) +
      ", \"engine\": " + std::to_string(engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  for (const NodePtr& choice : config.attributes.at(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).nodes) {
    text += ", \"k" +
            std::to_string(choice->One<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)) +
            "\": " + std::to_string(choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  text += "}";
  Attribute attribute;
  attribute.type = CUDNN_TYPE_CHAR;
  attribute.bytes.assign(text.begin(), text.end());
  plan->attributes[CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION] = std::move(attribute);
}

// Reads what PutText wrote.
NodePtr ConfigOf(const std::string& text) {
  long number = -1, engine = -1;
  int end = 0;
  if (std::sscanf(text.c_str(), "{\"graph\": %ld, \"engine\": %ld%n", &number, &engine, &end) !=
          2 ||
      text.back() != '}' || engine < 0 || engine >= kEngineCount) {
    return nullptr;
  }
  const NodePtr graph = SerializedGraphs::Get().Find(number);
  if (graph == nullptr) return nullptr;
  std::map<int64_t, int64_t> knobs;
  long type = 0, value = 0;
  int read = 0;
  while (std::sscanf(text.c_str() + end, ", \"k%ld\": %ld%n", &type, &value, &read) == 2) {
    knobs[type] = value;
    end += read;
  }
  return MakeConfig(MakeEngine(graph, engine), knobs);
}

cudnnStatus_t LoadPlan(Node* node) {
  const auto bytes = node->All<char>(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
  if (FakeCudnn().fail_plan_allocation) {
    return Fail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for the plan");
  }
  if (FakeCudnn().refuses_serialized != CUDNN_STATUS_SUCCESS) {
    return Fail(FakeCudnn().refuses_serialized, "serialized elsewhere");
  }
  const NodePtr config = ConfigOf(std::string(bytes.begin(), bytes.end()));
  if (config == nullptr) return Fail(CUDNN_STATUS_BAD_PARAM, "text without a plan");
  const NodePtr engine = config->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  node->PutNodes(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {config});
  node->Put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
            EngineAt(engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)).workspace_bytes);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePlan(Node* node) {
  const bool has_config = node->Has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (has_config == node->Has(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "neither a configuration nor a text, or both");
  }
  if (!has_config) return LoadPlan(node);
  if (FakeCudnn().plan_delay_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(FakeCudnn().plan_delay_us));
  }
  if (FakeCudnn().fail_plan_allocation) {
    return Fail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "no memory for the plan");
  }
  const NodePtr asked = node->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const NodePtr engine = asked->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().unsupported_engines.count(index) != 0) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "engine switched off");
  }
  if (const NodePtr* convolution = ConvolutionOf(*graph)) {
    ConvolutionNames names = {};
    NamesOf((*convolution)->type, &names);
    const Spatial spatial(*(*convolution)->Sub(names.applied));
    if (FakeCudnn().no_asymmetric_padding && spatial.before != spatial.after) {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "paddings differ");
    }
    if (FakeCudnn().no_nhwc && IsNhwc(Tensor(*(*convolution)->Sub(names.image)))) {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "NHWC");
    }
    if (FakeCudnn().no_double &&
        Tensor(*(*convolution)->Sub(names.image)).type == CUDNN_DATA_DOUBLE) {
      return Fail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "double");
    }
  }
  const NodePtr built = BuiltConfig(*asked);
  node->PutNodes(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {built});
  PutText(node, graph, *built);
  node->Put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
            EngineAt(index).workspace_bytes);
  ++FakeCudnnCounts().plans_finalized;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePack(const Node& node) {
  if (node.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() !=
      node.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "ids and pointers differ in number");
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeByType(Node* node) {
  ConvolutionNames names = {};
  if (NamesOf(node->type, &names)) return FinalizeConvolutionOperation(*node, names);
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

// Whether nothing is enqueued, so that a benchmark times its caller's part.
bool ComputesNothing() {
  static const bool computes_nothing = std::getenv("TF_INTEROP_FAKE_CUDNN_NO_WORK") != nullptr;
  return computes_nothing;
}

cudnnStatus_t ExecutePlan(cudnnHandle_t handle, const NodePtr& plan, const Node& pack) {
  const NodePtr engine =
      plan->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().fail_execution || FakeCudnn().engines_failing_execution.count(index) != 0) {
    return Fail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
  }
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto memory = std::make_shared<Memory>();
  for (size_t i = 0; i < ids.size(); ++i) memory->Bind(ids[i], pointers[i]);
  for (const auto& [id, tensor] : TensorsOf(*graph)) {
    const auto found = std::find(ids.begin(), ids.end(), id);
    if (tensor.is_virtual != (found == ids.end())) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "tensor bound that is virtual, or the other way round");
    }
    if (tensor.is_virtual) continue;
    const void* pointer = pointers[found - ids.begin()];
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % tensor.alignment != 0) {
      return Fail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "misaligned pointer");
    }
  }
  const auto bytes = plan->One<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  void* const workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (bytes > 0 && workspace == nullptr) {
    return Fail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
  }
  FakeCudaEnqueue(handle->stream, [graph, memory, workspace, bytes] {
    // A real engine leaves anything here; a tensor that overlaps it comes out wrong.
    if (bytes > 0) std::memset(workspace, 0xA5, bytes);
    RunGraph(*graph, memory.get());
    if (bytes > 0) std::memset(workspace, 0x5A, bytes);
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

FakeCudnnSwitches& FakeCudnn() {
  static auto* switches = new FakeCudnnSwitches();
  return *switches;
}

FakeCudnnCounters& FakeCudnnCounts() {
  static auto* counters = new FakeCudnnCounters();
  return *counters;
}

cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle) {
  if (FakeCudaCurrentContext() != handle.context) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "another context is current");
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

// TF_INTEROP_FAKE_CUDNN_VERSION stands for the version of another cuDNN.
size_t CUDNNWINAPI cudnnGetVersion(void) {
  const char* version = std::getenv("TF_INTEROP_FAKE_CUDNN_VERSION");
  return version == nullptr ? CUDNN_VERSION : std::strtoul(version, nullptr, 10);
}

const char* CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_NOT_SUPPORTED_PADDING:
      return "CUDNN_STATUS_NOT_SUPPORTED_PADDING";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_OTHER";
  }
}

void CUDNNWINAPI cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", last_error.c_str());
}

cudnnStatus_t CUDNNWINAPI cudnnCreate(cudnnHandle_t* handle) {
  if (FakeCudaCurrentContext() == nullptr || FakeCudnn().fail_handle) {
    return Fail(CUDNN_STATUS_NOT_INITIALIZED, "no context");
  }
  *handle = new cudnnContext();
  (*handle)->context = FakeCudaCurrentContext();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  handle->stream = stream;
  return FakeCudnnCheckHandle(*handle);
}

cudnnStatus_t CUDNNWINAPI cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                                       cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Descriptor{std::make_shared<Node>(type)};
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  --FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                                   cudnnBackendAttributeName_t name,
                                                   cudnnBackendAttributeType_t type, int64_t count,
                                                   const void* values) {
  Node* node = static_cast<Descriptor*>(descriptor)->node.get();
  const auto rule = Rules().find(name);
  if (rule == Rules().end() || rule->second.owner != node->type) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "attribute of another descriptor");
  }
  if (node->is_final) return Fail(CUDNN_STATUS_BAD_PARAM, "set after finalize");
  const auto& types = rule->second.types;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return Fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong attribute type");
  }
  if (count < rule->second.fewest || count > rule->second.most || values == nullptr) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "wrong number of values");
  }
  Attribute attribute;
  attribute.type = type;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* descriptors = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (int64_t i = 0; i < count; ++i) {
      const NodePtr sub = static_cast<Descriptor*>(descriptors[i])->node;
      if (!sub->is_final) return Fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
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
    return Fail(CUDNN_STATUS_BAD_PARAM, "attribute that cannot be read");
  }
  const auto& types = rule->second.types;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return Fail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong attribute type");
  }
  if (name == CUDNN_ATTR_ENGINE_SM_COUNT_TARGET && FakeCudnn().no_sm_count_read_back) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "attribute that cannot be read");
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
        return Fail(CUDNN_STATUS_BAD_PARAM, "nothing to read the descriptor into");
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
  if (node->is_final) return Fail(CUDNN_STATUS_BAD_PARAM, "finalized twice");
  for (const auto& [name, rule] : Rules()) {
    if (rule.owner == node->type && rule.is_required && !node->Has(name)) {
      return Fail(CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(name) + " is missing");
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

cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle,
                                              cudnnBackendDescriptor_t plan_descriptor,
                                              cudnnBackendDescriptor_t pack_descriptor) {
  const NodePtr plan = static_cast<Descriptor*>(plan_descriptor)->node;
  const NodePtr pack = static_cast<Descriptor*>(pack_descriptor)->node;
  UseGuard handle_guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  UseGuard plan_guard(&plan->in_use, &FakeCudnnCounts().plan_races);
  if (!plan->is_final || !pack->is_final) {
    return Fail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
  }
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS || ComputesNothing()) return status;
  ++FakeCudnnCounts().executions;
  return ExecutePlan(handle, plan, *pack);
}

cudnnStatus_t CUDNNWINAPI cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  *descriptor = new cudnnTensorStruct();
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  delete descriptor;
  --FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor,
                                                     cudnnDataType_t type, int rank,
                                                     const int* extents, const int* strides) {
  if (rank != 4 && rank != 5) return Fail(CUDNN_STATUS_NOT_SUPPORTED, "rank of a tensor");
  if (*std::min_element(extents, extents + rank) <= 0 ||
      *std::min_element(strides, strides + rank) <= 0) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "extent or stride that is not positive");
  }
  const std::vector<int> sizes(extents, extents + rank), steps(strides, strides + rank);
  *descriptor = {type, rank, WithDepth(sizes, 1), WithDepth(steps, 1)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnTransformTensor(cudnnHandle_t handle, const void* alpha,
                                               const cudnnTensorDescriptor_t x_descriptor,
                                               const void* x, const void* beta,
                                               const cudnnTensorDescriptor_t y_descriptor,
                                               void* y) {
  UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (x_descriptor->type != y_descriptor->type || x_descriptor->extents != y_descriptor->extents) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "tensors differ in type or shape");
  }
  if (x_descriptor->rank != 4 || y_descriptor->rank != 4) {
    return Fail(CUDNN_STATUS_NOT_SUPPORTED, "copies are documented for four dimensions");
  }
  if (ReadScaling(x_descriptor->type, alpha) != 1 || ReadScaling(x_descriptor->type, beta) != 0) {
    return Fail(CUDNN_STATUS_BAD_PARAM, "scaled copy");
  }
  ++FakeCudnnCounts().copies;
  if (ComputesNothing()) return CUDNN_STATUS_SUCCESS;
  FakeCudaEnqueue(handle->stream, [from = *x_descriptor, to = *y_descriptor, x, y] {
    const auto size = static_cast<int64_t>(SizeOfType(from.type));
    ForEachPlace(from.extents, [&](const Five& place) {
      std::memcpy(static_cast<char*>(y) + size * At(to.strides, place),
                  static_cast<const char*>(x) + size * At(from.strides, place), size);
    });
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
