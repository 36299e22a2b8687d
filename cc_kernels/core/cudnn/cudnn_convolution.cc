#include "cc_kernels/core/cudnn/cudnn_convolution.h"

#include <cstdint>
#include <utility>

#include "cc_kernels/core/cudnn/cudnn_graph.h"

namespace tf_interop {
namespace {

// Where a convolution that reads its filter has it among its inputs.
int FilterInputOf(ConvolutionKind kind) { return kind == ConvolutionKind::kForward ? 1 : 0; }

int InputCount(const Convolution& convolution) { return convolution.has_bias ? 3 : 2; }

Status CheckAligned(const char* name, const void* pointer) {
  if (pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0) {
    return Status::Ok();
  }
  return InvalidArgument(std::string("Expected ") + name + " aligned to " +
                         std::to_string(kTensorAlignment) + " bytes, got address " +
                         std::to_string(reinterpret_cast<uintptr_t>(pointer)) + ".");
}

}  // namespace

CudnnConvolution::CudnnConvolution(const Convolution& convolution, CudnnProgram program)
    : convolution_(convolution), program_(std::move(program)) {}

bool CudnnConvolution::reduces_precision() const {
  return convolution_.dtype == DataType::kFloat &&
         program_.executables.front()->reduces_precision();
}

size_t CudnnConvolution::transformed_filter_bytes() const {
  return program_.filter_copy == nullptr
             ? 0
             : convolution_.filter_elements() * SizeOf(convolution_.dtype);
}

Status CudnnConvolution::Enqueue(const CudnnLaunch& launch) const {
  TF_INTEROP_RETURN_IF_ERROR(CheckPointers(launch));
  for (const auto& step : program_.steps) TF_INTEROP_RETURN_IF_ERROR(step->Enqueue(launch));
  return Status::Ok();
}

Status CudnnConvolution::EnqueueFilterTransform(cudnnHandle_t handle, const void* filter,
                                                void* transformed) const {
  if (program_.filter_copy == nullptr) {
    return InvalidArgument("Expected an algorithm that transforms its filter, got '" +
                           program_.algorithm + "' for " + ToString(convolution_) + ".");
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("filter", filter));
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("transformed filter", transformed));
  return program_.filter_copy->Enqueue(handle, filter, transformed);
}

bool CudnnConvolution::TakesTransformedFilter(const CudnnLaunch& launch) const {
  return program_.filter_copy != nullptr && launch.buffers.transformed_filter != nullptr;
}

Status CudnnConvolution::CheckPointers(const CudnnLaunch& launch) const {
  const bool takes_transformed = TakesTransformedFilter(launch);
  for (int i = 0; i < InputCount(convolution_); ++i) {
    const bool is_replaced = takes_transformed && i == FilterInputOf(convolution_.kind);
    TF_INTEROP_RETURN_IF_ERROR(
        is_replaced ? CheckAligned("transformed filter", launch.buffers.transformed_filter)
                    : CheckAligned("input", launch.buffers.inputs[i]));
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("result", launch.buffers.result));
  if (program_.workspace_bytes == 0) return Status::Ok();
  return CheckAligned("workspace", launch.workspace);
}

}  // namespace tf_interop
