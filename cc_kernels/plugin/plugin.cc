#include "cc_kernels/plugin/plugin.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/self_timing.h"
#include "cc_kernels/core/stage_timing.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/plugin/tensorflow_registry.h"
#include "cc_kernels/xla/convolutions.h"
#include "cc_kernels/xla/stock_call.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

// The pass may outlive Grappler's call, so only `item` belongs to Grappler.
struct TfiGraph {
  std::string input;
  const char* device_type = nullptr;
  std::string nodes_to_preserve;
  std::string fetches;

  std::mutex mutex;  // guards the rest; never held while Python is called
  std::condition_variable changed;
  const TF_GrapplerItem* item = nullptr;  // null once Grappler has stopped waiting
  std::unique_ptr<TF_GraphProperties, decltype(&TF_DeleteGraphProperties)> properties = {
      nullptr, TF_DeleteGraphProperties};  // made on first use
  bool has_begun = false;                  // the pass has the interpreter and the graph
  bool is_over = false;
  std::unique_ptr<TF_Buffer, decltype(&TF_DeleteBuffer)> result = {nullptr, TF_DeleteBuffer};
};

namespace tf_interop {
namespace {

std::atomic<TfiPass> global_pass{nullptr};
std::atomic<TfiIsInterpreterHeld> global_is_interpreter_held{nullptr};
std::atomic<double> global_time_limit_s{0};

// A thread of the program may hold the interpreter while it waits for TensorFlow's thread, which
// would be a deadlock. tf.random.set_seed does so under asynchronous execution.
constexpr std::chrono::seconds kLongestWaitForInterpreter{5};
constexpr double kForEverS = 1e9;

// The plugin's state for a graph.
struct Optimizer {
  const char* device_type = nullptr;
  // Grappler runs its passes twice. The second round may still fuse nodes, such as a sigmoid and a
  // product, so the plugin waits for it.
  bool is_second_round = false;
};

// Whether the graph's bytes may name a convolution op (Conv2D…, DepthwiseConv2d…, Conv3D…). Most of
// TensorFlow's many helper graphs do not, and are skipped without being parsed.
bool MayHoldConvolution(const TF_Buffer& graph) {
  const char* position = static_cast<const char*>(graph.data);
  const char* const end = position + graph.length;
  constexpr char kStem[] = "Conv";
  constexpr size_t kStemSize = sizeof(kStem) - 1;
  while (true) {
    position = static_cast<const char*>(memmem(position, end - position, kStem, kStemSize));
    if (position == nullptr || end - position < static_cast<ptrdiff_t>(kStemSize) + 2) return false;
    position += kStemSize;
    const bool counts_dimensions = position[0] == '2' || position[0] == '3';
    if (counts_dimensions && (position[1] == 'D' || position[1] == 'd')) return true;
  }
}

// Grappler's C API for a list of names.
using GetListSize = void (*)(const TF_GrapplerItem*, int*, size_t*, TF_Status*);
using GetList = void (*)(const TF_GrapplerItem*, char**, size_t*, int, void*, size_t, TF_Status*);

// Ends each name with a line feed; node names contain none.
std::string ReadNames(GetListSize get_size, GetList get, const TF_GrapplerItem* item,
                      TF_Status* status) {
  int count = 0;
  size_t storage_size = 0;
  get_size(item, &count, &storage_size, status);
  if (TF_GetCode(status) != TF_OK) return "";
  std::vector<char*> names(count);
  std::vector<size_t> lengths(count);
  std::vector<char> storage(storage_size);
  get(item, names.data(), lengths.data(), count, storage.data(), storage_size, status);
  if (TF_GetCode(status) != TF_OK) return "";
  std::string text;
  for (int i = 0; i < count; ++i) text.append(names[i], lengths[i]).push_back('\n');
  return text;
}

// Waits for the end of the pass. Returns false if it does not get the interpreter or takes too
// long.
bool WaitForPass(TfiGraph* graph) {
  std::unique_lock<std::mutex> lock(graph->mutex);
  const auto is_over = [graph] { return graph->is_over; };
  const auto has_begun = [graph] { return graph->has_begun || graph->is_over; };
  if (!graph->changed.wait_for(lock, kLongestWaitForInterpreter, has_begun)) return false;
  const std::chrono::duration<double> limit(std::min(global_time_limit_s.load(), kForEverS));
  // The pass also checks its time, and should fail first, because its error tells more.
  return graph->changed.wait_for(lock, limit + kLongestWaitForInterpreter, is_over);
}

void RunPass(TfiPass pass, const std::shared_ptr<TfiGraph>& graph) {
  const auto run = [pass, graph] {
    const bool changed = pass(graph.get(), graph->device_type, graph->nodes_to_preserve.c_str(),
                              graph->fetches.c_str()) == 1;
    std::lock_guard<std::mutex> lock(graph->mutex);
    if (!changed) graph->result.reset();
    graph->is_over = true;
    graph->changed.notify_all();
  };
  const TfiIsInterpreterHeld is_interpreter_held = global_is_interpreter_held.load();
  if (is_interpreter_held == nullptr || is_interpreter_held() != 0) return run();
  std::thread thread;
  try {
    thread = std::thread(run);
  } catch (const std::system_error&) {  // no more threads
    return run();
  }
  if (WaitForPass(graph.get())) {
    thread.join();
  } else {
    thread.detach();
  }
}

// Aborted tells Grappler that the graph stays as it is.
void SetUnchanged(TF_Status* status) { TF_SetStatus(status, TF_ABORTED, "Nothing to do."); }

void Optimize(void* created, const TF_Buffer* input, const TF_GrapplerItem* item, TF_Buffer* output,
              TF_Status* status) {
  auto* const optimizer = static_cast<Optimizer*>(created);
  const bool is_second_round = std::exchange(optimizer->is_second_round, true);
  const TfiPass pass = global_pass.load();
  if (!is_second_round || pass == nullptr || !MayHoldConvolution(*input) ||
      !AllowsNonDifferentiableRewrites(item)) {
    return SetUnchanged(status);
  }
  const auto graph = std::make_shared<TfiGraph>();
  graph->nodes_to_preserve =
      ReadNames(TF_GetNodesToPreserveListSize, TF_GetNodesToPreserveList, item, status);
  if (TF_GetCode(status) != TF_OK) return;
  graph->fetches = ReadNames(TF_GetFetchNodesListSize, TF_GetFetchNodesList, item, status);
  if (TF_GetCode(status) != TF_OK) return;
  graph->input.assign(static_cast<const char*>(input->data), input->length);
  graph->device_type = optimizer->device_type;
  graph->item = item;
  RunPass(pass, graph);
  std::lock_guard<std::mutex> lock(graph->mutex);
  graph->item = nullptr;
  graph->properties.reset();
  if (!graph->is_over || graph->result == nullptr) return SetUnchanged(status);
  std::swap(*output, *graph->result);
  TF_SetStatus(status, TF_OK, "");
}

constexpr char kCpu[] = "CPU", kGpu[] = "GPU";

// A template, because neither this function nor Grappler's create function gets the device type.
template <const char* device_type>
void Init(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->device_type = device_type;
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->optimizer->create_func = []() -> void* { return new Optimizer{device_type}; };
  params->optimizer->optimize_func = Optimize;
  params->optimizer->destroy_func = [](void* created) { delete static_cast<Optimizer*>(created); };
  TF_SetStatus(status, TF_OK, "");
}

}  // namespace
}  // namespace tf_interop

extern "C" {

const char* TfiRegisterPlugin(const char* device_type) {
  static auto* const mutex = new std::mutex();
  static auto* const registered = new std::set<std::string>();
  thread_local std::string error;
  std::lock_guard<std::mutex> lock(*mutex);
  const std::string type = device_type;
  if (registered->count(type) > 0) return nullptr;
  if (type != tf_interop::kCpu && type != tf_interop::kGpu) {
    error = "Expected device type CPU or GPU, got " + type + ".";
  } else if (tf_interop::HasGraphPlugin(type)) {  // TensorFlow would end the process
    error = "Another graph-optimizer plugin is registered for device type " + type +
            ", and TensorFlow accepts only one. Uninstall that plugin (a package under "
            "site-packages/tensorflow-plugins), or use tf_interop in a process without it.";
  } else {
    using tf_interop::kCpu, tf_interop::kGpu;
    const absl::Status status = tf_interop::RegisterGraphPlugin(
        type == kCpu ? tf_interop::Init<kCpu> : tf_interop::Init<kGpu>);
    if (status.ok()) {
      registered->insert(type);
      return nullptr;
    }
    error = absl::StrCat("TensorFlow refused the plugin for device type ", type, ": ",
                         status.message());
  }
  return error.c_str();
}

void TfiSetPass(TfiPass pass, TfiIsInterpreterHeld is_interpreter_held, double time_limit_s) {
  tf_interop::global_is_interpreter_held.store(is_interpreter_held);
  tf_interop::global_time_limit_s.store(time_limit_s);
  tf_interop::global_pass.store(pass);
}

int TfiGraphData(TfiGraph* graph, TfiSink sink) {
  {
    std::lock_guard<std::mutex> lock(graph->mutex);
    graph->has_begun = true;
    graph->changed.notify_all();
    if (graph->item == nullptr) return 0;
  }
  sink(graph->input.data(), graph->input.size());
  return 1;
}

int TfiOutputProperties(TfiGraph* graph, const char* node, TfiSink sink) {
  const std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status(TF_NewStatus(),
                                                                      TF_DeleteStatus);
  std::vector<std::unique_ptr<TF_Buffer, decltype(&TF_DeleteBuffer)>> buffers;
  {
    std::lock_guard<std::mutex> lock(graph->mutex);
    if (graph->item == nullptr) return -1;
    if (graph->properties == nullptr) {
      graph->properties.reset(TF_NewGraphProperties(graph->item));
      TF_InferStatically(graph->properties.get(), /*assume_valid_feeds=*/0,
                         /*aggressive_shape_inference=*/0, /*include_input_tensor_values=*/0,
                         /*include_output_tensor_values=*/0, status.get());
      if (TF_GetCode(status.get()) != TF_OK) return -1;
    }
    int count = 0;
    TF_GetOutputPropertiesListSize(graph->properties.get(), node, &count, status.get());
    if (TF_GetCode(status.get()) != TF_OK || count == 0) return -1;
    std::vector<TF_Buffer*> list;
    for (int i = 0; i < count; ++i)
      list.push_back(buffers.emplace_back(TF_NewBuffer(), TF_DeleteBuffer).get());
    TF_GetOutputPropertiesList(graph->properties.get(), node, list.data(), count, status.get());
    if (TF_GetCode(status.get()) != TF_OK) return -1;
  }
  for (const auto& buffer : buffers) sink(buffer->data, buffer->length);
  return static_cast<int>(buffers.size());
}

int TfiSetResult(TfiGraph* graph, const void* data, size_t size) {
  std::lock_guard<std::mutex> lock(graph->mutex);
  if (graph->item == nullptr) return 0;
  graph->result.reset(TF_NewBufferFromString(data, size));
  return 1;
}

void TfiReadCounters(TfiSink sink) {
  for (const auto& [device, counters] : tf_interop::ReadCountersByDevice()) {
    const auto give = [&, of_device = absl::StrCat(" ", device, " ")](
                          const char* what, int64_t count, const std::string& reason = "") {
      const std::string text = absl::StrCat(what, of_device, count, " ", reason);
      sink(text.data(), text.size());
    };
    give("stages_run", counters.stages_run);
    give("filters_transformed", counters.filters_transformed);
    give("stages_captured", counters.stages_captured);
    give("stages_replayed", counters.stages_replayed);
    give("kept_computations", counters.kept_computations);
    give("kept_bytes", counters.kept_bytes);
    for (const auto& [reason, count] : counters.fallbacks) give("fallback", count, reason);
    for (const auto& [reason, count] : counters.refused_lane_options) {
      give("refused_lane_options", count, reason);
    }
  }
}

void TfiRecordTimeline(int calls) { tf_interop::RecordTimeline(calls); }

void TfiReadTimeline(TfiSink sink) {
  tf_interop::ReadTimeline([sink](const std::string& op, int call,
                                  const tf_interop::TimelineSpan& span, int64_t begin_ns,
                                  int64_t end_ns) {
    static constexpr const char* kRows[] = {"stage", "lane", "thread"};
    const std::string text =
        absl::StrCat(kRows[static_cast<int>(span.row)], "\n", span.number, "\n", op, "\n", call,
                     "\n", span.name, "\n", span.algorithm, "\n", begin_ns, "\n", end_ns);
    sink(text.data(), text.size());
  });
}

void TfiReadSelfTimings(TfiSink sink) {
  using tf_interop::SelfTiming;
  tf_interop::ReadSelfTimings([sink](const std::string& graph, const SelfTiming::Report& report) {
    std::string text =
        absl::StrCat(graph, "\n", absl::StrJoin(report.sizes, "x"), "\n", report.cores, "\n",
                     report.is_trying ? 1 : 0, "\n", report.share_lost);
    for (const SelfTiming::Way& way : report.ways) {
      absl::StrAppend(&text, "\n", way.cores, "\n", way.median_us, "\n", way.steps);
    }
    sink(text.data(), text.size());
  });
}

void TfiReadStageTimings(TfiSink sink) {
  using tf_interop::StageTiming;
  tf_interop::ReadStageTimings([sink](const StageTiming::Report& report) {
    const auto name_of = [](StageTiming::Way way) {
      return StageTiming::kWayNames[static_cast<int>(way)];
    };
    std::string text = absl::StrCat(report.name, "\n", report.sizes, "\n", name_of(report.way),
                                    "\n", report.is_trying ? 1 : 0, "\n", report.share_lost);
    for (const StageTiming::TimedWay& each : report.ways) {
      absl::StrAppend(&text, "\n", name_of(each.way), "\n", each.median_us, "\n", each.calls);
    }
    sink(text.data(), text.size());
  });
}

void TfiSetXlaCalls(int is_on) { tf_interop::SetStockConvolutions(is_on != 0); }

void TfiReadXlaCalls(TfiSink sink) {
  const tf_interop::CompiledConvolutions compiled = tf_interop::ReadCompiledConvolutions();
  const std::string text = absl::StrCat(compiled.as_calls, " ", compiled.refused, " ",
                                        compiled.left, " ", tf_interop::StockCallCount());
  sink(text.data(), text.size());
}

void TfiSetWorkspaceLimit(int64_t bytes) {
  tf_interop::stage_workspace_limit_bytes =
      bytes < 0 ? tf_interop::kNoWorkspaceLimit : static_cast<size_t>(bytes);
}

int TfiCpuIsSupported(void) {
#if defined(__AVX2__) && defined(__FMA__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

}  // extern "C"
