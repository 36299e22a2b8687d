#include "cc_kernels/core/cudnn/convolution.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/graph.h"

namespace tf_interop {
namespace {

Status CheckAligned(const char* name, const void* pointer) {
  if (pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0) {
    return Status::Ok();
  }
  return InvalidArgument(std::string("Expected ") + name + " aligned to " +
                         std::to_string(kTensorAlignment) + " bytes, got address " +
                         std::to_string(reinterpret_cast<uintptr_t>(pointer)) + ".");
}

// A place in the memory of a launch.
struct Place {
  // kFilter is the transformed filter that the launch supplies, or else a part of the workspace.
  enum class Base { kInput, kResult, kWorkspace, kFilter };
  Base base = Base::kResult;
  size_t offset = 0;  // bytes in the workspace, or the number of an input

  // cuDNN binds inputs and results alike as void*, but only reads the inputs.
  void* In(const CudnnLaunch& launch) const {
    const ConvolutionBuffers& buffers = launch.buffers;
    if (base == Base::kInput) return const_cast<void*>(buffers.inputs[offset]);
    if (base == Base::kResult) return buffers.result;
    if (base == Base::kFilter && buffers.transformed_filter != nullptr) {
      return const_cast<void*>(buffers.transformed_filter);
    }
    return static_cast<char*>(launch.workspace) + offset;
  }
};

using Bindings = std::vector<std::pair<TensorId, Place>>;

// Prepares one convolution in one formulation: puts the executables' tensors in their places, and
// adds the work around the executables.
//
// TensorFlow's filters are HWIO. cuDNN wants OHWI with NHWC images and OIHW with NCHW images. So a
// filter that is read is transposed into the workspace first, and one that is computed is
// transposed out of it last, unless the order of bytes is the same.
class Assembly {
 public:
  // For types other than float, `options` must allow TF32.
  Assembly(const CudnnLibrary& library, cudnnHandle_t handle, const Convolution& convolution,
           const Formulation& formulation, const PrepareOptions& options,
           bool wants_least_workspace)
      : library_(library),
        handle_(handle),
        original_(convolution),
        formulated_(FormulatedConvolution(convolution, formulation)),
        formulation_(formulation),
        options_(options),
        wants_least_workspace_(wants_least_workspace) {
    // In the order of ConvolutionBuffers.
    switch (convolution.kind) {
      case ConvolutionKind::kForward:
        image_ = {Place::Base::kInput, 0};
        filter_ = {Place::Base::kInput, 1};
        break;
      case ConvolutionKind::kBackwardInput:
        filter_ = {Place::Base::kInput, 0};
        output_ = {Place::Base::kInput, 1};
        break;
      case ConvolutionKind::kBackwardFilter:
        image_ = {Place::Base::kInput, 0};
        output_ = {Place::Base::kInput, 1};
        break;
    }
  }

  // `pinned` is null for cuDNN's own choice.
  Status Prepare(const AlgorithmTag* pinned, std::shared_ptr<const CudnnConvolution>* prepared) {
    TF_INTEROP_RETURN_IF_ERROR(PlaceFilter());
    TF_INTEROP_RETURN_IF_ERROR(Transpose(original_.image_channels, original_.image_pixels(),
                                         original_.kind == ConvolutionKind::kBackwardInput,
                                         &image_));
    TF_INTEROP_RETURN_IF_ERROR(Transpose(original_.output_channels, original_.output_pixels(),
                                         original_.kind == ConvolutionKind::kForward, &output_));
    const bool splits = formulation_.splits_epilogue;
    const Place convolved = splits ? Allocate(original_.output_elements()) : output_;
    if (used_bytes_ > options_.workspace_limit_bytes) {
      return Unsupported("Expected at most " + std::to_string(options_.workspace_limit_bytes) +
                         " bytes of workspace, got " + std::to_string(used_bytes_) +
                         " for copies of tensors alone.");
    }
    options_.workspace_limit_bytes -= used_bytes_;
    program_.workspace_bytes = used_bytes_;

    std::shared_ptr<const Executable> convolution, epilogue;
    TF_INTEROP_RETURN_IF_ERROR(PrepareExecutable(pinned, &convolution));
    Bindings bindings = {
        {kImageTensor, image_}, {kFilterTensor, filter_}, {kOutputTensor, convolved}};
    if (original_.has_bias && !splits) bindings.emplace_back(kBiasTensor, kBias);
    AddExecution(convolution, bindings);
    if (splits) {
      TF_INTEROP_RETURN_IF_ERROR(PrepareEpilogue(library_, handle_, formulated_, options_,
                                                 wants_least_workspace_, &epilogue));
      bindings = {{kConvolvedTensor, convolved}, {kOutputTensor, output_}};
      if (original_.has_bias) bindings.emplace_back(kBiasTensor, kBias);
      AddExecution(epilogue, bindings);
    }
    for (CudnnStep& step : after_) program_.steps.push_back(std::move(step));
    program_.algorithm = ToString(Algorithm{formulation_, convolution->tag()});
    program_.reduces_precision =
        original_.dtype == DataType::kFloat && convolution->reduces_precision();
    *prepared = std::make_shared<CudnnConvolution>(original_, std::move(program_));
    return Status::Ok();
  }

 private:
  static constexpr Place kBias = {Place::Base::kInput, 2};

  Status PrepareExecutable(const AlgorithmTag* pinned,
                           std::shared_ptr<const Executable>* executable) {
    const Convolution executed = ExecutedConvolution(original_, formulation_);
    if (pinned != nullptr && std::holds_alternative<LegacyTag>(*pinned)) {
      return MakeLegacyConvolution(library_, handle_, executed, std::get<LegacyTag>(*pinned),
                                   options_, executable);
    }
    auto graph =
        std::make_shared<const OperationGraph>(BuildConvolutionGraph(library_, handle_, executed));
    TF_INTEROP_RETURN_IF_ERROR(graph->graph.status());
    if (pinned != nullptr) {
      return PinPlan(graph, std::get<EngineTag>(*pinned), options_, executable);
    }
    return ChoosePlan(graph, HeuristicsFor(executed), options_, wants_least_workspace_, executable);
  }

  // Executables run one after another, so they share the workspace after the copies.
  void AddExecution(const std::shared_ptr<const Executable>& executable, const Bindings& bindings) {
    const size_t bytes = executable->workspace_bytes();
    program_.workspace_bytes = std::max(program_.workspace_bytes, used_bytes_ + bytes);
    const Place workspace = {Place::Base::kWorkspace, used_bytes_};
    program_.steps.emplace_back([=](const CudnnLaunch& launch) {
      TensorBindings bound = {};
      for (const auto& [id, place] : bindings) bound[id] = place.In(launch);
      return executable->Execute(launch.handle, bound, bytes == 0 ? nullptr : workspace.In(launch));
    });
  }

  // Copies between HWIO and cuDNN's layout. Both keep the filter's taps together, so the copy has
  // three dimensions. One side is then an ordinary NHWC tensor, and the other an NCHW one if
  // cuDNN's filter is OHWI.
  Status PlaceFilter() {
    const int64_t outputs = original_.output_channels;
    const int64_t inputs = original_.image_channels / original_.group_count;
    const int64_t taps = original_.taps();
    CopyShape shape;
    shape.extents = {1, outputs, taps, inputs};
    shape.source_strides = PackedTensor(Layout::kNHWC, 1, outputs, {taps, inputs}).strides;
    if (formulated_.layout == Layout::kNHWC) {
      shape.destination_strides = PackedTensor(Layout::kNCHW, 1, outputs, {taps, inputs}).strides;
    } else {
      shape.destination_strides = {outputs * taps * inputs, taps * inputs, 1, taps};
    }
    if (IsIdentity(shape)) return Status::Ok();

    const Place callers = filter_;
    filter_ = Allocate(original_.filter_elements());
    if (original_.kind == ConvolutionKind::kBackwardFilter) {
      return AddCopy(shape, callers, filter_, /*is_result=*/true);
    }
    filter_.base = Place::Base::kFilter;
    TF_INTEROP_RETURN_IF_ERROR(
        MakeStridedCopy(library_, original_.dtype, shape, &program_.filter_copy));
    program_.steps.emplace_back(
        [copy = program_.filter_copy, callers, to = filter_](const CudnnLaunch& launch) {
          if (launch.buffers.transformed_filter != nullptr) return Status::Ok();
          return copy(launch.handle, callers.In(launch), to.In(launch));
        });
    return Status::Ok();
  }

  // Moves a tensor from the caller's layout to the executable's if these differ.
  Status Transpose(int64_t channels, int64_t pixels, bool is_result, Place* place) {
    if (!formulation_.uses_nchw) return Status::Ok();
    const auto packed = [&](Layout layout) {
      return PackedTensor(layout, original_.batch, channels, {1, pixels});
    };
    const Place callers = *place;
    *place = Allocate(original_.batch * channels * pixels);
    return AddCopy({packed(original_.layout).extents, packed(original_.layout).strides,
                    packed(formulated_.layout).strides},
                   callers, *place, is_result);
  }

  // Adds a copy from the caller's tensor to the executable's, before the executables. A result is
  // copied in the opposite direction after them.
  Status AddCopy(CopyShape shape, Place callers, Place executables, bool is_result) {
    if (is_result) std::swap(shape.source_strides, shape.destination_strides);
    StridedCopy copy;
    TF_INTEROP_RETURN_IF_ERROR(MakeStridedCopy(library_, original_.dtype, shape, &copy));
    const Place from = is_result ? executables : callers, to = is_result ? callers : executables;
    (is_result ? after_ : program_.steps).emplace_back([=](const CudnnLaunch& launch) {
      return copy(launch.handle, from.In(launch), to.In(launch));
    });
    return Status::Ok();
  }

  // Aligns each piece of the workspace like cudaMalloc, which suits cuDNN's engines best.
  Place Allocate(int64_t elements) {
    const Place place = {Place::Base::kWorkspace, used_bytes_};
    used_bytes_ += (elements * SizeOf(original_.dtype) + 255) / 256 * 256;
    return place;
  }

  const CudnnLibrary& library_;
  const cudnnHandle_t handle_;
  const Convolution original_, formulated_;
  const Formulation formulation_;
  PrepareOptions options_;
  const bool wants_least_workspace_;
  Place image_, filter_, output_;  // of the executables' tensors
  CudnnProgram program_;
  std::vector<CudnnStep> after_;
  size_t used_bytes_ = 0;  // of the workspace, without the executables' own
};

// Parses an algorithm's name. If it names a formulation, keeps only that one.
Status ParsePin(const std::string& text, const Convolution& convolution, Algorithm* algorithm,
                std::vector<Formulation>* formulations) {
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(text, algorithm));
  const std::optional<Formulation>& named = algorithm->formulation;
  if (!named) return Status::Ok();
  if (std::find(formulations->begin(), formulations->end(), *named) == formulations->end()) {
    return Unsupported("Expected a formulation that fits " + ToString(convolution) + ", got '" +
                       ToString(*named) + "' in '" + text + "'. Profile this convolution again.");
  }
  *formulations = {*named};
  return Status::Ok();
}

}  // namespace

size_t CudnnConvolution::transformed_filter_bytes() const {
  return program_.filter_copy ? convolution_.filter_elements() * SizeOf(convolution_.dtype) : 0;
}

Status CudnnConvolution::Enqueue(const CudnnLaunch& launch) const {
  const ConvolutionBuffers& buffers = launch.buffers;
  const bool takes_transformed = program_.filter_copy && buffers.transformed_filter != nullptr;
  const int filter_input = convolution_.kind == ConvolutionKind::kForward ? 1 : 0;
  for (int i = 0; i < (convolution_.has_bias ? 3 : 2); ++i) {
    TF_INTEROP_RETURN_IF_ERROR(takes_transformed && i == filter_input
                                   ? CheckAligned("transformed filter", buffers.transformed_filter)
                                   : CheckAligned("input", buffers.inputs[i]));
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("result", buffers.result));
  if (program_.workspace_bytes > 0) {
    TF_INTEROP_RETURN_IF_ERROR(CheckAligned("workspace", launch.workspace));
  }
  for (const CudnnStep& step : program_.steps) TF_INTEROP_RETURN_IF_ERROR(step(launch));
  return Status::Ok();
}

Status CudnnConvolution::EnqueueFilterTransform(cudnnHandle_t handle, const void* filter,
                                                void* transformed) const {
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("filter", filter));
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("transformed filter", transformed));
  return program_.filter_copy(handle, filter, transformed);
}

Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               PrepareOptions options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  TF_INTEROP_RETURN_IF_ERROR(CheckPadding(convolution));
  Algorithm pinned;
  std::vector<Formulation> formulations = FormulationsOf(convolution);
  if (!algorithm.empty()) {
    TF_INTEROP_RETURN_IF_ERROR(ParsePin(algorithm, convolution, &pinned, &formulations));
  }
  options.allow_tf32 |= convolution.dtype != DataType::kFloat;
  const bool wants_least_workspace = algorithm.empty() && options.workspace_limit_bytes == 0;
  if (wants_least_workspace) {
    options.workspace_limit_bytes = std::numeric_limits<size_t>::max();
  }

  StatusCode code = StatusCode::kUnsupported;
  std::string reasons;
  for (const Formulation& formulation : formulations) {
    Assembly assembly(library, handle, convolution, formulation, options, wants_least_workspace);
    const Status status = assembly.Prepare(algorithm.empty() ? nullptr : &pinned.tag, prepared);
    if (status.ok()) return status;
    // A refusal that may pass must not look lasting.
    if (code == StatusCode::kUnsupported && !IsLasting(status)) code = status.code();
    reasons += " [" + ToString(formulation) + "] " + status.message();
  }
  return Status(
      code, "Expected cuDNN to have an engine for " + ToString(convolution) + ", got:" + reasons);
}

}  // namespace tf_interop
