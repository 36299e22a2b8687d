#include "cc_kernels/plugin/graph_pass.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cc_kernels/plugin/plugin.h"
#include "cc_kernels/plugin/tensorflow_registry.h"

// The pass may outlive Grappler's call, so only `item` belongs to TensorFlow.
struct TfiGraph {
  std::string input;
  const char* device_type = nullptr;
  bool is_compiled = false;
  std::string function;
  std::string nodes_to_preserve;
  std::string fetches;

  std::mutex mutex;  // guards the rest; never held while Python is called
  std::condition_variable changed;
  const TF_GrapplerItem* item = nullptr;  // null once TensorFlow has stopped waiting
  std::unique_ptr<TF_GraphProperties, decltype(&TF_DeleteGraphProperties)> properties = {
      nullptr, TF_DeleteGraphProperties};  // made on first use
  bool has_begun = false;                  // the pass has the interpreter and the graph
  bool is_over = false;
  tf_interop::OwnedBuffer result = {nullptr, TF_DeleteBuffer};
};

namespace tf_interop {
namespace {

std::atomic<TfiPass> global_pass{nullptr};
std::atomic<TfiIsInterpreterHeld> global_is_interpreter_held{nullptr};
std::atomic<double> global_time_limit_s{0};
std::atomic<bool> global_takes_products{false};
std::atomic<int64_t> pass_version{0};

// A thread of the program may hold the interpreter while it waits for TensorFlow's thread, which
// would be a deadlock. tf.random.set_seed does so under asynchronous execution.
constexpr std::chrono::seconds kLongestWaitForInterpreter{5};
constexpr double kForEverS = 1e9;

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
    const bool changed =
        pass(graph.get(), graph->device_type, graph->is_compiled ? 1 : 0, graph->function.c_str(),
             graph->nodes_to_preserve.c_str(), graph->fetches.c_str()) == 1;
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

}  // namespace

bool HasPass() { return global_pass.load() != nullptr; }

int64_t PassVersion() { return pass_version; }

bool MayHoldConvolution(absl::string_view graph) {
  const char* position = graph.data();
  const char* const end = position + graph.size();
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

bool IsForPass(absl::string_view graph) {
  return MayHoldConvolution(graph) ||
         (global_takes_products.load() && absl::StrContains(graph, "MatMul"));
}

OwnedBuffer RunGraphPass(const Handed& handed, TF_Status* status) {
  OwnedBuffer result = {nullptr, TF_DeleteBuffer};
  const TfiPass pass = global_pass.load();
  if (pass == nullptr) return result;
  const auto graph = std::make_shared<TfiGraph>();
  graph->nodes_to_preserve =
      ReadNames(TF_GetNodesToPreserveListSize, TF_GetNodesToPreserveList, handed.item, status);
  if (TF_GetCode(status) != TF_OK) return result;
  graph->fetches = ReadNames(TF_GetFetchNodesListSize, TF_GetFetchNodesList, handed.item, status);
  if (TF_GetCode(status) != TF_OK) return result;
  graph->input = std::string(handed.graph);
  graph->device_type = handed.device_type;
  graph->is_compiled = handed.is_compiled;
  graph->function = FunctionOf(handed.item);
  graph->item = handed.item;
  RunPass(pass, graph);
  std::lock_guard<std::mutex> lock(graph->mutex);
  graph->item = nullptr;
  graph->properties.reset();
  if (graph->is_over) result = std::move(graph->result);
  return result;
}

}  // namespace tf_interop

extern "C" {

void TfiSetPass(TfiPass pass, TfiIsInterpreterHeld is_interpreter_held, double time_limit_s,
                int takes_products) {
  tf_interop::global_is_interpreter_held.store(is_interpreter_held);
  tf_interop::global_takes_products.store(takes_products != 0);
  tf_interop::global_time_limit_s.store(time_limit_s);
  tf_interop::global_pass.store(pass);
  ++tf_interop::pass_version;
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

}  // extern "C"
