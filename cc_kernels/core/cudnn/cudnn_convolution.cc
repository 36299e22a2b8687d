#include "cc_kernels/core/cudnn/cudnn_convolution.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/strided_copy.h"
#include "cc_kernels/core/cudnn/tensor_geometry.h"

namespace tf_interop {
namespace {

// Of every piece of the workspace; cuDNN's engines are fastest on memory aligned like cudaMalloc's.
constexpr size_t kWorkspaceAlignment = 256;

// ---- Where a tensor lies -----------------------------------------------------------------------

// A place in the memory of a launch.
struct Place {
  enum class Base { kInput, kResult, kWorkspace };
  Base base = Base::kResult;
  int input = 0;
  size_t offset_bytes = 0;

  static Place Input(int index) { return {Base::kInput, index, 0}; }
  static Place Result() { return {Base::kResult, 0, 0}; }
  static Place Workspace(size_t offset_bytes) { return {Base::kWorkspace, 0, offset_bytes}; }

  Place Advanced(size_t bytes) const { return {base, input, offset_bytes + bytes}; }

  // cuDNN binds inputs and results alike as void*; inputs are only read.
  void* In(const CudnnLaunch& launch) const {
    char* start = nullptr;
    switch (base) {
      case Base::kInput:
        start = static_cast<char*>(const_cast<void*>(launch.buffers.inputs[input]));
        break;
      case Base::kResult:
        start = static_cast<char*>(launch.buffers.result);
        break;
      case Base::kWorkspace:
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

int InputCount(const Convolution& convolution) { return convolution.has_bias ? 3 : 2; }

size_t RoundUp(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

// ---- Steps
// ---------------------------------------------------------------------------------------

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

class PlanStep : public CudnnStep {
 public:
  PlanStep(std::unique_ptr<const ExecutionPlan> plan,
           std::vector<std::pair<int64_t, Place>> bindings, Place workspace)
      : plan_(std::move(plan)), bindings_(std::move(bindings)), workspace_(workspace) {}

  Status Enqueue(const CudnnLaunch& launch) const override {
    std::vector<TensorBinding> bound;
    for (const auto& [id, place] : bindings_) bound.emplace_back(id, place.In(launch));
    void* workspace = plan_->workspace_bytes() == 0 ? nullptr : workspace_.In(launch);
    return plan_->Execute(launch.handle, bound, workspace);
  }

 private:
  std::unique_ptr<const ExecutionPlan> plan_;
  std::vector<std::pair<int64_t, Place>> bindings_;
  Place workspace_;
};

// ---- Formulations ------------------------------------------------------------------------------

bool HasAsymmetricPadding(const Convolution& c) {
  return c.pad_top != c.pad_bottom || c.pad_left != c.pad_right;
}

// What the padded copy of the image adds on each side, so that equal paddings are left.
struct ImageMargins {
  int64_t top, bottom, left, right;
};

ImageMargins MarginsOf(const Convolution& c) {
  const int64_t rows = std::min(c.pad_top, c.pad_bottom);
  const int64_t columns = std::min(c.pad_left, c.pad_right);
  return {c.pad_top - rows, c.pad_bottom - rows, c.pad_left - columns, c.pad_right - columns};
}

// The convolution that cuDNN computes in this formulation, without a split epilogue.
Convolution ComputedConvolution(const Convolution& convolution, const Formulation& formulation) {
  Convolution computed = convolution;
  if (formulation.pads_image) {
    const ImageMargins margins = MarginsOf(convolution);
    computed.image_height += margins.top + margins.bottom;
    computed.image_width += margins.left + margins.right;
    computed.pad_top = computed.pad_bottom = std::min(convolution.pad_top, convolution.pad_bottom);
    computed.pad_left = computed.pad_right = std::min(convolution.pad_left, convolution.pad_right);
  }
  if (formulation.uses_nchw) computed.layout = Layout::kNCHW;
  return computed;
}

Convolution WithoutEpilogue(const Convolution& convolution) {
  Convolution plain = convolution;
  plain.has_bias = false;
  plain.activation = Activation::kNone;
  return plain;
}

// ---- Putting a convolution together ------------------------------------------------------------

// Where the plans get and leave their tensors, and what has to be done around them.
class Assembly {
 public:
  Assembly(const CudaDriver& driver, const CudnnLibrary& library, const Convolution& convolution,
           const Formulation& formulation)
      : driver_(driver),
        library_(library),
        original_(convolution),
        computed_(ComputedConvolution(convolution, formulation)),
        formulation_(formulation),
        places_(PlacesOf(convolution.kind)) {}

  // Finds a place for every tensor of the plans, and adds the steps before and after them.
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
  // The workspace of everything but the plans.
  size_t copies_bytes() const { return used_bytes_; }

  // Puts the steps in order. `epilogue` is null unless the formulation splits it off.
  std::shared_ptr<const CudnnConvolution> Finish(std::unique_ptr<const ExecutionPlan> plan,
                                                 std::unique_ptr<const ExecutionPlan> epilogue) {
    const std::string algorithm = ToString(Algorithm{formulation_, plan->engine()});
    // The plans run one after the other and share what is behind the copies.
    const Place plan_workspace = Place::Workspace(used_bytes_);
    size_t plan_bytes = plan->workspace_bytes();
    if (epilogue) plan_bytes = std::max(plan_bytes, epilogue->workspace_bytes());

    std::vector<std::unique_ptr<const CudnnStep>> steps = std::move(before_);
    const bool is_fused = HasEpilogue(computed_) && !epilogue;
    steps.push_back(
        std::make_unique<PlanStep>(std::move(plan), ConvolutionBindings(is_fused), plan_workspace));
    if (epilogue) {
      steps.push_back(
          std::make_unique<PlanStep>(std::move(epilogue), EpilogueBindings(), plan_workspace));
    }
    for (auto& step : after_) steps.push_back(std::move(step));
    return std::make_shared<CudnnConvolution>(original_, algorithm, std::move(steps),
                                              used_bytes_ + plan_bytes);
  }

 private:
  using Bindings = std::vector<std::pair<int64_t, Place>>;

  Bindings ConvolutionBindings(bool is_fused) const {
    Bindings bindings = {{kImageTensor, places_.image},
                         {kFilterTensor, places_.filter},
                         {kOutputTensor, convolved_}};
    if (is_fused && original_.has_bias) bindings.emplace_back(kBiasTensor, places_.bias);
    return bindings;
  }

  Bindings EpilogueBindings() const {
    Bindings bindings = {{kConvolvedTensor, convolved_}, {kOutputTensor, places_.output}};
    if (original_.has_bias) bindings.emplace_back(kBiasTensor, places_.bias);
    return bindings;
  }

  // Between HWIO and cuDNN's layout. Rows and columns of the filter stay together in both, which
  // makes it a copy of three dimensions; in this form one side is an ordinary NHWC tensor, and the
  // other an NCHW one where cuDNN's filter is OHWI.
  CopyShape FilterCopy() const {
    const int64_t outputs = original_.output_channels;
    const int64_t inputs = original_.image_channels / original_.group_count;
    const int64_t positions = original_.filter_height * original_.filter_width;
    CopyShape shape;
    shape.extents = {1, outputs, positions, inputs};
    shape.source_strides = PackedTensor(Layout::kNHWC, 1, outputs, positions, inputs).strides;
    shape.destination_strides =
        computed_.layout == Layout::kNHWC
            ? PackedTensor(Layout::kNCHW, 1, outputs, positions, inputs).strides
            : std::array<int64_t, 4>{outputs * positions * inputs, positions * inputs, 1,
                                     positions};
    return shape;
  }

  Status PlaceFilter() {
    const CopyShape shape = FilterCopy();
    if (IsIdentity(shape)) return Status::Ok();
    const Place callers = places_.filter;
    places_.filter = Allocate(original_.filter_elements());
    return AddCopy(shape, callers, places_.filter,
                   original_.kind == ConvolutionKind::kBackwardFilter);
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
      const ImageMargins margins = MarginsOf(original_);
      interior = interior.Advanced(
          (margins.top * computed.strides[2] + margins.left * computed.strides[3]) *
          SizeOf(original_.dtype));
      if (!is_result) {
        before_.push_back(std::make_unique<FillStep>(
            driver_, places_.image, computed.elements() * SizeOf(original_.dtype)));
      }
    }
    return AddCopy({callers.extents, callers.strides, computed.strides}, callers_place, interior,
                   is_result);
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

  // Adds a copy from the caller's tensor to the plan's before the plans or, for the result, one in
  // the other direction after them.
  Status AddCopy(const CopyShape& shape, Place callers, Place plans, bool is_result) {
    CopyShape directed = shape;
    if (is_result) std::swap(directed.source_strides, directed.destination_strides);
    std::unique_ptr<const StridedCopy> copy;
    TF_INTEROP_RETURN_IF_ERROR(StridedCopy::Make(library_, original_.dtype, directed, &copy));
    if (is_result) {
      after_.push_back(std::make_unique<CopyStep>(std::move(copy), plans, callers));
    } else {
      before_.push_back(std::make_unique<CopyStep>(std::move(copy), callers, plans));
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
  TensorPlaces places_;  // of the plans' tensors
  Place convolved_;      // what the convolution's plan writes or, backward, reads as its output
  std::vector<std::unique_ptr<const CudnnStep>> before_;
  std::vector<std::unique_ptr<const CudnnStep>> after_;
  size_t used_bytes_ = 0;
};

// Everything that preparing one convolution needs at every level.
struct PrepareContext {
  const CudaDriver& driver;
  const CudnnLibrary& library;
  cudnnHandle_t handle;
  const Convolution& convolution;
  size_t workspace_limit_bytes;
  bool wants_least_workspace;
  CudnnPrepareOptions options;
};

PlanRequest RequestFor(const PrepareContext& context, size_t copies_bytes) {
  const Convolution& c = context.convolution;
  PlanRequest request;
  request.allow_reduced_precision = c.dtype != DataType::kFloat || context.options.allow_tf32;
  request.use_learned_heuristic =
      c.group_count == 1 && c.dilation_height == 1 && c.dilation_width == 1;
  request.workspace_limit_bytes =
      context.workspace_limit_bytes - std::min(context.workspace_limit_bytes, copies_bytes);
  request.wants_least_workspace = context.wants_least_workspace;
  return request;
}

Status PrepareConvolutionPlan(const PrepareContext& context, const Convolution& computed,
                              const EngineTag* pinned, const PlanRequest& request,
                              std::unique_ptr<const ExecutionPlan>* plan) {
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildConvolutionGraph(context.library, context.handle, computed, graph.get()));
  if (pinned != nullptr) {
    return PinPlan(context.library, context.handle, graph, *pinned, request, plan);
  }
  return ChoosePlan(context.library, context.handle, graph, request, plan);
}

Status PrepareEpiloguePlan(const PrepareContext& context, const Convolution& computed,
                           PlanRequest request, std::unique_ptr<const ExecutionPlan>* plan) {
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildEpilogueGraph(context.library, context.handle, computed, graph.get()));
  request.use_learned_heuristic = false;
  return ChoosePlan(context.library, context.handle, graph, request, plan);
}

// Prepares the convolution in one formulation, with a pinned engine unless that is null.
Status PrepareFormulation(const PrepareContext& context, const Formulation& formulation,
                          const EngineTag* pinned,
                          std::shared_ptr<const CudnnConvolution>* prepared) {
  Assembly assembly(context.driver, context.library, context.convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  if (!context.wants_least_workspace && assembly.copies_bytes() > context.workspace_limit_bytes) {
    return Unsupported("Expected at most " + std::to_string(context.workspace_limit_bytes) +
                       " bytes of workspace, got " + std::to_string(assembly.copies_bytes()) +
                       " for copies of tensors alone.");
  }
  const PlanRequest request = RequestFor(context, assembly.copies_bytes());
  const Convolution& computed = assembly.computed();
  std::unique_ptr<const ExecutionPlan> plan;
  TF_INTEROP_RETURN_IF_ERROR(PrepareConvolutionPlan(
      context, formulation.splits_epilogue ? WithoutEpilogue(computed) : computed, pinned, request,
      &plan));
  std::unique_ptr<const ExecutionPlan> epilogue;
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(PrepareEpiloguePlan(context, computed, request, &epilogue));
  }
  *prepared = assembly.Finish(std::move(plan), std::move(epilogue));
  return Status::Ok();
}

// Prepares the convolution in the first of `formulations` that works, with a pinned engine unless
// that is null.
Status PrepareFirst(const PrepareContext& context, const std::vector<Formulation>& formulations,
                    const EngineTag* pinned, std::shared_ptr<const CudnnConvolution>* prepared) {
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

Status PreparePinned(const PrepareContext& context, const std::string& text,
                     std::shared_ptr<const CudnnConvolution>* prepared) {
  Algorithm algorithm;
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(text, &algorithm));
  std::vector<Formulation> formulations = FormulationsOf(context.convolution);
  if (algorithm.formulation) {
    if (std::find(formulations.begin(), formulations.end(), *algorithm.formulation) ==
        formulations.end()) {
      return Unsupported("Expected a formulation that " + ToString(context.convolution) +
                         " has, got '" + ToString(*algorithm.formulation) + "' of '" + text +
                         "'. Profile this convolution anew.");
    }
    formulations = {*algorithm.formulation};
  }
  return PrepareFirst(context, formulations, &algorithm.engine, prepared);
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

CudnnConvolution::CudnnConvolution(const Convolution& convolution, std::string algorithm,
                                   std::vector<std::unique_ptr<const CudnnStep>> steps,
                                   size_t workspace_bytes)
    : input_count_(InputCount(convolution)),
      algorithm_(std::move(algorithm)),
      steps_(std::move(steps)),
      workspace_bytes_(workspace_bytes) {}

Status CudnnConvolution::Enqueue(const CudnnLaunch& launch) const {
  TF_INTEROP_RETURN_IF_ERROR(CheckPointers(launch));
  for (const auto& step : steps_) TF_INTEROP_RETURN_IF_ERROR(step->Enqueue(launch));
  return Status::Ok();
}

Status CudnnConvolution::CheckPointers(const CudnnLaunch& launch) const {
  for (int i = 0; i < input_count_; ++i) {
    TF_INTEROP_RETURN_IF_ERROR(CheckAligned("input", launch.buffers.inputs[i]));
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckAligned("result", launch.buffers.result));
  if (workspace_bytes_ == 0) return Status::Ok();
  return CheckAligned("workspace", launch.workspace);
}

std::vector<Formulation> FormulationsOf(const Convolution& convolution) {
  const bool splits = HasEpilogue(convolution);
  const bool pads = HasAsymmetricPadding(convolution);
  std::vector<Formulation> formulations;
  const auto add = [&](bool pads_image, bool uses_nchw) {
    formulations.push_back({pads_image, false, uses_nchw});
    if (splits) formulations.push_back({pads_image, true, uses_nchw});
  };
  add(false, false);
  if (pads) add(true, false);
  if (convolution.layout == Layout::kNHWC) add(pads, true);
  return formulations;
}

Status PrepareCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& algorithm, size_t workspace_limit_bytes,
                               const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(convolution));
  if (convolution.reads_nothing() || convolution.result_elements() == 0) {
    return InvalidArgument("Expected a convolution that reads and computes something, got " +
                           ToString(convolution) + ".");
  }
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

}  // namespace tf_interop
