#include "cc_kernels/core/c_api.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/host/backend.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/measure/timing.h"
#ifdef TF_INTEROP_HAS_CUDNN
#include "cc_kernels/core/cudnn/libraries.h"
#endif

struct TfiDevice {
  std::unique_ptr<tf_interop::HostBackend> host_backend;
  std::unique_ptr<tf_interop::MeasuringDevice> device;
  tf_interop::KeptProblem problem;
  std::mutex mutex;  // held while anything uses the device
};

namespace tf_interop {
namespace {

void Give(const std::string& text, TfiSink sink) { sink(text.data(), text.size()); }

// Turns a failure of `work`, or an exception, into an error code and a message.
template <typename Work>
int Report(TfiSink error, const Work& work) {
  const auto fail = [&](StatusCode code, const char* message) {
    // Not a std::string, because memory may have run out.
    error(message, std::char_traits<char>::length(message));
    return static_cast<int>(code);
  };
  try {
    const Status status = work();
    if (!status.ok()) Give(status.message(), error);
    return static_cast<int>(status.code());
  } catch (const std::bad_alloc&) {
    return fail(StatusCode::kResourceExhausted, "Out of host memory.");
  } catch (const std::exception& exception) {
    return fail(StatusCode::kInternal, exception.what());
  }
}

// Does the same for `work` on the device.
template <typename Work>
int ReportOn(TfiDevice* device, TfiSink error, const Work& work) {
  return Report(error, [&]() -> Status {
    std::lock_guard<std::mutex> lock(device->mutex);
    return work(device->device.get());
  });
}

Status OpenCudnn(TfiDevice* opened) {
#ifdef TF_INTEROP_HAS_CUDNN
  return OpenCudaDevice(&opened->device);
#else
  (void)opened;
  return Unavailable(
      "This library was built without the cudnn backend. Build it where the CUDA and cuDNN headers "
      "are found.");
#endif
}

Status OpenDevice(const std::string& backend, TfiDevice** device) {
  // Never destroyed: the cudnn backend cannot free its objects safely while the process ends.
  static auto* const mutex = new std::mutex();
  static auto* const devices = new std::map<std::string, std::unique_ptr<TfiDevice>>();
  std::lock_guard<std::mutex> lock(*mutex);
  const auto found = devices->find(backend);
  if (found != devices->end()) {
    *device = found->second.get();
    return Status::Ok();
  }
  auto opened = std::make_unique<TfiDevice>();
  if (backend == "host") {
    opened->host_backend = std::make_unique<HostBackend>();
    opened->device = std::make_unique<HostMeasuringDevice>(opened->host_backend.get());
  } else if (backend == "cudnn") {
    TF_INTEROP_RETURN_IF_ERROR(OpenCudnn(opened.get()));
  } else {
    return InvalidArgument("Expected backend host or cudnn, got '" + backend + "'.");
  }
  *device = opened.get();
  devices->emplace(backend, std::move(opened));
  return Status::Ok();
}

// Python has checked the enumerators.
Convolution ToConvolution(const TfiConvolution& from) {
  Convolution c;
  static_cast<TfiSizes&>(c) = from.sizes;
  c.kind = static_cast<ConvolutionKind>(from.kind);
  c.dtype = static_cast<DataType>(from.dtype);
  c.layout = static_cast<Layout>(from.layout);
  c.activation = static_cast<Activation>(from.activation);
  c.has_bias = from.has_bias != 0;
  c.leaky_relu_alpha = from.leaky_relu_alpha;
  return c;
}

MeasureOptions ToOptions(const TfiMeasureOptions& from) {
  MeasureOptions options;
  static_cast<TfiMeasureOptions&>(options) = from;
  return options;
}

StageRequest ToRequest(const TfiLane* lanes, size_t lane_count) {
  StageRequest request;
  std::vector<Step>& steps = request.stage.steps;
  for (size_t i = 0; i < lane_count; ++i) {
    Lane lane;
    static_cast<TfiLaneOptions&>(lane) = lanes[i].options;
    for (size_t j = 0; j < lanes[i].step_count; ++j) {
      const TfiStep& from = lanes[i].steps[j];
      lane.steps.push_back(steps.size());
      Step& step = steps.emplace_back();
      step.name = "step " + std::to_string(steps.size() - 1);
      step.algorithm = from.algorithm;
      step.convolution = ToConvolution(from.convolution);
      request.images.push_back(from.image);
      if (from.sequential_algorithm != nullptr) {
        request.sequential_algorithms.emplace_back(from.sequential_algorithm);
      }
    }
    request.stage.lanes.push_back(std::move(lane));
  }
  return request;
}

}  // namespace
}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

int TfiCpuIsSupported(void) {
#if defined(__AVX2__) && defined(__FMA__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

void TfiCudnnVersion(TfiSink version) {
  std::string text;
#ifdef TF_INTEROP_HAS_CUDNN
  try {
    const CudnnLibrary* library = nullptr;
    if (CudnnLibrary::Get(&library).ok()) text = library->version();
  } catch (const std::exception&) {
    text.clear();  // out of memory
  }
#endif
  Give(text, version);
}

int TfiOpen(const char* backend, TfiDevice** device, TfiSink error) {
  return Report(error, [&] { return OpenDevice(backend, device); });
}

int TfiDescribe(TfiDevice* device, TfiDescription* description, TfiSink text, TfiSink error) {
  return ReportOn(device, error, [&](MeasuringDevice* on) -> Status {
    DeviceDescription described;
    TF_INTEROP_RETURN_IF_ERROR(on->Describe(&described));
    *description = static_cast<const TfiDescription&>(described);
    for (const std::string* each :
         {&described.name, &described.compute_capability, &described.cudnn, &described.cuda}) {
      Give(*each, text);
    }
    return Status::Ok();
  });
}

int TfiListAlgorithms(TfiDevice* device, const TfiConvolution* convolution, int32_t scope,
                      int32_t allow_tf32, TfiSink algorithm, TfiSink error) {
  return ReportOn(device, error, [&](MeasuringDevice* on) -> Status {
    const Convolution c = ToConvolution(*convolution);
    TF_INTEROP_RETURN_IF_ERROR(Validate(c));
    std::vector<std::string> algorithms;
    TF_INTEROP_RETURN_IF_ERROR(on->backend()->ListAlgorithms(c, static_cast<AlgorithmScope>(scope),
                                                             allow_tf32 != 0, &algorithms));
    for (const std::string& each : algorithms) Give(each, algorithm);
    return Status::Ok();
  });
}

int TfiResolveAlgorithm(TfiDevice* device, const TfiConvolution* convolution, const char* algorithm,
                        const TfiMeasureOptions* options, int32_t* reduces_precision,
                        TfiSink resolved, TfiSink error) {
  return ReportOn(device, error, [&](MeasuringDevice* on) -> Status {
    const Convolution c = ToConvolution(*convolution);
    std::shared_ptr<const PreparedConvolution> found;
    TF_INTEROP_RETURN_IF_ERROR(ResolveAlgorithm(on, c, algorithm, ToOptions(*options), &found));
    *reduces_precision = found->reduces_precision();
    Give(found->algorithm(), resolved);
    return Status::Ok();
  });
}

int TfiMeasureConvolution(TfiDevice* device, const TfiConvolution* convolution,
                          const char* algorithm, const TfiMeasureOptions* options,
                          TfiMeasurement* measurement, TfiSink ran, TfiKernelSink kernel,
                          TfiSink trace_error, TfiSink error) {
  return ReportOn(device, error, [&](MeasuringDevice* on) -> Status {
    const Convolution c = ToConvolution(*convolution);
    Measurement measured;
    TF_INTEROP_RETURN_IF_ERROR(
        MeasureConvolution(on, c, algorithm, ToOptions(*options), &device->problem, &measured));
    *measurement = static_cast<const TfiMeasurement&>(measured);
    Give(measured.algorithm, ran);
    for (const auto& each : measured.kernels) kernel(each.name.c_str(), &each);
    if (!measured.trace_error.empty()) Give(measured.trace_error, trace_error);
    return Status::Ok();
  });
}

int TfiMeasureStage(TfiDevice* device, const TfiLane* lanes, size_t lane_count,
                    const TfiMeasureOptions* options, TfiStageMeasurement* measurement, TfiSink ran,
                    TfiSink ran_in_sequence, TfiSink error) {
  return ReportOn(device, error, [&](MeasuringDevice* on) -> Status {
    const StageRequest request = ToRequest(lanes, lane_count);
    StageMeasurement measured;
    TF_INTEROP_RETURN_IF_ERROR(MeasureStage(on, request, ToOptions(*options), &measured));
    *measurement = static_cast<const TfiStageMeasurement&>(measured);
    for (const std::string& each : measured.algorithms) Give(each, ran);
    for (const std::string& each : measured.sequential_algorithms) {
      Give(each, ran_in_sequence);
    }
    return Status::Ok();
  });
}
