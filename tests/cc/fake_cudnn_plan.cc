#include "tests/cc/fake_cudnn_plan.h"

#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_compute.h"
#include "tests/cc/fake_cudnn_engine.h"
#include "tests/cc/fake_cudnn_graph.h"
#include "tests/cc/fake_cudnn_run_graph.h"

namespace tf_interop::fake_cudnn {
namespace {

bool IsNhwc(const Tensor& tensor) {
  const int64_t width = tensor.extents[4], pixels = tensor.extents[3] * width;
  const Five packed = {1, tensor.extents[2] * pixels, pixels, width, 1};
  for (size_t i = 1; i < packed.size(); ++i) {
    if (tensor.extents[i] > 1 && tensor.strides[i] != packed[i]) return true;
  }
  return false;
}

cudnnStatus_t ExecutePlan(cudnnHandle_t handle, const NodePtr& plan, const Node& pack) {
  const NodePtr engine =
      plan->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().fail_execution || FakeCudnn().engines_failing_execution.count(index) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
  }
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto memory = std::make_shared<Memory>();
  for (size_t i = 0; i < ids.size(); ++i) memory->Bind(ids[i], pointers[i]);
  for (const auto& [id, tensor] : TensorsOf(*graph)) {
    const auto found = std::find(ids.begin(), ids.end(), id);
    if (tensor.is_virtual != (found == ids.end())) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM,
                           "tensor bound that is virtual, or the other way round");
    }
    if (tensor.is_virtual) continue;
    const void* pointer = pointers[found - ids.begin()];
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % tensor.alignment != 0) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "misaligned pointer");
    }
  }
  const auto bytes = plan->One<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  void* const workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (bytes > 0 && workspace == nullptr) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
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

cudnnStatus_t FinalizePlan(Node* node) {
  if (FakeCudnn().plan_delay_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(FakeCudnn().plan_delay_us));
  }
  if (FakeCudnn().fail_plan_allocation) {
    return FakeCudnnFail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
                         "no memory for the plan");
  }
  const NodePtr asked = node->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const NodePtr engine = asked->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().unsupported_engines.count(index) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "engine switched off");
  }
  if (const NodePtr* convolution = ConvolutionOf(*graph)) {
    ConvolutionNames names = {};
    NamesOf((*convolution)->type, &names);
    const Spatial spatial(*(*convolution)->Sub(names.applied));
    if (FakeCudnn().no_asymmetric_padding && spatial.before != spatial.after) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "paddings differ");
    }
    if (FakeCudnn().no_nhwc && IsNhwc(Tensor(*(*convolution)->Sub(names.image)))) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "NHWC");
    }
    if (FakeCudnn().no_double &&
        Tensor(*(*convolution)->Sub(names.image)).type == CUDNN_DATA_DOUBLE) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "double");
    }
  }
  const NodePtr built = BuiltConfig(*asked);
  node->PutNodes(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {built});
  node->Put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
            EngineAt(index).workspace_bytes);
  ++FakeCudnnCounts().plans_finalized;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePack(const Node& node) {
  if (node.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() !=
      node.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "ids and pointers differ in number");
  }
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tf_interop::fake_cudnn

using namespace tf_interop;              // NOLINT: the C interface of the functions above
using namespace tf_interop::fake_cudnn;  // NOLINT

#pragma GCC visibility push(default)
extern "C" {

cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle,
                                              cudnnBackendDescriptor_t plan_descriptor,
                                              cudnnBackendDescriptor_t pack_descriptor) {
  const NodePtr plan = static_cast<Descriptor*>(plan_descriptor)->node;
  const NodePtr pack = static_cast<Descriptor*>(pack_descriptor)->node;
  UseGuard handle_guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  UseGuard plan_guard(&plan->in_use, &FakeCudnnCounts().plan_races);
  if (!plan->is_final || !pack->is_final) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
  }
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS || FakeCudnnComputesNothing()) return status;
  ++FakeCudnnCounts().executions;
  return ExecutePlan(handle, plan, *pack);
}

}  // extern "C"

#pragma GCC visibility pop
