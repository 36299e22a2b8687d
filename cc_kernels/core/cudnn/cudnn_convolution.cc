#include "cc_kernels/core/cudnn/cudnn_convolution.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/engine_config.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/formulation.h"
#include "cc_kernels/core/cudnn/legacy_convolution.h"
#include "cc_kernels/core/cudnn/serialized_convolution.h"
#include "cc_kernels/core/cudnn/tensor_geometry.h"

namespace tf_interop {
namespace {

// Of every piece of the workspace; cuDNN's engines are fastest on memory aligned like cudaMalloc's.
constexpr size_t kWorkspaceAlignment = 256;

// A place in the memory of a launch.
struct Place {
  // kFilter: the transformed filter that the launch was given, or else the workspace.
  enum class Base { kInput, kResult, kWorkspace, kFilter };
  Base base = Base::kResult;
  int input = 0;
  size_t offset_bytes = 0;

  static Place Input(int index) { return {Base::kInput, index, 0}; }
  static Place Result() { return {Base::kResult, 0, 0}; }
  static Place Workspace(size_t offset_bytes) { return {Base::kWorkspace, 0, offset_bytes}; }
  static Place Filter(size_t offset_bytes) { return {Base::kFilter, 0, offset_bytes}; }

  Place Advanced(size_t bytes) const { return {base, input, offset_bytes + bytes}; }

  // cuDNN binds inputs and results alike as void*; inputs are only read.
  void* In(const CudnnLaunch& launch) const {
    char* start = nullptr;
    if (base == Base::kFilter && launch.buffers.transformed_filter != nullptr) {
      return const_cast<void*>(launch.buffers.transformed_filter);
    }
    switch (base) {
      case Base::kInput:
        start = static_cast<char*>(const_cast<void*>(launch.buffers.inputs[input]));
        break;
      case Base::kResult:
        start = static_cast<char*>(launch.buffers.result);
        break;
      case Base::kWorkspace:
      case Base::kFilter:
        start = static_cast<char*>(launch.workspace);
        break;
    }
    return start + offset_bytes;
  }
};

// Where the convolution's tensors are for the caller, in the order of ConvolutionBuffers.
struct TensorPlaces {
  Place image, filter, bias, output;
};

TensorPlaces PlacesOf(ConvolutionKind kind) {
  switch (kind) {
    case ConvolutionKind::kForward:
      return {Place::Input(0), Place::Input(1), Place::Input(2), Place::Result()};
    case ConvolutionKind::kBackwardInput:
      return {Place::Result(), Place::Input(0), Place::Input(2), Place::Input(1)};
    case ConvolutionKind::kBackwardFilter:
      break;
  }
  return {Place::Input(0), Place::Result(), Place::Input(2), Place::Input(1)};
}

// Where a convolution that reads its filter has it among its inputs.
int FilterInputOf(ConvolutionKind kind) { return kind == ConvolutionKind::kForward ? 1 : 0; }

int InputCount(const Convolution& convolution) { return convolution.has_bias ? 3 : 2; }

size_t RoundUp(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

class FillStep : public CudnnStep {
 public:
  FillStep(const CudaDriver& driver, Place place, size_t bytes)
      : driver_(driver), place_(place), bytes_(bytes) {}

  Status Enqueue(const CudnnLaunch& launch) const override {
    const auto address = reinterpret_cast<CUdeviceptr>(place_.In(launch));
    return driver_.Check(driver_.cuMemsetD8Async(address, 0, bytes_, launch.stream),
                         "cuMemsetD8Async");
  }

 private:
  const CudaDriver& driver_;
  Place place_;
  size_t bytes_;
};

class CopyStep : public CudnnStep {
 public:
  CopyStep(std::unique_ptr<const StridedCopy> copy, Place source, Place destination)
      : copy_(std::move(copy)), source_(source), destination_(destination) {}

  Status Enqueue(const CudnnLaunch& launch) const override {
    return copy_->Enqueue(launch.handle, source_.In(launch), destination_.In(launch));
  }

 private:
  std::unique_ptr<const StridedCopy> copy_;
  Place source_;
  Place destination_;
};

// Leaves out the copy where the launch brings its filter transformed.
class FilterStep : public CudnnStep {
 public:
  FilterStep(const StridedCopy& copy, Place source, Place destination)
      : copy_(copy), source_(source), destination_(destination) {}

  Status Enqueue(const CudnnLaunch& launch) const override {
    if (launch.buffers.transformed_filter != nullptr) return Status::Ok();
    return copy_.Enqueue(launch.handle, source_.In(launch), destination_.In(launch));
  }

 private:
  const StridedCopy& copy_;
  Place source_;
  Place destination_;
};

class ExecuteStep : public CudnnStep {
 public:
  ExecuteStep(const Executable& executable, std::vector<std::pair<int64_t, Place>> bindings,
              Place workspace)
      : executable_(executable), bindings_(std::move(bindings)), workspace_(workspace) {}

  Status Enqueue(const CudnnLaunch& launch) const override {
    std::vector<TensorBinding> bound;
    for (const auto& [id, place] : bindings_) bound.emplace_back(id, place.In(launch));
    void* workspace = executable_.workspace_bytes() == 0 ? nullptr : workspace_.In(launch);
    return executable_.Execute(launch.handle, bound, workspace);
  }

 private:
  const Executable& executable_;
  std::vector<std::pair<int64_t, Place>> bindings_;
  Place workspace_;
};

// Where the executables get and leave their tensors, and what has to be done around them.
class Assembly {
 public:
  Assembly(const CudaDriver& driver, const CudnnLibrary& library, const Convolution& convolution,
           const Formulation& formulation)
      : driver_(driver),
        library_(library),
        original_(convolution),
        computed_(FormulatedConvolution(convolution, formulation)),
        formulation_(formulation),
        places_(PlacesOf(convolution.kind)) {}

  // Finds a place for every tensor of the executables, and adds the steps before and after them.
  Status PlaceTensors() {
    TF_INTEROP_RETURN_IF_ERROR(PlaceFilter());
    TF_INTEROP_RETURN_IF_ERROR(PlaceImage());
    TF_INTEROP_RETURN_IF_ERROR(PlaceOutput());
    convolved_ = places_.output;
    if (formulation_.splits_epilogue) {
      convolved_ = Allocate(OutputGeometry(computed_).elements());
    }
    return Status::Ok();
  }

  const Convolution& computed() const { return computed_; }
  // The workspace of everything but the executables.
  size_t copies_bytes() const { return used_bytes_; }

  // Puts the steps in order. `epilogue` is null unless the formulation splits it off.
  std::shared_ptr<const CudnnConvolution> Finish(std::unique_ptr<const Executable> convolution,
                                                 std::unique_ptr<const Executable> epilogue) {
    CudnnProgram program;
    program.algorithm = ToString(Algorithm{formulation_, convolution->tag()});
    program.filter_copy = std::move(filter_copy_);
    program.steps = std::move(before_);
    program.workspace_bytes = used_bytes_ + convolution->workspace_bytes();
    AddExecution(std::move(convolution), ConvolutionBindings(), &program);
    if (epilogue) {
      program.workspace_bytes =
          std::max(program.workspace_bytes, used_bytes_ + epilogue->workspace_bytes());
      AddExecution(std::move(epilogue), EpilogueBindings(), &program);
    }
    for (auto& step : after_) program.steps.push_back(std::move(step));
    return std::make_shared<CudnnConvolution>(original_, library_.cudnnGetVersion(),
                                              std::move(program));
  }

 private:
  using Bindings = std::vector<std::pair<int64_t, Place>>;

  // Executables run one after the other and share what is behind the copies.
  void AddExecution(std::unique_ptr<const Executable> executable, Bindings bindings,
                    CudnnProgram* program) const {
    program->steps.push_back(std::make_unique<ExecuteStep>(*executable, std::move(bindings),
                                                           Place::Workspace(used_bytes_)));
    program->executables.push_back(std::move(executable));
  }

  Bindings ConvolutionBindings() const {
    Bindings bindings = {{kImageTensor, places_.image},
                         {kFilterTensor, places_.filter},
                         {kOutputTensor, convolved_}};
    if (original_.has_bias && !formulation_.splits_epilogue) {
      bindings.emplace_back(kBiasTensor, places_.bias);
    }
    return bindings;
  }

  Bindings EpilogueBindings() const {
    Bindings bindings = {{kConvolvedTensor, convolved_}, {kOutputTensor, places_.output}};
    if (original_.has_bias) bindings.emplace_back(kBiasTensor, places_.bias);
    return bindings;
  }

  // Between HWIO and cuDNN's layout. The taps of the filter stay together in both, which makes it a
  // copy of three dimensions; in this form one side is an ordinary NHWC tensor, and the other an
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
    const Place allocated = Allocate(original_.filter_elements());
    places_.filter = allocated;
    if (original_.kind == ConvolutionKind::kBackwardFilter) {
      return AddCopy(shape, callers, allocated, /*is_result=*/true);
    }
    places_.filter = Place::Filter(allocated.offset_bytes);
    TF_INTEROP_RETURN_IF_ERROR(StridedCopy::Make(library_, original_.dtype, shape, &filter_copy_));
    before_.push_back(std::make_unique<FilterStep>(*filter_copy_, callers, places_.filter));
    return Status::Ok();
  }

  Status PlaceImage() {
    if (!formulation_.pads_image && !formulation_.uses_nchw) return Status::Ok();
    const TensorGeometry callers = ImageGeometry(original_);
    const TensorGeometry computed = ImageGeometry(computed_);
    const Place callers_place = places_.image;
    places_.image = Allocate(computed.elements());
    const bool is_result = original_.kind == ConvolutionKind::kBackwardInput;
    Place interior = places_.image;
    if (formulation_.pads_image) {
      interior = interior.Advanced(InteriorOffset(computed) * SizeOf(original_.dtype));
      if (!is_result) {
        before_.push_back(std::make_unique<FillStep>(
            driver_, places_.image, computed.elements() * SizeOf(original_.dtype)));
      }
    }
    return AddCopy({callers.extents, callers.strides, computed.strides}, callers_place, interior,
                   is_result);
  }

  // Elements before the first one of the image in its padded copy.
  int64_t InteriorOffset(const TensorGeometry& padded) const {
    const ImageMargins margins = MarginsOf(original_);
    const auto before = SpatialOf(original_, margins.front, margins.top, margins.left);
    return std::inner_product(before.begin(), before.end(), padded.strides.begin() + 2, int64_t{0});
  }

  Status PlaceOutput() {
    if (!formulation_.uses_nchw) return Status::Ok();
    const TensorGeometry callers = OutputGeometry(original_);
    const TensorGeometry computed = OutputGeometry(computed_);
    const Place callers_place = places_.output;
    places_.output = Allocate(computed.elements());
    return AddCopy({callers.extents, callers.strides, computed.strides}, callers_place,
                   places_.output, original_.kind == ConvolutionKind::kForward);
  }

  // Adds a copy from the caller's tensor to the executable's before the executables or, for the
  // result, one in the other direction after them.
  Status AddCopy(const CopyShape& shape, Place callers, Place executables, bool is_result) {
    CopyShape directed = shape;
    if (is_result) std::swap(directed.source_strides, directed.destination_strides);
    std::unique_ptr<const StridedCopy> copy;
    TF_INTEROP_RETURN_IF_ERROR(StridedCopy::Make(library_, original_.dtype, directed, &copy));
    if (is_result) {
      after_.push_back(std::make_unique<CopyStep>(std::move(copy), executables, callers));
    } else {
      before_.push_back(std::make_unique<CopyStep>(std::move(copy), callers, executables));
    }
    return Status::Ok();
  }

  Place Allocate(int64_t elements) {
    const Place place = Place::Workspace(used_bytes_);
    used_bytes_ += RoundUp(elements * SizeOf(original_.dtype));
    return place;
  }

  const CudaDriver& driver_;
  const CudnnLibrary& library_;
  const Convolution original_;
  const Convolution computed_;
  const Formulation formulation_;
  TensorPlaces places_;  // of the executables' tensors
  Place convolved_;      // what the convolution's one writes or, backward, reads as its output
  std::unique_ptr<const StridedCopy> filter_copy_;
  std::vector<std::unique_ptr<const CudnnStep>> before_;
  std::vector<std::unique_ptr<const CudnnStep>> after_;
  size_t used_bytes_ = 0;
};

// Everything that preparing one convolution needs at every level.
struct PrepareContext {
  const CudaDriver& driver;
  const CudnnLibrary& library;
  cudnnHandle_t handle = nullptr;
  const Convolution& convolution;
  size_t workspace_limit_bytes = 0;
  bool wants_least_workspace = false;
  CudnnPrepareOptions options;
};

ExecutableRequest RequestFor(const PrepareContext& context, size_t copies_bytes) {
  ExecutableRequest request;
  request.allow_reduced_precision =
      context.convolution.dtype != DataType::kFloat || context.options.allow_tf32;
  request.requires_determinism = context.options.deterministic;
  request.workspace_limit_bytes =
      context.workspace_limit_bytes - std::min(context.workspace_limit_bytes, copies_bytes);
  request.wants_least_workspace = context.wants_least_workspace;
  return request;
}

Status PrepareConvolution(const PrepareContext& context, const Convolution& executed,
                          const AlgorithmTag* pinned, const ExecutableRequest& request,
                          std::unique_ptr<const Executable>* executable) {
  const auto* legacy = pinned == nullptr ? nullptr : std::get_if<LegacyTag>(pinned);
  if (legacy != nullptr) {
    return LegacyConvolution::Make(context.library, context.handle, executed, *legacy, request,
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

Status PrepareEpilogue(const PrepareContext& context, const Convolution& computed,
                       const ExecutableRequest& request,
                       std::unique_ptr<const Executable>* executable) {
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildEpilogueGraph(context.library, context.handle, computed, graph.get()));
  return ChoosePlan(context.library, context.handle, graph, HeuristicsForEpilogue(), request,
                    executable);
}

// Prepares the convolution in one formulation, with a pinned algorithm unless that is null.
Status PrepareFormulation(const PrepareContext& context, const Formulation& formulation,
                          const AlgorithmTag* pinned,
                          std::shared_ptr<const CudnnConvolution>* prepared) {
  Assembly assembly(context.driver, context.library, context.convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  if (!context.wants_least_workspace && assembly.copies_bytes() > context.workspace_limit_bytes) {
    return Unsupported("Expected at most " + std::to_string(context.workspace_limit_bytes) +
                       " bytes of workspace, got " + std::to_string(assembly.copies_bytes()) +
                       " for copies of tensors alone.");
  }
  const ExecutableRequest request = RequestFor(context, assembly.copies_bytes());
  std::unique_ptr<const Executable> convolution;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareConvolution(context, ExecutedConvolution(context.convolution, formulation), pinned,
                         request, &convolution));
  std::unique_ptr<const Executable> epilogue;
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(PrepareEpilogue(context, assembly.computed(), request, &epilogue));
  }
  *prepared = assembly.Finish(std::move(convolution), std::move(epilogue));
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

Status RestorePlan(const CudnnLibrary& library, cudnnHandle_t handle, const std::string& text,
                   const EngineTag* expected, std::unique_ptr<const Executable>* executable) {
  auto plan = std::make_unique<ExecutionPlan>(library);
  TF_INTEROP_RETURN_IF_ERROR(plan->Load(handle, text, expected));
  *executable = std::move(plan);
  return Status::Ok();
}

Status CheckAligned(const char* name, const void* pointer) {
  if (pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kTensorAlignment == 0) {
    return Status::Ok();
  }
  return InvalidArgument(std::string("Expected ") + name + " aligned to " +
                         std::to_string(kTensorAlignment) + " bytes, got address " +
                         std::to_string(reinterpret_cast<uintptr_t>(pointer)) + ".");
}

}  // namespace

CudnnConvolution::CudnnConvolution(const Convolution& convolution, size_t cudnn_version,
                                   CudnnProgram program)
    : convolution_(convolution), cudnn_version_(cudnn_version), program_(std::move(program)) {}

bool CudnnConvolution::reduces_precision() const {
  return convolution_.dtype == DataType::kFloat &&
         program_.executables.front()->reduces_precision();
}

size_t CudnnConvolution::transformed_filter_bytes() const {
  return program_.filter_copy == nullptr
             ? 0
             : convolution_.filter_elements() * SizeOf(convolution_.dtype);
}

Status CudnnConvolution::Serialize(std::string* serialized) const {
  SerializedConvolution parts;
  parts.cudnn_version = cudnn_version_;
  parts.convolution = DescribeExactly(convolution_);
  parts.algorithm = program_.algorithm;
  for (const auto& executable : program_.executables) {
    TF_INTEROP_RETURN_IF_ERROR(executable->Serialize(&parts.plans.emplace_back()));
  }
  *serialized = WriteSerialized(parts);
  return Status::Ok();
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

Status PrepareCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& algorithm, size_t workspace_limit_bytes,
                               const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  const PrepareContext context = {driver,
                                  library,
                                  handle,
                                  convolution,
                                  workspace_limit_bytes,
                                  algorithm.empty() && workspace_limit_bytes == 0,
                                  options};
  if (algorithm.empty()) {
    return PrepareFirst(context, FormulationsOf(convolution), nullptr, prepared);
  }
  return PreparePinned(context, algorithm, prepared);
}

Status RestoreCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& serialized, const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  SerializedConvolution parts;
  TF_INTEROP_RETURN_IF_ERROR(ReadSerialized(serialized, &parts));
  TF_INTEROP_RETURN_IF_ERROR(CheckOfSameOrigin(parts, convolution, library.cudnnGetVersion()));
  Algorithm algorithm;
  std::vector<Formulation> formulations;
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(parts.algorithm, &algorithm));
  TF_INTEROP_RETURN_IF_ERROR(FormulationsOfPin(convolution, algorithm, &formulations));
  const Formulation& formulation = formulations.front();  // without words: the plain one
  const auto* engine = std::get_if<EngineTag>(&algorithm.tag);
  const size_t plan_count = formulation.splits_epilogue ? 2 : 1;
  if (engine == nullptr || parts.plans.size() != plan_count) {
    return InvalidArgument("Expected an engine and " + std::to_string(plan_count) +
                           " plans in a serialized convolution, got '" + parts.algorithm +
                           "' and " + std::to_string(parts.plans.size()) + " plans.");
  }
  Assembly assembly(driver, library, convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  std::unique_ptr<const Executable> plan, epilogue;
  TF_INTEROP_RETURN_IF_ERROR(RestorePlan(library, handle, parts.plans[0], engine, &plan));
  if (convolution.dtype == DataType::kFloat && plan->reduces_precision() && !options.allow_tf32) {
    return Unsupported("Expected '" + parts.algorithm +
                       "' to compute in full float precision while TF32 is off, got one that uses "
                       "TF32 or less. Allow TF32, or prepare another algorithm.");
  }
  ExecutableRequest request;
  request.requires_determinism = options.deterministic;
  TF_INTEROP_RETURN_IF_ERROR(CheckDeterminism(plan->is_deterministic(), request));
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(RestorePlan(library, handle, parts.plans[1], nullptr, &epilogue));
    TF_INTEROP_RETURN_IF_ERROR(CheckDeterminism(epilogue->is_deterministic(), request));
  }
  *prepared = assembly.Finish(std::move(plan), std::move(epilogue));
  return Status::Ok();
}

}  // namespace tf_interop
