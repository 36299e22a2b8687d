#include "cc_kernels/plugin/plugin.h"

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/self_timing.h"
#include "cc_kernels/core/stage_timing.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/plugin/compiled_functions.h"
#include "cc_kernels/plugin/graph_pass.h"
#include "cc_kernels/plugin/tensorflow_registry.h"
#include "cc_kernels/xla/kernel_call.h"
#include "tensorflow/c/c_api.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace tf_interop {
namespace {

// The plugin's state for a graph.
struct Optimizer {
  const char* device_type = nullptr;
  // Grappler runs its passes twice. The second round may still fuse nodes, such as a sigmoid and a
  // product, so the plugin waits for it.
  bool is_second_round = false;
};

// Aborted tells Grappler that the graph stays as it is.
void SetUnchanged(TF_Status* status) { TF_SetStatus(status, TF_ABORTED, "Nothing to do."); }

void Optimize(void* created, const TF_Buffer* input, const TF_GrapplerItem* item, TF_Buffer* output,
              TF_Status* status) {
  auto* const optimizer = static_cast<Optimizer*>(created);
  const bool is_second_round = std::exchange(optimizer->is_second_round, true);
  const absl::string_view graph(static_cast<const char*>(input->data), input->length);
  if (!is_second_round || !HasPass() || !IsForPass(graph) ||
      !AllowsNonDifferentiableRewrites(item)) {
    return SetUnchanged(status);
  }
  const OwnedBuffer result =
      RunGraphPass({graph, optimizer->device_type, /*is_compiled=*/false, item}, status);
  if (TF_GetCode(status) != TF_OK) return;
  if (result == nullptr) return SetUnchanged(status);
  std::swap(*output, *result);
}

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

void GiveReports(const std::vector<TrialsReport>& reports, TfiSink sink) {
  for (const TrialsReport& report : reports) {
    std::string text = absl::StrCat(report.name, "\n", report.sizes, "\n", report.way, "\n",
                                    report.is_trying ? 1 : 0, "\n", report.share_lost);
    for (const TrialsReport::TimedWay& each : report.ways) {
      absl::StrAppend(&text, "\n", each.way, "\n", each.median_us, "\n", each.runs, "\n",
                      each.simulated_us);
    }
    sink(text.data(), text.size());
  }
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
      tf_interop::HandOverCompiledFunctions();
      return nullptr;
    }
    error = absl::StrCat("TensorFlow refused the plugin for device type ", type, ": ",
                         status.message());
  }
  return error.c_str();
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
  tf_interop::GiveReports(tf_interop::ReadSelfTimings(), sink);
}

void TfiReadStageTimings(TfiSink sink) {
  tf_interop::GiveReports(tf_interop::ReadStageTimings(), sink);
}

void TfiSetXlaCalls(int is_on) { tf_interop::SetXlaCalls(is_on != 0); }

void TfiReadXlaCalls(TfiSink sink) {
  const tf_interop::XlaCallCounts& counts = tf_interop::xla_call_counts;
  const std::string text = absl::StrCat(
      counts.compiled.load(), " ", counts.refused.load(), " ", counts.left.load(), " ",
      counts.run.load(), " ", counts.compiled_stages.load(), " ", counts.translated_stages.load());
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
