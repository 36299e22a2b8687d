#include "tests/cc/fake_cudnn_descriptor.h"

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_attributes.h"
#include "tests/cc/fake_cudnn_compute.h"
#include "tests/cc/fake_cudnn_engine.h"
#include "tests/cc/fake_cudnn_graph.h"
#include "tests/cc/fake_cudnn_plan.h"

namespace tf_interop::fake_cudnn {
namespace {

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

}  // namespace
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
  const auto& types = rule->second.types;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "wrong attribute type");
  }
  if (count < rule->second.fewest || count > rule->second.most || values == nullptr) {
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
  const auto& types = rule->second.types;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
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
    if (rule.owner == node->type && rule.is_required && !node->Has(name)) {
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
