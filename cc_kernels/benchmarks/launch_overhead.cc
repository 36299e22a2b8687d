// Times a call of a prepared stage on the host: look-up by shapes, fork, launches and join. Prints
// JSON for scripts/benchmark_launch.sh.
//
// Calls are timed in batches, with an untimed synchronization after each batch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"

namespace tf_interop {
namespace {

constexpr int kBatches = 200;
constexpr int kWarmupBatches = 20;
// CUDA enqueues about a thousand calls before it waits for the device.
constexpr int kCallsInBatch = 50;
constexpr PrepareOptions kOptions = {size_t{64} << 20};
// More result addresses than a plan keeps variant packs for, and the distance between them, which
// keeps the alignment that cuDNN's engines prefer.
constexpr size_t kPlaces = 16, kPlaceBytes = 256;

// Appends the median time of each of `works`, which take turns, in nanoseconds.
Status TimeByTurns(MeasuringDevice* device, const std::vector<std::function<Status()>>& works,
                   std::vector<double>* medians) {
  std::vector<std::vector<double>> ns(works.size());
  for (int batch = 0; batch < kWarmupBatches + kBatches; ++batch) {
    for (size_t i = 0; i < works.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int n = 0; n < kCallsInBatch; ++n) TF_INTEROP_RETURN_IF_ERROR(works[i]());
      const std::chrono::duration<double, std::nano> elapsed =
          std::chrono::steady_clock::now() - start;
      TF_INTEROP_RETURN_IF_ERROR(device->Synchronize());
      if (batch >= kWarmupBatches) ns[i].push_back(elapsed.count() / kCallsInBatch);
    }
  }
  for (std::vector<double>& each : ns) {
    std::sort(each.begin(), each.end());
    medians->push_back(each[each.size() / 2]);
  }
  return Status::Ok();
}

// Small, so that the host never waits for the device.
Convolution SmallConvolution() {
  Convolution c;
  c.batch = 1;
  c.image_height = c.image_width = c.output_height = c.output_width = 7;
  c.image_channels = c.filter_height = c.filter_width = 1;
  c.output_channels = 32;
  return c;
}

// Allocates the tensors and the workspace of one convolution. Nothing frees them.
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

// The op caches this for similar calls.
struct KeptStage {
  PreparedStage prepared;
  PreparedStage replayed;  // as a CUDA graph
};

// Makes the cache key of a prepared stage, as the op does from the inputs of every call.
void ReadSignature(const Stage& stage, std::vector<int64_t>* signature) {
  *signature = {static_cast<int64_t>(kOptions.workspace_limit_bytes), kOptions.allow_tf32,
                kOptions.deterministic};
  for (const Step& step : stage.steps) {
    const Convolution& c = step.convolution;
    for (const int64_t dimension : {c.batch, c.image_height, c.image_width, c.image_channels,
                                    c.filter_height, c.filter_width, c.output_channels}) {
      signature->push_back(dimension);
    }
  }
}

// Times whole calls of a stage with one small convolution on each of `lane_count` lanes: with all
// tensors at the addresses of the call before, as TensorFlow's allocator places them in each step
// of a loop; with results at other addresses; and as a CUDA graph.
Status BenchmarkStage(MeasuringDevice* device, int lane_count) {
  Backend* const backend = device->backend();
  const Convolution c = SmallConvolution();
  Stage stage;
  for (int i = 0; i < lane_count; ++i) {
    stage.steps.push_back({"step " + std::to_string(i), c, ""});
    stage.lanes.emplace_back().steps = {static_cast<size_t>(i)};
  }
  auto kept = std::make_shared<KeptStage>();
  setenv("TF_INTEROP_CUDA_GRAPHS", "0", 1);
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, stage, kOptions, &kept->prepared));
  unsetenv("TF_INTEROP_CUDA_GRAPHS");
  TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend, stage, kOptions, &kept->replayed));
  StageBuffers allocated;
  allocated.steps.resize(lane_count);
  allocated.lane_workspaces.resize(lane_count);
  for (int i = 0; i < lane_count; ++i) {
    TF_INTEROP_RETURN_IF_ERROR(Allocate(device, c, kept->prepared.lane_workspace_bytes[i],
                                        &allocated.steps[i], &allocated.lane_workspaces[i]));
  }
  LruCache<std::vector<int64_t>, std::shared_ptr<const KeptStage>> cache(8);
  std::vector<int64_t> signature;
  ReadSignature(stage, &signature);
  cache.Insert(signature, std::move(kept));
  size_t next_place = 0;
  const auto call_on = [&](size_t place, bool is_replayed) {
    ReadSignature(stage, &signature);
    const std::shared_ptr<const KeptStage> found = *cache.Find(signature);
    StageBuffers buffers = allocated;  // each call binds its own
    for (ConvolutionBuffers& step : buffers.steps) {
      step.result = static_cast<char*>(step.result) + place * kPlaceBytes;
    }
    return RunStage(backend, is_replayed ? found->replayed : found->prepared, buffers,
                    device->stream());
  };
  std::vector<double> ns;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(
      device,
      {[&] { return call_on(0, false); }, [&] { return call_on(++next_place % kPlaces, false); },
       [&] { return call_on(0, true); }},
      &ns));
  std::map<std::string, Counters> counters = ReadCountersByDevice();
  for (const auto& [reason, count] : counters[""].fallbacks) {
    return Internal("Expected replays of a CUDA graph, got: " + reason);
  }
  std::printf(
      "%s  {\"lanes\": %d, \"ns\": %.0f, \"with new addresses, ns\": %.0f, \"replayed, ns\": %.0f}",
      lane_count == 1 ? "" : ",\n", lane_count, ns[0], ns[1], ns[2]);
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
  std::printf(
      "{\"cuda\": \"%s\", \"cudnn\": \"%s\", \"libcuda\": \"%s\", \"libcudnn\": \"%s\",\n"
      " \"stages\": [\n",
      description.cuda.c_str(), description.cudnn.c_str(), driver->library.path().c_str(),
      cudnn->library.path().c_str());
  for (const int lane_count : {1, 2, 4, 8}) {
    TF_INTEROP_RETURN_IF_ERROR(BenchmarkStage(device.get(), lane_count));
  }
  std::printf("]}\n");
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
