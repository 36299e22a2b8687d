#include "cc_kernels/core/c_api.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_measuring_device.h"
#include "cc_kernels/core/measure.h"
#include "cc_kernels/core/measure_stage.h"
#ifdef TF_INTEROP_HAS_CUDNN
#include "cc_kernels/core/cudnn/cuda_measuring_device.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#endif

struct TfiCoreDevice {
  std::unique_ptr<tf_interop::HostBackend> host_backend;
  std::unique_ptr<tf_interop::MeasuringDevice> device;
  tf_interop::ProblemCache problems;
  std::mutex mutex;  // held while anything uses the device
};

namespace tf_interop {
namespace {

void Give(const std::string& text, TfiCoreSink sink) { sink(text.data(), text.size()); }

// Calls `work`, whose failure becomes an error code and a message.
template <typename Work>
int Report(TfiCoreSink error, const Work& work) {
  Status status;
  try {
    status = work();
  } catch (const std::exception& exception) {
    // No new string: memory may be what is missing.
    const char* const what = exception.what();
    error(what, std::char_traits<char>::length(what));
    return static_cast<int>(StatusCode::kInternal);
  }
  if (!status.ok()) Give(status.message(), error);
  return static_cast<int>(status.code());
}

Status OpenHost(TfiCoreDevice* opened) {
  opened->host_backend = std::make_unique<HostBackend>(SerialFor);
  std::unique_ptr<HostMeasuringDevice> device;
  TF_INTEROP_RETURN_IF_ERROR(HostMeasuringDevice::Create(opened->host_backend.get(), &device));
  opened->device = std::move(device);
  return Status::Ok();
}

Status OpenCudnn(TfiCoreDevice* opened) {
#ifdef TF_INTEROP_HAS_CUDNN
  std::unique_ptr<CudaMeasuringDevice> device;
  TF_INTEROP_RETURN_IF_ERROR(CudaMeasuringDevice::Create(&device));
  opened->device = std::move(device);
  return Status::Ok();
#else
  (void)opened;
  return Unavailable(
      "Expected a library with the cudnn backend, got one that was built without. Build it where "
      "the headers of CUDA and cuDNN are found.");
#endif
}

Status OpenDevice(const std::string& backend, TfiCoreDevice** device) {
  // Never destroyed: what the cudnn backend owns cannot be freed safely while the process ends.
  static auto* const mutex = new std::mutex();
  static auto* const devices = new std::map<std::string, std::unique_ptr<TfiCoreDevice>>();
  std::lock_guard<std::mutex> lock(*mutex);
  const auto found = devices->find(backend);
  if (found != devices->end()) {
    *device = found->second.get();
    return Status::Ok();
  }
  auto opened = std::make_unique<TfiCoreDevice>();
  if (backend == "host") {
    TF_INTEROP_RETURN_IF_ERROR(OpenHost(opened.get()));
  } else if (backend == "cudnn") {
    TF_INTEROP_RETURN_IF_ERROR(OpenCudnn(opened.get()));
  } else {
    return InvalidArgument("Expected backend host or cudnn, got '" + backend + "'.");
  }
  *device = opened.get();
  devices->emplace(backend, std::move(opened));
  return Status::Ok();
}

template <typename Enum>
Status ToEnum(const char* field, int32_t value, Enum last, Enum* result) {
  if (value < 0 || value > static_cast<int32_t>(last)) {
    return InvalidArgument(std::string("Expected ") + field + " from 0 to " +
                           std::to_string(static_cast<int32_t>(last)) + ", got " +
                           std::to_string(value) + ".");
  }
  *result = static_cast<Enum>(value);
  return Status::Ok();
}

Status ToConvolution(const TfiCoreConvolution& from, Convolution* c) {
  TF_INTEROP_RETURN_IF_ERROR(ToEnum("kind", from.kind, ConvolutionKind::kBackwardFilter, &c->kind));
  TF_INTEROP_RETURN_IF_ERROR(ToEnum("dtype", from.dtype, DataType::kDouble, &c->dtype));
  TF_INTEROP_RETURN_IF_ERROR(ToEnum("layout", from.layout, Layout::kNCHW, &c->layout));
  TF_INTEROP_RETURN_IF_ERROR(
      ToEnum("activation", from.activation, Activation::kElu, &c->activation));
  c->has_bias = from.has_bias != 0;
  c->leaky_relu_alpha = from.leaky_relu_alpha;
  if (from.spatial_rank != 2 && from.spatial_rank != 3) {
    return InvalidArgument("Expected a spatial_rank of 2 or 3, got " +
                           std::to_string(from.spatial_rank) + ".");
  }
  c->spatial_rank = static_cast<int>(from.spatial_rank);
  c->image_depth = from.image_depth;
  c->filter_depth = from.filter_depth;
  c->output_depth = from.output_depth;
  c->stride_depth = from.stride_depth;
  c->dilation_depth = from.dilation_depth;
  c->pad_front = from.pad_front;
  c->pad_back = from.pad_back;
  c->batch = from.batch;
  c->image_height = from.image_height;
  c->image_width = from.image_width;
  c->image_channels = from.image_channels;
  c->filter_height = from.filter_height;
  c->filter_width = from.filter_width;
  c->output_height = from.output_height;
  c->output_width = from.output_width;
  c->output_channels = from.output_channels;
  c->stride_height = from.stride_height;
  c->stride_width = from.stride_width;
  c->dilation_height = from.dilation_height;
  c->dilation_width = from.dilation_width;
  c->pad_top = from.pad_top;
  c->pad_bottom = from.pad_bottom;
  c->pad_left = from.pad_left;
  c->pad_right = from.pad_right;
  c->group_count = from.group_count;
  return Status::Ok();
}

std::optional<size_t> NotNegative(int64_t value) {
  return value < 0 ? std::nullopt : std::optional<size_t>(static_cast<size_t>(value));
}

MeasureOptions ToOptions(const TfiCoreMeasureOptions& from) {
  MeasureOptions options;
  options.warmup_runs = from.warmup_runs;
  options.repetitions = from.repetitions;
  options.cache_bytes = NotNegative(from.cache_bytes);
  options.head_start_bytes = NotNegative(from.head_start_bytes);
  options.workspace_limit_bytes =
      static_cast<size_t>(std::max<int64_t>(from.workspace_limit_bytes, 0));
  options.reference_limit_multiply_adds = from.reference_limit_multiply_adds;
  options.seed = from.seed;
  options.allow_tf32 = from.allow_tf32 != 0;
  options.trace_kernels = from.trace_kernels != 0;
  return options;
}

Status ToRequest(const TfiCoreStage& from, StageRequest* request) {
  std::vector<int> step_lanes;
  request->stage.steps.resize(from.step_count);
  for (size_t i = 0; i < from.step_count; ++i) {
    const TfiCoreStep& step = from.steps[i];
    Step& to = request->stage.steps[i];
    to.name = step.name;
    to.algorithm = step.algorithm;
    if (step.lane < 0 || step.lane > std::numeric_limits<int>::max()) {
      return InvalidArgument("Expected lanes numbered from 0 in an int, got " +
                             std::to_string(step.lane) + ".");
    }
    step_lanes.push_back(static_cast<int>(step.lane));
    TF_INTEROP_RETURN_IF_ERROR(ToConvolution(step.convolution, &to.convolution));
    if (from.sequential_algorithms != nullptr) {
      request->sequential_algorithms.emplace_back(from.sequential_algorithms[i]);
    }
  }
  std::vector<Lane>& lanes = request->stage.lanes;
  TF_INTEROP_RETURN_IF_ERROR(LanesOf(step_lanes, &lanes));
  if (from.lane_count != 0 && from.lane_count != lanes.size()) {
    return InvalidArgument("Expected options for none or all of " + std::to_string(lanes.size()) +
                           " lanes, got " + std::to_string(from.lane_count) + ".");
  }
  for (size_t i = 0; i < from.lane_count; ++i) {
    lanes[i].priority = from.lanes[i].priority;
    lanes[i].sm_count = from.lanes[i].sm_count;
    lanes[i].merged = from.lanes[i].merged != 0;
  }
  return Status::Ok();
}

void GiveKernel(const TracedKernel& kernel, TfiCoreKernelSink sink) {
  TfiCoreKernel given = {};
  given.name = kernel.name.c_str();
  std::copy(std::begin(kernel.grid), std::end(kernel.grid), given.grid);
  std::copy(std::begin(kernel.block), std::end(kernel.block), given.block);
  given.registers_per_thread = kernel.registers_per_thread;
  given.shared_memory_bytes = kernel.shared_memory_bytes;
  given.elapsed_us = kernel.elapsed_us;
  sink(&given);
}

}  // namespace
}  // namespace tf_interop

using tf_interop::Status;

int TfiCoreVersion(void) { return TFI_CORE_VERSION; }

int TfiCoreCpuIsSupported(void) {
#if defined(__AVX2__) && defined(__FMA__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

void TfiCoreCudnnVersion(TfiCoreSink version) {
  std::string text;
#ifdef TF_INTEROP_HAS_CUDNN
  try {
    const tf_interop::CudnnLibrary* library = nullptr;
    if (tf_interop::CudnnLibrary::Get(&library).ok()) text = library->version();
  } catch (const std::exception&) {
    text.clear();  // no memory to say more
  }
#endif
  tf_interop::Give(text, version);
}

int TfiCoreOpen(const char* backend, TfiCoreDevice** device, TfiCoreSink error) {
  return tf_interop::Report(error, [&] { return tf_interop::OpenDevice(backend, device); });
}

int TfiCoreDescribe(TfiCoreDevice* device, TfiCoreDeviceDescription* description, TfiCoreSink name,
                    TfiCoreSink compute_capability, TfiCoreSink cudnn, TfiCoreSink cuda,
                    TfiCoreSink error) {
  return tf_interop::Report(error, [&]() -> Status {
    tf_interop::DeviceDescription described;
    std::lock_guard<std::mutex> lock(device->mutex);
    TF_INTEROP_RETURN_IF_ERROR(device->device->Describe(&described));
    const tf_interop::SmLimits limits = described.sm_limits.value_or(tf_interop::SmLimits());
    *description = {described.memory_bytes,
                    described.sm_count,
                    limits.registers,
                    limits.shared_memory_bytes,
                    limits.threads,
                    limits.blocks,
                    limits.reserved_shared_memory_bytes};
    tf_interop::Give(described.name, name);
    tf_interop::Give(described.compute_capability, compute_capability);
    tf_interop::Give(described.cudnn, cudnn);
    tf_interop::Give(described.cuda, cuda);
    return Status::Ok();
  });
}

int TfiCoreListAlgorithms(TfiCoreDevice* device, const TfiCoreConvolution* convolution,
                          int32_t scope, int32_t allow_tf32, TfiCoreSink algorithm,
                          TfiCoreSink error) {
  return tf_interop::Report(error, [&]() -> Status {
    tf_interop::Convolution c;
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::ToConvolution(*convolution, &c));
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::Validate(c));
    auto which = tf_interop::AlgorithmScope::kAll;
    TF_INTEROP_RETURN_IF_ERROR(
        tf_interop::ToEnum("scope", scope, tf_interop::AlgorithmScope::kKnobs, &which));
    std::vector<std::string> algorithms;
    std::lock_guard<std::mutex> lock(device->mutex);
    tf_interop::Backend* const backend = device->device->backend();
    TF_INTEROP_RETURN_IF_ERROR(backend->ListAlgorithms(c, which, allow_tf32 != 0, &algorithms));
    for (const std::string& each : algorithms) tf_interop::Give(each, algorithm);
    return Status::Ok();
  });
}

int TfiCoreResolveAlgorithm(TfiCoreDevice* device, const TfiCoreConvolution* convolution,
                            const char* algorithm, const TfiCoreMeasureOptions* options,
                            int32_t* reduces_precision, TfiCoreSink resolved, TfiCoreSink error) {
  return tf_interop::Report(error, [&]() -> Status {
    tf_interop::Convolution c;
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::ToConvolution(*convolution, &c));
    tf_interop::ResolvedAlgorithm found;
    std::lock_guard<std::mutex> lock(device->mutex);
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::ResolveAlgorithm(
        device->device.get(), c, algorithm, tf_interop::ToOptions(*options), &found));
    *reduces_precision = found.reduces_precision;
    tf_interop::Give(found.algorithm, resolved);
    return Status::Ok();
  });
}

int TfiCoreMeasureConvolution(TfiCoreDevice* device, const TfiCoreConvolution* convolution,
                              const char* algorithm, const TfiCoreMeasureOptions* options,
                              TfiCoreMeasurement* measurement, TfiCoreSink ran,
                              TfiCoreKernelSink kernel, TfiCoreSink trace_error,
                              TfiCoreSink error) {
  return tf_interop::Report(error, [&]() -> Status {
    tf_interop::Convolution c;
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::ToConvolution(*convolution, &c));
    tf_interop::Measurement measured;
    std::lock_guard<std::mutex> lock(device->mutex);
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::MeasureConvolution(device->device.get(), c, algorithm,
                                                              tf_interop::ToOptions(*options),
                                                              &device->problems, &measured));
    *measurement = {measured.time.median_us,
                    measured.time.spread_us,
                    measured.relative_error.value_or(-1),
                    static_cast<int64_t>(measured.workspace_bytes),
                    measured.copies,
                    measured.is_deterministic,
                    measured.reduces_precision};
    tf_interop::Give(measured.algorithm, ran);
    for (const auto& each : measured.kernels) tf_interop::GiveKernel(each, kernel);
    if (!measured.trace_error.empty()) tf_interop::Give(measured.trace_error, trace_error);
    return Status::Ok();
  });
}

int TfiCoreMeasureStage(TfiCoreDevice* device, const TfiCoreStage* stage,
                        const TfiCoreMeasureOptions* options, TfiCoreStageMeasurement* measurement,
                        int32_t* sm_counts, size_t* sm_count_count, TfiCoreSink ran,
                        TfiCoreSink ran_in_sequence, TfiCoreSink error) {
  return tf_interop::Report(error, [&]() -> Status {
    tf_interop::StageRequest request;
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::ToRequest(*stage, &request));
    tf_interop::StageMeasurement measured;
    std::lock_guard<std::mutex> lock(device->mutex);
    TF_INTEROP_RETURN_IF_ERROR(tf_interop::MeasureStage(
        device->device.get(), request, tf_interop::ToOptions(*options), &measured));
    *measurement = {measured.concurrent.median_us,
                    measured.concurrent.spread_us,
                    measured.same_sequential.median_us,
                    measured.same_sequential.spread_us,
                    measured.sequential.median_us,
                    measured.sequential.spread_us,
                    static_cast<int64_t>(measured.workspace_bytes),
                    measured.copies};
    *sm_count_count = std::min(measured.sm_counts.size(), stage->lane_count);
    std::copy_n(measured.sm_counts.begin(), *sm_count_count, sm_counts);
    for (const std::string& algorithm : measured.algorithms) tf_interop::Give(algorithm, ran);
    for (const std::string& algorithm : measured.sequential_algorithms) {
      tf_interop::Give(algorithm, ran_in_sequence);
    }
    return Status::Ok();
  });
}
