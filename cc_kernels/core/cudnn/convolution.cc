#include "cc_kernels/core/cudnn/convolution.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/legacy_convolution.h"

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

// A place in the memory of a launch.
struct Place {
  // kFilter: the transformed filter that the launch was given, or else the workspace.
  enum class Base { kInput, kResult, kWorkspace, kFilter };
  Base base = Base::kResult;
  int input = 0;
  size_t offset_bytes = 0;

  static Place Input(int index) { return {Base::kInput, index, 0}; }

  // cuDNN binds inputs and results alike as void*; inputs are only read.
  void* In(const CudnnLaunch& launch) const {
    const ConvolutionBuffers& buffers = launch.buffers;
    if (base == Base::kInput) return const_cast<void*>(buffers.inputs[input]);
    if (base == Base::kResult) return buffers.result;
    if (base == Base::kFilter && buffers.transformed_filter != nullptr) {
      return const_cast<void*>(buffers.transformed_filter);
    }
    return static_cast<char*>(launch.workspace) + offset_bytes;
  }
};

// Where the convolution's tensors are for the caller, in the order of ConvolutionBuffers.
struct TensorPlaces {
  Place image, filter, bias, output;
};

TensorPlaces PlacesOf(ConvolutionKind kind) {
  switch (kind) {
    case ConvolutionKind::kForward:
      return {Place::Input(0), Place::Input(1), Place::Input(2), Place()};
    case ConvolutionKind::kBackwardInput:
      return {Place(), Place::Input(0), Place::Input(2), Place::Input(1)};
    case ConvolutionKind::kBackwardFilter:
      break;
  }
  return {Place::Input(0), Place(), Place::Input(2), Place::Input(1)};
}

using Bindings = std::vector<std::pair<int64_t, Place>>;

// Puts the launch of one convolution in one formulation together: where the executables get and
// leave their tensors, and what has to be done around them.
//
// TensorFlow's filters are HWIO; cuDNN wants OHWI beside NHWC images and OIHW beside NCHW ones. A
// filter that is read is therefore transposed into the workspace first, one that is computed is
// transposed out of it last, except where the order of bytes is the same.
class Assembly {
 public:
  Assembly(const CudnnLibrary& library, const Convolution& convolution,
           const Formulation& formulation)
      : library_(library),
        original_(convolution),
        computed_(FormulatedConvolution(convolution, formulation)),
        formulation_(formulation),
        places_(PlacesOf(convolution.kind)) {}

  // Finds a place for every tensor of the executables, and adds the steps before and after them.
  Status PlaceTensors() {
    TF_INTEROP_RETURN_IF_ERROR(PlaceFilter());
    TF_INTEROP_RETURN_IF_ERROR(Transpose(original_.image_channels, original_.image_pixels(),
                                         original_.kind == ConvolutionKind::kBackwardInput,
                                         &places_.image));
    TF_INTEROP_RETURN_IF_ERROR(Transpose(original_.output_channels, original_.output_pixels(),
                                         original_.kind == ConvolutionKind::kForward,
                                         &places_.output));
    convolved_ =
        formulation_.splits_epilogue ? Allocate(original_.output_elements()) : places_.output;
    return Status::Ok();
  }

  const Convolution& computed() const { return computed_; }
  // The workspace of everything but the executables.
  size_t copies_bytes() const { return used_bytes_; }

  // Puts the steps in order. `epilogue` is null unless the formulation splits it off.
  std::shared_ptr<const CudnnConvolution> Finish(
      const std::shared_ptr<const Executable>& convolution,
      const std::shared_ptr<const Executable>& epilogue) {
    program_.algorithm = ToString(Algorithm{formulation_, convolution->tag()});
    program_.reduces_precision =
        original_.dtype == DataType::kFloat && convolution->reduces_precision();
    program_.workspace_bytes = used_bytes_;
    Bindings convolved = {{kImageTensor, places_.image},
                          {kFilterTensor, places_.filter},
                          {kOutputTensor, convolved_}};
    Bindings finished = {{kConvolvedTensor, convolved_}, {kOutputTensor, places_.output}};
    if (original_.has_bias) {
      (epilogue ? finished : convolved).emplace_back(kBiasTensor, places_.bias);
    }
    AddExecution(convolution, convolved);
    if (epilogue) AddExecution(epilogue, finished);
    for (CudnnStep& step : after_) program_.steps.push_back(std::move(step));
    return std::make_shared<CudnnConvolution>(original_, std::move(program_));
  }

 private:
  // Executables run one after the other and share what comes after the copies.
  void AddExecution(const std::shared_ptr<const Executable>& executable, const Bindings& bindings) {
    const size_t bytes = executable->workspace_bytes();
    program_.workspace_bytes = std::max(program_.workspace_bytes, used_bytes_ + bytes);
    const Place workspace = {Place::Base::kWorkspace, 0, used_bytes_};
    program_.steps.emplace_back([=](const CudnnLaunch& launch) {
      TensorBindings bound;
      for (const auto& [id, place] : bindings) bound.Add(id, place.In(launch));
      return executable->Execute(launch.handle, bound, bytes == 0 ? nullptr : workspace.In(launch));
    });
  }

  // Between HWIO and cuDNN's layout. The taps of the filter stay together in both, which makes it a
  // copy of three dimensions. In this form one side is an ordinary NHWC tensor, and the other an
  // NCHW one where cuDNN's filter is OHWI.
  CopyShape FilterCopy() const {
    const int64_t outputs = original_.output_channels;
    const int64_t inputs = original_.image_channels / original_.group_count;
    const int64_t taps = original_.taps();
    CopyShape shape;
    shape.extents = {1, outputs, taps, inputs};
    shape.source_strides = PackedTensor(Layout::kNHWC, 1, outputs, {taps, inputs}).strides;
    if (computed_.layout == Layout::kNHWC) {
      shape.destination_strides = PackedTensor(Layout::kNCHW, 1, outputs, {taps, inputs}).strides;
    } else {
      shape.destination_strides = {outputs * taps * inputs, taps * inputs, 1, taps};
    }
    return shape;
  }

  Status PlaceFilter() {
    const CopyShape shape = FilterCopy();
    if (IsIdentity(shape)) return Status::Ok();
    const Place callers = places_.filter;
    places_.filter = Allocate(original_.filter_elements());
    if (original_.kind == ConvolutionKind::kBackwardFilter) {
      return AddCopy(shape, callers, places_.filter, /*is_result=*/true);
    }
    places_.filter.base = Place::Base::kFilter;
    TF_INTEROP_RETURN_IF_ERROR(
        StridedCopy::Make(library_, original_.dtype, shape, &program_.filter_copy));
    program_.steps.emplace_back([copy = program_.filter_copy, callers,
                                 destination = places_.filter](const CudnnLaunch& launch) {
      // Left out where the launch brings its filter transformed.
      if (launch.buffers.transformed_filter != nullptr) return Status::Ok();
      return copy->Enqueue(launch.handle, callers.In(launch), destination.In(launch));
    });
    return Status::Ok();
  }

  // Moves a tensor from the caller's layout to the executable's, where these differ.
  Status Transpose(int64_t channels, int64_t pixels, bool is_result, Place* place) {
    if (!formulation_.uses_nchw) return Status::Ok();
    const auto packed = [&](Layout layout) {
      return PackedTensor(layout, original_.batch, channels, {1, pixels});
    };
    const Place callers = *place;
    *place = Allocate(original_.batch * channels * pixels);
    return AddCopy({packed(original_.layout).extents, packed(original_.layout).strides,
                    packed(computed_.layout).strides},
                   callers, *place, is_result);
  }

  // Adds a copy from the caller's tensor to the executable's before the executables or, for the
  // result, one in the other direction after them.
  Status AddCopy(CopyShape shape, Place callers, Place executables, bool is_result) {
    if (is_result) std::swap(shape.source_strides, shape.destination_strides);
    std::shared_ptr<const StridedCopy> copy;
    TF_INTEROP_RETURN_IF_ERROR(StridedCopy::Make(library_, original_.dtype, shape, &copy));
    const Place from = is_result ? executables : callers, to = is_result ? callers : executables;
    (is_result ? after_ : program_.steps).emplace_back([=](const CudnnLaunch& launch) {
      return copy->Enqueue(launch.handle, from.In(launch), to.In(launch));
    });
    return Status::Ok();
  }

  // Every piece of the workspace is aligned like cudaMalloc's, on which cuDNN's engines are
  // fastest.
  Place Allocate(int64_t elements) {
    const Place place = {Place::Base::kWorkspace, 0, used_bytes_};
    used_bytes_ += (elements * SizeOf(original_.dtype) + 255) / 256 * 256;
    return place;
  }

  const CudnnLibrary& library_;
  const Convolution original_, computed_;
  const Formulation formulation_;
  TensorPlaces places_;  // of the executables' tensors
  Place convolved_;      // what the convolution's one writes or, backward, reads as its output
  CudnnProgram program_;
  std::vector<CudnnStep> after_;
  size_t used_bytes_ = 0;
};

// Everything that preparing one convolution needs at every level.
struct PrepareContext {
  const CudnnLibrary& library;
  cudnnHandle_t handle = nullptr;
  const Convolution& convolution;
  bool wants_least_workspace = false;
  PrepareOptions options;
};

ExecutableRequest RequestFor(const PrepareContext& context, size_t copies_bytes) {
  const size_t limit_bytes = context.options.workspace_limit_bytes;
  ExecutableRequest request;
  request.allow_reduced_precision =
      context.convolution.dtype != DataType::kFloat || context.options.allow_tf32;
  request.requires_determinism = context.options.deterministic;
  request.workspace_limit_bytes = limit_bytes - std::min(limit_bytes, copies_bytes);
  request.wants_least_workspace = context.wants_least_workspace;
  return request;
}

Status PrepareConvolution(const PrepareContext& context, const Convolution& executed,
                          const AlgorithmTag* pinned, const ExecutableRequest& request,
                          std::shared_ptr<const Executable>* executable) {
  const auto* legacy = pinned == nullptr ? nullptr : std::get_if<LegacyTag>(pinned);
  if (legacy != nullptr) {
    return MakeLegacyConvolution(context.library, context.handle, executed, *legacy, request,
                                 executable);
  }
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildConvolutionGraph(context.library, context.handle, executed, graph.get()));
  if (pinned != nullptr) {
    return PinPlan(context.library, context.handle, graph, std::get<EngineTag>(*pinned), request,
                   executable);
  }
  return ChoosePlan(context.library, context.handle, graph, HeuristicsFor(executed), request,
                    executable);
}

// Prepares the convolution in one formulation, with a pinned algorithm unless that is null.
Status PrepareFormulation(const PrepareContext& context, const Formulation& formulation,
                          const AlgorithmTag* pinned,
                          std::shared_ptr<const CudnnConvolution>* prepared) {
  Assembly assembly(context.library, context.convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  if (!context.wants_least_workspace &&
      assembly.copies_bytes() > context.options.workspace_limit_bytes) {
    return Unsupported("Expected at most " + std::to_string(context.options.workspace_limit_bytes) +
                       " bytes of workspace, got " + std::to_string(assembly.copies_bytes()) +
                       " for copies of tensors alone.");
  }
  const ExecutableRequest request = RequestFor(context, assembly.copies_bytes());
  std::shared_ptr<const Executable> convolution;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareConvolution(context, ExecutedConvolution(context.convolution, formulation), pinned,
                         request, &convolution));
  std::shared_ptr<const Executable> epilogue;
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareEpilogue(context.library, context.handle, assembly.computed(), request, &epilogue));
  }
  *prepared = assembly.Finish(convolution, epilogue);
  return Status::Ok();
}

// Prepares the convolution in the first of `formulations` that works, with a pinned algorithm
// unless that is null.
Status PrepareFirst(const PrepareContext& context, const std::vector<Formulation>& formulations,
                    const AlgorithmTag* pinned, std::shared_ptr<const CudnnConvolution>* prepared) {
  StatusCode code = StatusCode::kUnsupported;
  std::string reasons;
  for (const Formulation& formulation : formulations) {
    const Status status = PrepareFormulation(context, formulation, pinned, prepared);
    if (status.ok()) return status;
    // What is out of memory, or gone, may be back later; that must not look like a lasting refusal.
    if (code == StatusCode::kUnsupported && (status.code() == StatusCode::kResourceExhausted ||
                                             status.code() == StatusCode::kUnavailable)) {
      code = status.code();
    }
    reasons += " [" + ToString(formulation) + "] " + status.message();
  }
  return Status(code, "Expected cuDNN to have an engine for " + ToString(context.convolution) +
                          ", got:" + reasons);
}

// The formulations that a pinned algorithm may run in.
Status FormulationsOfPin(const Convolution& convolution, const Algorithm& algorithm,
                         std::vector<Formulation>* formulations) {
  *formulations = FormulationsOf(convolution);
  if (!algorithm.formulation) return Status::Ok();
  if (std::find(formulations->begin(), formulations->end(), *algorithm.formulation) ==
      formulations->end()) {
    return Unsupported("Expected a formulation that " + ToString(convolution) + " has, got '" +
                       ToString(*algorithm.formulation) + "' of '" + ToString(algorithm) +
                       "'. Profile this convolution anew.");
  }
  *formulations = {*algorithm.formulation};
  return Status::Ok();
}

Status PreparePinned(const PrepareContext& context, const std::string& text,
                     std::shared_ptr<const CudnnConvolution>* prepared) {
  Algorithm algorithm;
  std::vector<Formulation> formulations;
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(text, &algorithm));
  TF_INTEROP_RETURN_IF_ERROR(FormulationsOfPin(context.convolution, algorithm, &formulations));
  if (const auto* legacy = std::get_if<LegacyTag>(&algorithm.tag)) {
    TF_INTEROP_RETURN_IF_ERROR(CheckLegacyKind(*legacy, context.convolution));
  }
  return PrepareFirst(context, formulations, &algorithm.tag, prepared);
}

}  // namespace

CudnnConvolution::CudnnConvolution(const Convolution& convolution, CudnnProgram program)
    : convolution_(convolution), program_(std::move(program)) {}

size_t CudnnConvolution::transformed_filter_bytes() const {
  return program_.filter_copy == nullptr
             ? 0
             : convolution_.filter_elements() * SizeOf(convolution_.dtype);
}

Status CudnnConvolution::Enqueue(const CudnnLaunch& launch) const {
  TF_INTEROP_RETURN_IF_ERROR(CheckPointers(launch));
  for (const auto& step : program_.steps) TF_INTEROP_RETURN_IF_ERROR(step(launch));
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

Status CudnnConvolution::CheckPointers(const CudnnLaunch& launch) const {
  const bool takes_transformed =
      program_.filter_copy != nullptr && launch.buffers.transformed_filter != nullptr;
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

Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               const PrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  const PrepareContext context = {library, handle, convolution,
                                  algorithm.empty() && options.workspace_limit_bytes == 0, options};
  if (algorithm.empty()) {
    return PrepareFirst(context, FormulationsOf(convolution), nullptr, prepared);
  }
  return PreparePinned(context, algorithm, prepared);
}

}  // namespace tf_interop
