#include "cc_kernels/plugin/plugin.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
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
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/plugin/tensorflow_registry.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/core/framework/node_def.pb.h"

// The pass may outlive the call by Grappler, so nothing of it is Grappler's but `item`.
struct TfiGraph {
  std::string input;
  const char* device_type = nullptr;
  std::string nodes_to_preserve;
  std::string fetches;

  std::mutex mutex;  // guards the rest; never held while Python is called
  std::condition_variable changed;
  const TF_GrapplerItem* item = nullptr;     // null once Grappler waits no more
  TF_GraphProperties* properties = nullptr;  // made on first use
  bool has_begun = false;                    // the pass has the interpreter, and read the graph
  bool is_over = false;
  bool has_result = false;
  void* result = nullptr;
  size_t result_size = 0;

  ~TfiGraph() { free(result); }
};

namespace tf_interop {
namespace {

std::atomic<TfiPass> global_pass{nullptr};
std::atomic<TfiIsInterpreterHeld> global_is_interpreter_held{nullptr};
std::atomic<double> global_time_limit_s{0};

// A thread of the program that waits for this very function while it holds the interpreter, as
// tf.random.set_seed does under asynchronous execution, would wait for ever.
constexpr std::chrono::seconds kLongestWaitForInterpreter{5};
constexpr double kForEverS = 1e9;

// What Grappler makes of the plugin for a graph. Its create function takes no argument, so each
// device type that the plugin serves has one of its own.
struct Optimizer {
  const char* device_type = nullptr;
  // Grappler goes through its passes twice. What the first round leaves the second may still fuse,
  // a sigmoid and a product for example; so the graph is left alone until then.
  bool is_second_round = false;
};
void* CreateForCpu() { return new Optimizer{"CPU"}; }
void* CreateForGpu() { return new Optimizer{"GPU"}; }
void Destroy(void* optimizer) { delete static_cast<Optimizer*>(optimizer); }

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;

struct BufferDeleter {
  void operator()(TF_Buffer* buffer) const { TF_DeleteBuffer(buffer); }
};
using BufferPtr = std::unique_ptr<TF_Buffer, BufferDeleter>;

// True if some text of the graph may name a convolution op (Conv2D…, DepthwiseConv2d…, Conv3D…).
// Helper graphs, of which TensorFlow hands over many, fail this and are left without being parsed.
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

// How the C API of Grappler hands over a list of names.
using GetListSize = void (*)(const TF_GrapplerItem*, int*, size_t*, TF_Status*);
using GetList = void (*)(const TF_GrapplerItem*, char**, size_t*, int, void*, size_t, TF_Status*);

// Each name with a line feed after it; node names hold none.
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

void FreeResult(void* data, size_t) { free(data); }

// Waits until the pass is over. False if it does not get the interpreter, or takes too long.
bool WaitForPass(TfiGraph* graph) {
  std::unique_lock<std::mutex> lock(graph->mutex);
  const auto is_over = [graph] { return graph->is_over; };
  const auto has_begun = [graph] { return graph->has_begun || graph->is_over; };
  if (!graph->changed.wait_for(lock, kLongestWaitForInterpreter, has_begun)) return false;
  const double limit_s = global_time_limit_s.load();
  if (limit_s >= kForEverS) {
    graph->changed.wait(lock, is_over);
    return true;
  }
  // The pass looks at the clock too, and says more; it comes first.
  return graph->changed.wait_for(
      lock, std::chrono::duration<double>(limit_s) + kLongestWaitForInterpreter, is_over);
}

void RunPass(TfiPass pass, const std::shared_ptr<TfiGraph>& graph) {
  const auto run = [pass, graph] {
    const bool changed = pass(graph.get()) == 1;
    std::lock_guard<std::mutex> lock(graph->mutex);
    graph->has_result = graph->has_result && changed;
    graph->is_over = true;
    graph->changed.notify_all();
  };
  const TfiIsInterpreterHeld is_interpreter_held = global_is_interpreter_held.load();
  if (is_interpreter_held == nullptr || is_interpreter_held() != 0) return run();
  std::thread thread;
  try {
    thread = std::thread(run);
  } catch (const std::system_error&) {  // The process may start no more threads.
    return run();
  }
  if (WaitForPass(graph.get())) {
    thread.join();
  } else {
    thread.detach();
  }
}

// Aborted tells Grappler that the graph stays as it is.
void SetUnchanged(TF_Status* status) { TF_SetStatus(status, TF_ABORTED, "Nothing to be done."); }

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
  TF_DeleteGraphProperties(std::exchange(graph->properties, nullptr));
  if (!graph->is_over || !graph->has_result) return SetUnchanged(status);
  output->data = std::exchange(graph->result, nullptr);
  output->length = graph->result_size;
  output->data_deallocator = FreeResult;
  TF_SetStatus(status, TF_OK, "");
}

void FillParams(TP_OptimizerRegistrationParams* params, const char* device_type,
                void* (*create)()) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->device_type = device_type;
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->optimizer->create_func = create;
  params->optimizer->optimize_func = Optimize;
  params->optimizer->destroy_func = Destroy;
}

void InitCpu(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  FillParams(params, "CPU", CreateForCpu);
  TF_SetStatus(status, TF_OK, "");
}

void InitGpu(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  FillParams(params, "GPU", CreateForGpu);
  TF_SetStatus(status, TF_OK, "");
}

// Empty, or why the plugin was not registered.
std::string Register(const std::string& device_type) {
  static auto* const mutex = new std::mutex();
  static auto* const registered = new std::set<std::string>();
  std::lock_guard<std::mutex> lock(*mutex);
  if (device_type != "CPU" && device_type != "GPU") {
    return "Expected device type CPU or GPU, got " + device_type + ".";
  }
  if (registered->count(device_type) > 0) return "";
  // TensorFlow ends the process when a device type gets a second plugin, so look first.
  if (HasGraphPlugin(device_type)) {
    return "Another graph-optimizer plugin is registered for device type " + device_type +
           ", and TensorFlow takes one only. Uninstall that plugin (a package under "
           "site-packages/tensorflow-plugins), or use tf_interop in a process without it.";
  }
  const absl::Status status = RegisterGraphPlugin(device_type == "CPU" ? InitCpu : InitGpu);
  if (!status.ok()) {
    return "TensorFlow refused the plugin for device type " + device_type + ": " +
           std::string(status.message());
  }
  registered->insert(device_type);
  return "";
}

}  // namespace
}  // namespace tf_interop

extern "C" {

// The entry point that TensorFlow looks for in a plugin library: the GPU's plugin.
TFI_EXPORT void TF_InitGraph(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  tf_interop::InitGpu(params, status);
}

const char* TfiRegisterPlugin(const char* device_type) {
  const std::string error = tf_interop::Register(device_type);
  if (error.empty()) return nullptr;
  thread_local std::string kept;
  kept = error;
  return kept.c_str();
}

void TfiSetPass(TfiPass pass, TfiIsInterpreterHeld is_interpreter_held, double time_limit_s) {
  tf_interop::global_is_interpreter_held.store(is_interpreter_held);
  tf_interop::global_time_limit_s.store(time_limit_s);
  tf_interop::global_pass.store(pass);
}

const void* TfiGraphData(TfiGraph* graph) {
  std::lock_guard<std::mutex> lock(graph->mutex);
  graph->has_begun = true;
  graph->changed.notify_all();
  return graph->item == nullptr ? nullptr : graph->input.data();
}
size_t TfiGraphSize(const TfiGraph* graph) { return graph->input.size(); }
const char* TfiGraphDeviceType(const TfiGraph* graph) { return graph->device_type; }
const char* TfiGraphNodesToPreserve(const TfiGraph* graph) {
  return graph->nodes_to_preserve.c_str();
}
const char* TfiGraphFetches(const TfiGraph* graph) { return graph->fetches.c_str(); }

int TfiOutputProperties(TfiGraph* graph, const char* node, TfiSink sink) {
  const tf_interop::StatusPtr status(TF_NewStatus());
  std::vector<tf_interop::BufferPtr> buffers;
  {
    std::lock_guard<std::mutex> lock(graph->mutex);
    if (graph->item == nullptr) return -1;
    if (graph->properties == nullptr) {
      graph->properties = TF_NewGraphProperties(graph->item);
      TF_InferStatically(graph->properties, /*assume_valid_feeds=*/0,
                         /*aggressive_shape_inference=*/0, /*include_input_tensor_values=*/0,
                         /*include_output_tensor_values=*/0, status.get());
      if (TF_GetCode(status.get()) != TF_OK) return -1;
    }
    int count = 0;
    TF_GetOutputPropertiesListSize(graph->properties, node, &count, status.get());
    if (TF_GetCode(status.get()) != TF_OK || count == 0) return -1;
    std::vector<TF_Buffer*> list;
    for (int i = 0; i < count; ++i) list.push_back(buffers.emplace_back(TF_NewBuffer()).get());
    TF_GetOutputPropertiesList(graph->properties, node, list.data(), count, status.get());
    if (TF_GetCode(status.get()) != TF_OK) return -1;
  }
  for (const auto& buffer : buffers) sink(buffer->data, buffer->length);
  return static_cast<int>(buffers.size());
}

int TfiSetResult(TfiGraph* graph, const void* data, size_t size) {
  std::lock_guard<std::mutex> lock(graph->mutex);
  if (graph->item == nullptr) return 0;
  free(graph->result);
  graph->result = malloc(size);
  graph->has_result = graph->result != nullptr;
  graph->result_size = size;
  if (graph->has_result) memcpy(graph->result, data, size);
  return 1;
}

void TfiReadCounters(TfiSink sink) {
  const auto give = [sink](const std::string& text) { sink(text.data(), text.size()); };
  for (const auto& [device, counters] : tf_interop::ReadCountersByDevice()) {
    const std::string of_device = " " + device + " ";
    give("stages_run" + of_device + std::to_string(counters.stages_run));
    give("filters_transformed" + of_device + std::to_string(counters.filters_transformed));
    give("stages_captured" + of_device + std::to_string(counters.stages_captured));
    give("stages_replayed" + of_device + std::to_string(counters.stages_replayed));
    for (const auto& [reason, count] : counters.fallbacks) {
      give("fallback" + of_device + std::to_string(count) + " " + reason);
    }
    for (const auto& [reason, count] : counters.refused_lane_options) {
      give("refused_lane_options" + of_device + std::to_string(count) + " " + reason);
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

void TfiSetWorkspaceLimit(int64_t bytes) {
  tf_interop::SetStageWorkspaceLimit(bytes < 0 ? tf_interop::kNoWorkspaceLimit
                                               : static_cast<size_t>(bytes));
}

int TfiRenameForOneDnn(const void* node, size_t size, int has_constant_filter, TfiSink sink) {
  tensorflow::NodeDef renamed;
  if (!renamed.ParseFromArray(node, static_cast<int>(size))) return 0;
  tf_interop::RenameForOneDnn(has_constant_filter != 0, &renamed);
  const std::string serialized = renamed.SerializeAsString();
  sink(serialized.data(), serialized.size());
  return 1;
}

int TfiCpuIsSupported(void) {
#if defined(__AVX2__) && defined(__FMA__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 1;
#endif
}

}  // extern "C"
