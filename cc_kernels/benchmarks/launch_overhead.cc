// Host time of launching pinned convolutions, beside that of the cuDNN calls which a launch makes.
// Prints JSON; scripts/benchmark_launch.sh runs it.
//
// What is compared: one launch is recorded by standing in for cuDNN's enqueueing entry points. What
// it called is then called again and again with the same plans, variant packs (which the plan
// keeps) and pointers, which is the least that any program could do. Launches and these bare calls
// take turns, in batches with a synchronization after each that is not timed.
#include <cuda.h>
#include <cudnn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/measure/cuda_device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {
namespace {

constexpr int kBatches = 200;
constexpr int kWarmupBatches = 20;
// Less than what CUDA enqueues without waiting for the device (about a thousand).
constexpr int kLaunchesInBatch = 50;
constexpr PrepareOptions kOptions = {size_t{64} << 20};
constexpr float kOne = 1.0f, kZero = 0.0f;
// More places for results than a plan keeps variant packs for, each further on by what cuDNN's
// engines like their memory aligned to.
constexpr size_t kPlaces = 16, kPlaceBytes = 256;

// The cuDNN calls that enqueue work, in the order in which a launch made them.
struct Recording {
  std::vector<std::function<cudnnStatus_t()>> calls;
  int executions = 0;
};

Recording* recording = nullptr;
CudnnLibrary original;

cudnnStatus_t CUDNNWINAPI RecordExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                        cudnnBackendDescriptor_t pack) {
  recording->calls.emplace_back([=] { return original.cudnnBackendExecute(handle, plan, pack); });
  ++recording->executions;
  return original.cudnnBackendExecute(handle, plan, pack);
}

cudnnStatus_t CUDNNWINAPI RecordTransform(cudnnHandle_t handle, const void* alpha,
                                          const cudnnTensorDescriptor_t x_descriptor, const void* x,
                                          const void* beta,
                                          const cudnnTensorDescriptor_t y_descriptor, void* y) {
  recording->calls.emplace_back([=] {
    return original.cudnnTransformTensor(handle, &kOne, x_descriptor, x, &kZero, y_descriptor, y);
  });
  return original.cudnnTransformTensor(handle, alpha, x_descriptor, x, beta, y_descriptor, y);
}

// Calls `launch` once and records the cuDNN calls that it makes.
Status Record(const std::function<Status()>& launch, Recording* recorded) {
  const CudnnLibrary* found = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&found));
  // The process's table of entry points is const to all but this program, which has one thread.
  auto* const library = const_cast<CudnnLibrary*>(found);
  original = *library;
  recording = recorded;
  library->cudnnBackendExecute = RecordExecute;
  library->cudnnTransformTensor = RecordTransform;
  const Status status = launch();
  *library = original;
  return status;
}

Status Replay(const Recording& recorded) {
  for (const auto& call : recorded.calls) {
    if (call() != CUDNN_STATUS_SUCCESS) return Internal("A recorded call of cuDNN failed.");
  }
  return Status::Ok();
}

// Nanoseconds of one call: the median of the batches, and their 10th and 90th percentile.
struct HostTime {
  double median_ns = 0, low_ns = 0, high_ns = 0;
};

HostTime Summarize(std::vector<double> ns) {
  std::sort(ns.begin(), ns.end());
  return {ns[ns.size() / 2], ns[ns.size() / 10], ns[ns.size() * 9 / 10]};
}

// Times the host's part of each of `works` by turns.
Status TimeByTurns(MeasuringDevice* device, const std::vector<std::function<Status()>>& works,
                   std::vector<HostTime>* times) {
  std::vector<std::vector<double>> ns(works.size());
  for (int batch = 0; batch < kWarmupBatches + kBatches; ++batch) {
    for (size_t i = 0; i < works.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int n = 0; n < kLaunchesInBatch; ++n) TF_INTEROP_RETURN_IF_ERROR(works[i]());
      const std::chrono::duration<double, std::nano> elapsed =
          std::chrono::steady_clock::now() - start;
      TF_INTEROP_RETURN_IF_ERROR(device->Synchronize());
      if (batch >= kWarmupBatches) ns[i].push_back(elapsed.count() / kLaunchesInBatch);
    }
  }
  times->clear();
  for (std::vector<double>& each : ns) times->push_back(Summarize(std::move(each)));
  return Status::Ok();
}

// Small, so that the device is not what the host waits for.
Convolution SmallConvolution(int64_t filter_size, int64_t image_channels) {
  Convolution c;
  c.batch = 1;
  c.image_height = c.image_width = c.output_height = c.output_width = 7;
  c.image_channels = image_channels;
  c.output_channels = 32;
  c.filter_height = c.filter_width = filter_size;
  c.pad_top = c.pad_bottom = c.pad_left = c.pad_right = filter_size / 2;
  return c;
}

// Memory for the tensors and the workspace of one convolution, never freed.
Status Allocate(MeasuringDevice* device, const Convolution& c, size_t workspace_bytes,
                ConvolutionBuffers* buffers, void** workspace) {
  void* image = nullptr;
  void* filter = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(device->Allocate(c.image_elements() * SizeOf(c.dtype), &image));
  TF_INTEROP_RETURN_IF_ERROR(device->Allocate(c.filter_elements() * SizeOf(c.dtype), &filter));
  TF_INTEROP_RETURN_IF_ERROR(device->Allocate(
      c.output_elements() * SizeOf(c.dtype) + kPlaces * kPlaceBytes, &buffers->result));
  TF_INTEROP_RETURN_IF_ERROR(device->Allocate(std::max<size_t>(workspace_bytes, 1), workspace));
  buffers->inputs[0] = image;
  buffers->inputs[1] = filter;
  return Status::Ok();
}

std::string Json(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string Json(const HostTime& time) {
  char text[128];
  std::snprintf(text, sizeof(text), "{\"median_ns\": %.0f, \"p10_ns\": %.0f, \"p90_ns\": %.0f}",
                time.median_ns, time.low_ns, time.high_ns);
  return text;
}

// One convolution, launched with the algorithm that cuDNN prefers for
// it, pinned. `transforms_once`: with the filter transformed beforehand; null where there is no
// such form.
Status BenchmarkLaunch(MeasuringDevice* device, const std::string& name, const Convolution& c,
                       bool transforms_once, std::string* json) {
  Backend* const backend = device->backend();
  std::shared_ptr<const PreparedConvolution> chosen, prepared;
  TF_INTEROP_RETURN_IF_ERROR(backend->Prepare(c, "", kOptions, &chosen));
  TF_INTEROP_RETURN_IF_ERROR(backend->Prepare(c, chosen->algorithm(), kOptions, &prepared));
  ConvolutionBuffers buffers;
  void* workspace = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      Allocate(device, c, prepared->workspace_bytes(), &buffers, &workspace));
  if (transforms_once) {
    if (prepared->transformed_filter_bytes() == 0) {
      *json = "null";
      return Status::Ok();
    }
    void* transformed = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(
        device->Allocate(prepared->transformed_filter_bytes(), &transformed));
    TF_INTEROP_RETURN_IF_ERROR(
        backend->TransformFilter(*prepared, buffers.inputs[1], transformed, device->stream()));
    buffers.transformed_filter = transformed;
  }
  const auto launch = [&] {
    return backend->Launch(*prepared, buffers, workspace, device->stream());
  };
  TF_INTEROP_RETURN_IF_ERROR(launch());  // directs the handle to the stream
  Recording recorded;
  TF_INTEROP_RETURN_IF_ERROR(Record(launch, &recorded));
  std::vector<HostTime> times;
  TF_INTEROP_RETURN_IF_ERROR(
      TimeByTurns(device, {launch, [&] { return Replay(recorded); }}, &times));
  char difference[64];
  std::snprintf(difference, sizeof(difference), "%.0f", times[0].median_ns - times[1].median_ns);
  *json = "{\"name\": " + Json(name) + ", \"algorithm\": " + Json(prepared->algorithm()) +
          ", \"executions\": " + std::to_string(recorded.executions) +
          ", \"transforms\": " + std::to_string(recorded.calls.size() - recorded.executions) +
          ",\n     \"launch\": " + Json(times[0]) + ",\n     \"bare_calls\": " + Json(times[1]) +
          ",\n     \"overhead_ns\": " + difference + "}";
  return Status::Ok();
}

// What a kernel of the op holds of calls that are alike.
struct KeptStage {
  Stage stage;
  PreparedStage prepared;
};

// The numbers that decide what is prepared, as the op reads them from the inputs of every call.
void ReadSignature(const Stage& stage, const PrepareOptions& options,
                   std::vector<int64_t>* signature) {
  signature->clear();
  signature->push_back(static_cast<int64_t>(options.workspace_limit_bytes));
  signature->push_back(options.allow_tf32);
  signature->push_back(options.deterministic);
  for (const Step& step : stage.steps) {
    const Convolution& c = step.convolution;
    for (const int64_t dimension : {c.batch, c.image_height, c.image_width, c.image_channels,
                                    c.filter_height, c.filter_width, c.output_channels}) {
      signature->push_back(dimension);
    }
  }
}

// A stage of one small convolution on each of `lane_count` lanes: a whole call, from the dimensions
// of its inputs to the join. Once with all tensors where they were in the call before, as
// TensorFlow's allocator gives them in every step of a loop, and once with results elsewhere.
Status BenchmarkStage(MeasuringDevice* device, int lane_count, std::string* json) {
  Backend* const backend = device->backend();
  const Convolution c = SmallConvolution(1, 1);
  auto kept = std::make_shared<KeptStage>();
  for (int i = 0; i < lane_count; ++i) {
    kept->stage.steps.push_back({"step " + std::to_string(i), c, ""});
    kept->stage.lanes.push_back({{static_cast<size_t>(i)}});
  }
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, kept->stage, kOptions, &kept->prepared));
  StageBuffers allocated;
  allocated.steps.resize(lane_count);
  allocated.lane_workspaces.resize(lane_count);
  for (int i = 0; i < lane_count; ++i) {
    TF_INTEROP_RETURN_IF_ERROR(Allocate(device, c, kept->prepared.lane_workspace_bytes[i],
                                        &allocated.steps[i], &allocated.lane_workspaces[i]));
  }
  LruCache<std::vector<int64_t>, std::shared_ptr<const KeptStage>> cache(8);
  std::vector<int64_t> signature;
  ReadSignature(kept->stage, kOptions, &signature);
  const Stage inputs = kept->stage;
  cache.Insert(signature, std::move(kept));
  size_t next_place = 0;
  const auto call_on = [&](size_t place) {
    ReadSignature(inputs, kOptions, &signature);
    const std::shared_ptr<const KeptStage> found = cache.Find(signature).value_or(nullptr);
    if (found == nullptr) return Internal("Expected a stage that is kept, got none.");
    StageBuffers buffers = allocated;  // bound anew by each call
    for (ConvolutionBuffers& step : buffers.steps) {
      step.result = static_cast<char*>(step.result) + place * kPlaceBytes;
    }
    return RunStage(backend, found->prepared, buffers, device->stream());
  };
  std::vector<HostTime> times;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(
      device, {[&] { return call_on(0); }, [&] { return call_on(++next_place % kPlaces); }},
      &times));
  *json = "{\"lanes\": " + std::to_string(lane_count) + ", \"call\": " + Json(times[0]) +
          ",\n     \"call_with_new_addresses\": " + Json(times[1]) + "}";
  return Status::Ok();
}

Status Run() {
  std::unique_ptr<MeasuringDevice> device;
  TF_INTEROP_RETURN_IF_ERROR(OpenCudaDevice(&device));
  DeviceDescription description;
  TF_INTEROP_RETURN_IF_ERROR(device->Describe(&description));
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* cudnn = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&cudnn));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(driver->Check(
      driver->cuStreamGetCtx(static_cast<CUstream>(device->stream()), &context), "cuStreamGetCtx"));
  // The bare calls need it; a launch makes it current once more, as it does for any caller.
  ScopedContext scope(*driver, context);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());

  std::vector<std::string> launches(3), stages(4);
  TF_INTEROP_RETURN_IF_ERROR(BenchmarkLaunch(device.get(), "filter transformed by every launch",
                                             SmallConvolution(3, 32), false, &launches[0]));
  TF_INTEROP_RETURN_IF_ERROR(BenchmarkLaunch(device.get(), "filter transformed once",
                                             SmallConvolution(3, 32), true, &launches[1]));
  TF_INTEROP_RETURN_IF_ERROR(BenchmarkLaunch(device.get(), "filter read as it is",
                                             SmallConvolution(1, 1), false, &launches[2]));
  const int lane_counts[] = {1, 2, 4, 8};
  for (size_t i = 0; i < stages.size(); ++i) {
    TF_INTEROP_RETURN_IF_ERROR(BenchmarkStage(device.get(), lane_counts[i], &stages[i]));
  }
  std::printf(
      "{\"device\": %s, \"cuda\": %s, \"cudnn\": %s,\n \"libcuda\": %s, \"libcudnn\": %s,\n"
      " \"batches\": %d, \"launches_in_batch\": %d,\n"
      " \"launches\": [\n    %s,\n    %s,\n    %s],\n \"stages\": [\n    %s,\n    %s,\n    %s,\n   "
      " %s]}\n",
      Json(description.name).c_str(), Json(description.cuda).c_str(),
      Json(description.cudnn).c_str(), Json(driver->library.path()).c_str(),
      Json(cudnn->library.path()).c_str(), kBatches, kLaunchesInBatch, launches[0].c_str(),
      launches[1].c_str(), launches[2].c_str(), stages[0].c_str(), stages[1].c_str(),
      stages[2].c_str(), stages[3].c_str());
  return Status::Ok();
}

}  // namespace
}  // namespace tf_interop

int main() {
  const tf_interop::Status status = tf_interop::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
