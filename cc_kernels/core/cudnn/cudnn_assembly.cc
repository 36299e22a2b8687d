#include "cc_kernels/core/cudnn/cudnn_assembly.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc_kernels/core/cudnn/cudnn_graph.h"

namespace tf_interop {
namespace {

// Of every piece of the workspace; cuDNN's engines are fastest on memory aligned like cudaMalloc's.
constexpr size_t kWorkspaceAlignment = 256;

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

size_t RoundUp(size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

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
    TensorBindings bound;
    for (const auto& [id, place] : bindings_) bound.Add(id, place.In(launch));
    void* workspace = executable_.workspace_bytes() == 0 ? nullptr : workspace_.In(launch);
    return executable_.Execute(launch.handle, bound, workspace);
  }

 private:
  const Executable& executable_;
  std::vector<std::pair<int64_t, Place>> bindings_;
  Place workspace_;
};

}  // namespace

void* Place::In(const CudnnLaunch& launch) const {
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

CudnnAssembly::CudnnAssembly(const CudnnLibrary& library, const Convolution& convolution,
                             const Formulation& formulation)
    : library_(library),
      original_(convolution),
      computed_(FormulatedConvolution(convolution, formulation)),
      formulation_(formulation),
      places_(PlacesOf(convolution.kind)) {}

Status CudnnAssembly::PlaceTensors() {
  TF_INTEROP_RETURN_IF_ERROR(PlaceFilter());
  TF_INTEROP_RETURN_IF_ERROR(PlaceImage());
  TF_INTEROP_RETURN_IF_ERROR(PlaceOutput());
  convolved_ = places_.output;
  if (formulation_.splits_epilogue) {
    convolved_ = Allocate(OutputGeometry(computed_).elements());
  }
  return Status::Ok();
}

std::shared_ptr<const CudnnConvolution> CudnnAssembly::Finish(
    std::unique_ptr<const Executable> convolution, std::unique_ptr<const Executable> epilogue) {
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
  return std::make_shared<CudnnConvolution>(original_, std::move(program));
}

void CudnnAssembly::AddExecution(std::unique_ptr<const Executable> executable, Bindings bindings,
                                 CudnnProgram* program) const {
  program->steps.push_back(std::make_unique<ExecuteStep>(*executable, std::move(bindings),
                                                         Place::Workspace(used_bytes_)));
  program->executables.push_back(std::move(executable));
}

CudnnAssembly::Bindings CudnnAssembly::ConvolutionBindings() const {
  Bindings bindings = {
      {kImageTensor, places_.image}, {kFilterTensor, places_.filter}, {kOutputTensor, convolved_}};
  if (original_.has_bias && !formulation_.splits_epilogue) {
    bindings.emplace_back(kBiasTensor, places_.bias);
  }
  return bindings;
}

CudnnAssembly::Bindings CudnnAssembly::EpilogueBindings() const {
  Bindings bindings = {{kConvolvedTensor, convolved_}, {kOutputTensor, places_.output}};
  if (original_.has_bias) bindings.emplace_back(kBiasTensor, places_.bias);
  return bindings;
}

CopyShape CudnnAssembly::FilterCopy() const {
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

Status CudnnAssembly::PlaceFilter() {
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

Status CudnnAssembly::PlaceImage() {
  return Transpose(original_.image_channels, original_.image_pixels(),
                   original_.kind == ConvolutionKind::kBackwardInput, &places_.image);
}

Status CudnnAssembly::PlaceOutput() {
  return Transpose(original_.output_channels, original_.output_pixels(),
                   original_.kind == ConvolutionKind::kForward, &places_.output);
}

Status CudnnAssembly::Transpose(int64_t channels, int64_t pixels, bool is_result, Place* place) {
  if (!formulation_.uses_nchw) return Status::Ok();
  const auto packed = [&](const Convolution& c) {
    return PackedTensor(c.layout, c.batch, channels, {1, pixels});
  };
  const Place callers_place = *place;
  *place = Allocate(original_.batch * channels * pixels);
  return AddCopy({packed(original_).extents, packed(original_).strides, packed(computed_).strides},
                 callers_place, *place, is_result);
}

Status CudnnAssembly::AddCopy(const CopyShape& shape, Place callers, Place executables,
                              bool is_result) {
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

Place CudnnAssembly::Allocate(int64_t elements) {
  const Place place = Place::Workspace(used_bytes_);
  used_bytes_ += RoundUp(elements * SizeOf(original_.dtype));
  return place;
}

}  // namespace tf_interop
