#include "cc_kernels/tf/inline_executor.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/graph/graph.h"
#include "tsl/platform/denormal.h"
#include "tsl/platform/setround.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tf_interop {
namespace {

using tensorflow::Executor;

// The pool of a run on the calling thread; null outside.
const Runner*& PoolOfThisThread() {
  static thread_local const Runner* pool = nullptr;
  return pool;
}

// oneDNN keeps its primitives for each thread. A thread that makes a few calls and ends, as in some
// servers, would make them anew.
bool IsThreadThatStays() {
#if defined(__linux__)
  if (getpid() == syscall(SYS_gettid)) return true;
#endif
  constexpr int kCalls = 50;
  static thread_local int calls = 0;
  if (calls < kCalls) ++calls;
  return calls == kCalls;
}

class InlineExecutor : public Executor {
 public:
  explicit InlineExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override {
    if (!IsThreadThatStays()) {
      executor_->RunAsync(args, std::move(done));
      return;
    }
    const Runner pool = args.runner;
    Args inline_args = args;
    inline_args.runner = [](const std::function<void()>& closure) { closure(); };
    inline_args.run_all_kernels_inline = true;
    // As on the pool's threads.
    const tsl::port::ScopedFlushDenormal flush;
    const tsl::port::ScopedSetRound round(FE_TONEAREST);
    const Runner* const outer = std::exchange(PoolOfThisThread(), &pool);
    executor_->RunAsync(inline_args, std::move(done));
    PoolOfThisThread() = outer;
  }

  const std::unique_ptr<Executor> executor_;
};

// Whether nothing but one Unit takes time.
bool IsOneUnit(const tensorflow::Graph& graph) {
  static const auto* const quick = new absl::flat_hash_set<absl::string_view>(
      {"_Arg", "_Retval", "Const", "Identity", "IdentityN", "NoOp", "ReadVariableOp", "Reshape",
       "TfInterop>Kept", "TfInterop>UnpackVariables"});
  int units = 0;
  for (const tensorflow::Node* const node : graph.op_nodes()) {
    if (node->type_string() == "TfInterop>Unit") {
      ++units;
    } else if (!quick->contains(node->type_string())) {
      return false;
    }
  }
  return units == 1;
}

class InlineExecutorFactory : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const tensorflow::LocalExecutorParams& params,
                           const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* executor) override {
    tensorflow::ExecutorFactory* factory = nullptr;
    TF_RETURN_IF_ERROR(GetFactory(/*executor_type=*/"", &factory));
    TF_RETURN_IF_ERROR(factory->NewExecutor(params, graph, executor));
    if (IsOneUnit(graph)) *executor = std::make_unique<InlineExecutor>(std::move(*executor));
    return absl::OkStatus();
  }
};

[[maybe_unused]] const bool has_inline_executor = [] {
  tensorflow::ExecutorFactory::Register(kInlineExecutor, new InlineExecutorFactory());
  return true;
}();

}  // namespace

Runner PoolRunner(tensorflow::OpKernelContext* context) {
  if (const Runner* const pool = PoolOfThisThread(); pool != nullptr) return *pool;
  if (context->runner() != nullptr) return *context->runner();
  // Grappler computes constants without a runner.
  return [](const std::function<void()>& run) { run(); };
}

}  // namespace tf_interop
